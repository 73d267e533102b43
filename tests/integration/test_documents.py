"""The code of the documents runs as it stands, block after block."""

import pytest

from tests import documents

README = documents.ROOT / "README.md"
# The others ask the same of other pages: at night the longest of them, and
# those whose subject has tests of its own.
FIRST = {README, documents.ROOT / "docs/start.md"}
LONG = {"auditing", "keras_features", "keras_hub", "tuning", "users"}


def tier(path):
    """Returns the marks of a page."""
    if path in FIRST:
        return ()
    return pytest.mark.nightly if path.stem in LONG else pytest.mark.full


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, marks=tier(path))
        for path in documents.programs()
        if documents.blocks(path)
    ],
    ids=lambda path: path.relative_to(documents.ROOT).as_posix(),
)
def test_the_code_of_a_document_runs(
    path, tmp_path, monkeypatch, capsys
) -> None:
    """It prints the numbers that its comments state, too."""
    monkeypatch.chdir(tmp_path)
    source = "\n".join(documents.blocks(path))
    code = compile(source, str(path), "exec")

    exec(code, {"__name__": "__main__"})

    assert documents.unprinted(source, capsys.readouterr().out) == []
    if path == README:
        assert (tmp_path / "model.keras").exists()
        assert (tmp_path / "privacy.ledger").exists()


def test_the_quick_start_is_short() -> None:
    """A newcomer reads thirty lines of code, not more."""
    first = documents.blocks(README)[0]
    lines = [line for line in first.splitlines() if line.strip()]

    assert len(lines) <= 30
