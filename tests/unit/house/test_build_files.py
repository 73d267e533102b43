"""The BUILD files say what the code says."""

from tests import build_files


def test_every_build_file_is_what_the_sources_say() -> None:
    written = build_files.build_files()
    stale = [
        path.relative_to(build_files.ROOT).as_posix()
        for path, text in written.items()
        if not path.exists() or path.read_text("utf-8") != text
    ]

    assert stale == [], "Run `python -m tests.build_files`."


def test_there_are_no_other_build_files() -> None:
    found = {*build_files.ROOT.glob("BUILD"), *_below("keras_dp")}

    assert found == build_files.build_files().keys()


def _below(name):
    return (build_files.ROOT / name).rglob("BUILD")
