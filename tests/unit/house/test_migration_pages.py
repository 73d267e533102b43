"""The code of the peers on the migration pages.

`python benchmarks/peers/migration.py` runs it with the versions below.
"""

import re

import pytest

from tests import documents

ROOT = documents.ROOT
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
    assert f"{PEERS[peer]} {pinned(peer)} " in page(peer).split("\n\n")[1]
    index = (ROOT / "docs/migrate/index.md").read_text("utf-8")
    assert f"| {PEERS[peer]} {pinned(peer)} |" in index


@pytest.mark.parametrize("peer", PEERS)
def test_both_sides_of_a_page_state_numbers(peer) -> None:
    """The script and `test_documents.py` look whether they are printed."""
    theirs = "\n".join(documents.PEER.findall(page(peer)))
    path = ROOT / "docs" / "migrate" / f"{peer}.md"
    ours = "\n".join(documents.blocks(path))

    assert documents.stated(theirs)
    assert documents.stated(ours)
