"""The code of the peers on the migration pages.

`python benchmarks/peers/migration.py` runs it with the versions below.
"""

import ast
import json
import re
import subprocess
import sys

import pytest

from tests import documents

ROOT = documents.ROOT
BENCHMARKS = ROOT / "benchmarks"
PEERS = {
    "opacus": "Opacus",
    "tf_privacy": "TensorFlow Privacy",
    "jax_privacy": "JAX Privacy",
}


def page(peer):
    return (ROOT / "docs" / "migrate" / f"{peer}.md").read_text("utf-8")


def pinned(peer):
    pins = (ROOT / "benchmarks" / "peers").glob(f"{peer}*.txt")
    lines = "\n".join(each.read_text("utf-8") for each in sorted(pins))
    package = PEERS[peer].lower().replace("tensorflow ", "tensorflow-")
    package = package.replace("jax ", "jax-")
    return re.search(rf"^{package}==(\d+\.\d+)", lines, re.MULTILINE)[1]


@pytest.mark.parametrize("peer", PEERS)
def test_the_page_names_the_version_that_its_code_ran_with(peer) -> None:
    first = page(peer).split("\n\n")[1]

    assert f"{PEERS[peer]} {pinned(peer)} " in first
    index = (ROOT / "docs/migrate/index.md").read_text("utf-8")
    assert f"| {PEERS[peer]} {pinned(peer)} |" in index


@pytest.mark.parametrize("peer", PEERS)
def test_the_code_of_a_page_imports_what_it_names(peer) -> None:
    blocks = documents.PEER.findall(page(peer))
    tree = ast.parse("\n".join(blocks))
    imports = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    roots = {
        node.value.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
    }
    assigned = {
        node.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }
    arguments = {n.arg for n in ast.walk(tree) if isinstance(n, ast.arg)}

    assert blocks
    assert roots <= imports | assigned | arguments


@pytest.mark.parametrize("peer", PEERS)
def test_both_sides_of_a_page_state_numbers(peer) -> None:
    """The script and `test_documents.py` look whether they are printed."""
    theirs = "\n".join(documents.PEER.findall(page(peer)))
    path = ROOT / "docs" / "migrate" / f"{peer}.md"
    ours = "\n".join(documents.blocks(path))

    assert documents.stated(theirs)
    assert documents.stated(ours)


def test_the_measurements_are_numbers_of_the_pages() -> None:
    text = (ROOT / "docs/measurements.md").read_text("utf-8")
    section = text.partition("## The same program on both sides\n")[2]
    rows = re.findall(r"^\| \w.*$", section.partition("\n## ")[0], re.MULTILINE)
    cells = [re.split(r" *\| *", row) for row in rows]
    measured = {
        number
        for _, _, _, theirs, ours, _ in cells
        for number in re.findall(r"\d+\.\d+", f"{theirs} {ours}")
    }
    pages = "\n".join(page(peer) for peer in PEERS)

    assert len(cells) == 4
    assert measured <= {*documents.stated(pages)}


@pytest.mark.parametrize(
    ("output", "missing"),
    [
        ("a 6.3274\nand 2.17415", []),
        ("6.327 and 2.175", ["2.174"]),
        ("16.327 and 2.174", ["6.327"]),
        ("", ["6.327", "2.174"]),
    ],
)
def test_a_number_that_was_not_printed_is_found(output, missing) -> None:
    code = "print(\n    f()\n)  # 6.327 and 2.174\nx = 1  # 0.5\n"

    assert documents.unprinted(code, output) == missing


def test_each_block_is_answered_for() -> None:
    """Those after one that fails as well, with the names made before."""
    blocks = ["x = 1.5\nprint(x)", "y", "print(2 * x)"]

    ran = subprocess.run(
        [sys.executable, "-I", str(BENCHMARKS / "peers" / "run_blocks.py")],
        input=json.dumps(blocks),
        capture_output=True,
        text=True,
        check=True,
    )

    first, failed, last = map(json.loads, ran.stdout.splitlines())
    assert (first["output"], first["error"]) == ("1.5\n", "")
    assert "NameError: name 'y' is not defined" in failed["error"]
    assert last["output"] == "3.0\n"
