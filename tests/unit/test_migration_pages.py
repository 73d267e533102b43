"""The code of the peers on the migration pages.

`python benchmarks/peers/migration.py` runs it with the versions below.
"""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
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


@pytest.mark.parametrize("peer", PEERS)
def test_the_code_of_a_page_imports_what_it_names(peer) -> None:
    blocks = re.findall(
        r"^```py\n(.*?)^```", page(peer), re.DOTALL | re.MULTILINE
    )
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
