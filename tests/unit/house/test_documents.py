"""Links lead somewhere, pages are in the navigation, claims have tests."""

import re
import runpy

import pytest

import keras_dp
from keras_dp.reporting import cli
from tests import documents, imports

ROOT = imports.ROOT
DOCS = ROOT / "docs"
PACKAGES = sorted(
    path.parent
    for path in ROOT.glob("keras_dp/*/__init__.py")
    # Users name the part of `experimental`. None needs `gradients`.
    if path.parent.name not in ("experimental", "gradients")
)
NAVIGATION = (ROOT / "mkdocs.yml").read_text("utf-8").partition("\nnav:")[2]


def broken_links(path, text):
    """Returns the links of a document that lead to no file or no heading."""
    broken = []
    for link in documents.links(text):
        target, _, anchor = link.partition("#")
        if re.match(r"[a-z]+:", target):
            continue  # To another site.
        file = (path.parent / target).resolve() if target else path
        if not file.is_file() or not file.is_relative_to(ROOT):
            broken.append(link)
        elif anchor and file.suffix == ".md":
            own = text if file == path else file.read_text("utf-8")
            if anchor not in documents.anchors(own):
                broken.append(link)
    return broken


@pytest.mark.parametrize(
    "path",
    documents.documents(),
    ids=lambda path: path.relative_to(ROOT).as_posix(),
)
def test_links_lead_to_a_file_and_a_heading(path) -> None:
    assert broken_links(path, path.read_text("utf-8")) == []


@pytest.mark.parametrize(
    "text",
    [
        "[page](nowhere.md)",
        "[page](design.md#nowhere)",
        '<img src="images/nothing.png">',
        "[page](../../../etc/hosts)",
    ],
)
def test_and_a_broken_one_is_found(text) -> None:
    assert len(broken_links(DOCS / "design.md", text)) == 1


@pytest.mark.parametrize(
    "text",
    [
        "# One: `two`, 3\n\n[here](#one-two-3)",
        "[page](glossary.md#data-and-sampling) [site](https://keras.io)",
        "```\n[page](nowhere.md)\n```",
    ],
)
def test_and_others_are_not(text) -> None:
    assert broken_links(DOCS / "design.md", text) == []


def test_the_navigation_has_every_page_once() -> None:
    listed = re.findall(r"^ +- (\S+\.md)$", NAVIGATION, re.MULTILINE)
    hooks = (DOCS / "_site/hooks.py").read_text("utf-8")
    generated = re.findall(r'"[^"]+\.md": "([^"]+\.md)"', hooks)
    pages = [path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")]

    assert len(set(listed)) == len(listed)
    assert sorted(listed) == sorted([*pages, *generated])


COMMANDS = sorted(
    {
        (path.relative_to(ROOT).as_posix(), *arguments)
        for path in documents.documents()
        for arguments in documents.commands(path.read_text("utf-8"))
    }
)


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_commands_are_those_of_the_command_line(
    command, tmp_path, monkeypatch, capsys
) -> None:
    """They are understood: what fails is that there is no such ledger."""
    monkeypatch.chdir(tmp_path)
    _, *arguments = command

    code = cli.main(arguments)

    is_plan = arguments[0] == "plan"
    assert code == (cli.OK if is_plan else cli.UNREADABLE), capsys.readouterr()


def test_and_another_option_is_not_understood(capsys) -> None:
    with pytest.raises(SystemExit):
        cli.main(["report", "clinic.ledger", "--theta", "1"])


@pytest.mark.parametrize("package", PACKAGES, ids=lambda path: path.name)
def test_public_names_have_a_page(package) -> None:
    """Their docstrings are asked for by ruff, and entries by `make docs`."""
    page = (DOCS / f"api/{package.name}.md").read_text("utf-8")

    assert f"::: keras_dp.{package.name}\n" in page


def test_the_names_at_the_top_are_listed() -> None:
    page = (DOCS / "api/index.md").read_text("utf-8")

    assert [
        name
        for name in keras_dp.__all__
        if f"[`{name}`]" not in page
        and f"[{name}]({name}.md)" not in page
        and f"`keras_dp.{name}`" not in page
    ] == []


# The first program of the README, without privacy.
PLAIN = """\
import keras
import numpy as np

x = np.random.default_rng(0).normal(size=(20_000, 20)).astype("float32")
y = (x[:, 0] + x[:, 1] > 0).astype("int32")
model = keras.Sequential([keras.Input((20,)), keras.layers.Dense(2)])
model.compile(
    keras.optimizers.Adam(0.03),
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
)
model.fit(x, y, batch_size=512, epochs=10)
model.save("model.keras")  # The user's own model, trained.
"""


def test_the_program_of_the_readme_stays_near_its_plain_form() -> None:
    private = documents.blocks(ROOT / "README.md")[0]
    compare = runpy.run_path(str(ROOT / "examples/compare.py"))

    assert 0 < compare["changed_lines"](PLAIN, private) <= 4


CLAIMS = (DOCS / "claims.md").read_text("utf-8")


def missing_tests(text):
    """Returns the tests that a text names, and that their file has not."""
    return [
        name
        for name, target in re.findall(r"\[`(\w+)`\]\(([^)]+)\)", text)
        if not re.search(
            rf"^ *(?:def|class) {name}\b",
            (DOCS / target).read_text("utf-8"),
            re.MULTILINE,
        )
    ]


def unclaimed(readme, guarantees, claims):
    """Returns bold claims and headings that no row of the index has."""
    rows = [line for line in claims.splitlines() if line.startswith("| ")]
    held = [row for row in rows if re.search(r"\]\([^)]+\)[^|]*\|$", row)]
    bold = re.findall(r"^- \*\*(.*?)\*\*", readme, re.MULTILINE)
    headings = re.findall(r"^## (.*)$", guarantees, re.MULTILINE)
    return [
        *(each for each in bold if not any(f"**{each}**" in r for r in held)),
        *(
            each
            for each in headings
            if not any(f"[{each}](guarantees.md#" in row for row in held)
        ),
    ]


class TestTheIndexOfClaims:
    def test_names_tests_that_exist(self) -> None:
        assert len(re.findall(r"\[`(test_\w+|Test\w+)`\]", CLAIMS)) > 50
        assert missing_tests(CLAIMS) == []
        for name in ("sharp_edges.md", "review.md"):
            assert missing_tests((DOCS / name).read_text("utf-8")) == []

    def test_leads_a_reviewer_through_few_files(self) -> None:
        page = (DOCS / "review.md").read_text("utf-8")

        files = set(re.findall(r"\]\((\.\./[^)#]+)\)", page))
        assert len(files) <= 20
        assert all((DOCS / each).is_file() for each in files)

    def test_has_the_claims_of_the_readme_and_the_guarantees(self) -> None:
        readme = (ROOT / "README.md").read_text("utf-8")
        guarantees = (DOCS / "guarantees.md").read_text("utf-8")

        assert unclaimed(readme, guarantees, CLAIMS) == []

    def test_would_miss_others(self) -> None:
        """Control."""
        found = unclaimed("- **Green.** It is.", "## New", CLAIMS)
        assert found == ["Green.", "New"]
        assert missing_tests(
            "[`test_nothing`](../tests/unit/house/test_documents.py)"
        ) == ["test_nothing"]
