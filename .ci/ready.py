"""Says what a maintainer must still fill in before a release.

    python .ci/ready.py [v0.1.0]

It fails while anything is left; the workflow of a release asks it first. Four
things it cannot see, once, before the first release: a trusted publisher on the
index, for the workflow `release.yml` and the environment `pypi`; that
environment in the repository's settings; private vulnerability reporting,
switched on there, to which SECURITY.md leads; and runs on macOS and Windows,
which only the workflow of the tests has. For conda-forge, the release has a
`meta.yaml` with the hash of its sdist.
"""

import re
import runpy
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def left(root: Path = ROOT, tag: str = "") -> Iterator[str]:
    """Yields what is left, a sentence each.

    Args:
        root: The repository.
        tag: The tag of the release, if there is one already.
    """

    def text(name: str) -> str:
        return (root / name).read_text("utf-8")

    version = runpy.run_path(str(root / "keras_dp/_version.py"))["__version__"]
    authors = tomllib.loads(text("pyproject.toml"))["project"]["authors"]
    ledgers = f"tests/data/ledgers/{version}/epsilons.json"
    if tag and tag != f"v{version}":
        yield f"The tag is {tag}, and keras_dp/_version.py has {version}."
    if not re.search(
        rf"^## {re.escape(version)}\b", text("CHANGELOG.md"), re.M
    ):
        yield f"CHANGELOG.md: the heading {version}, in place of Unreleased."
    if not (root / ledgers).exists():
        yield f"{ledgers}: run `python -m tests.released_ledgers --again`."
    if f'version = "{version}"' not in text("recipe/meta.yaml"):
        yield f"recipe/meta.yaml: the version {version}."
    if not all("email" in each for each in authors):
        yield "pyproject.toml: the authors, each with an e-mail address."
    if "name: The keras_dp authors" in text("CITATION.cff"):
        yield "CITATION.cff: the authors, whom others cite."
    if "/OWNER/" in text("notebooks/README.md"):
        yield "notebooks/README.md: the account of the repository for OWNER."


if __name__ == "__main__":
    found = [*left(ROOT, *sys.argv[1:])]
    sys.exit("\n".join(found))
