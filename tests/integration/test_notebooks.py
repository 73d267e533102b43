"""The notebooks are their pages, whose code runs in `test_documents`."""

import importlib.util
import json

import pytest

from tests.documents import ROOT

_spec = importlib.util.spec_from_file_location(
    "notebooks", ROOT / "docs/_site/notebooks.py"
)
notebooks = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(notebooks)
each = pytest.mark.parametrize("name", notebooks.NOTEBOOKS)


def cells(name):
    path = notebooks.FOLDER / f"{name}.ipynb"
    return json.loads(path.read_text("utf-8"))["cells"]


@each
def test_is_its_page(name) -> None:
    """Else run `python docs/_site/notebooks.py`."""
    page, extra = notebooks.NOTEBOOKS[name]
    path = notebooks.FOLDER / f"{name}.ipynb"
    assert path.read_text("utf-8") == f"{notebooks.notebook(page, extra)}\n"


@each
def test_installs_first(name) -> None:
    first, *others = cells(name)
    assert first["source"][0].startswith('%pip install -q "keras_dp[')
    assert not any(
        line[:1] == "%" for each in others for line in each["source"]
    )


@each
def test_links_lead_to_files(name) -> None:
    text = "\n".join("".join(cell["source"]) for cell in cells(name))
    targets = [target for _, target, _ in notebooks.LINK.findall(text)]
    assert targets
    for target in targets:
        assert (notebooks.FOLDER / target).exists(), target
