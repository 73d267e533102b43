"""Notebooks of pages: their text, and their code to run.

    python docs/_site/notebooks.py

writes those in `notebooks/` anew, which Colab opens from the repository. The
site has one of each guide, to download.
"""

import json
import os
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
FOLDER = ROOT / "notebooks"
# The notebooks in the repository: their pages, and the extras that they need.
NOTEBOOKS = {
    "start": (DOCS / "start.md", "cpu"),
    "fine_tuning": (DOCS / "guides/keras_hub.md", "keras_hub"),
    "auditing": (DOCS / "auditing.md", "cpu"),
}
CODE = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"(\]\()([^)\s#:]+)((?:#[^)\s]*)?\))")


def notebook(path: Path, extra: str | None = None) -> str:
    """Returns a page as a Jupyter notebook.

    Args:
        path: The page.
        extra: With it, the first cell installs keras_dp with this extra, and
            links lead to where the page's links lead, from `notebooks/`.
    """
    text = path.read_text("utf-8")
    cells = []
    if extra is not None:
        text = LINK.sub(lambda link: _from_folder(path, link), text)
        cells.append(_cell(0, f'%pip install -q "keras_dp[{extra}]"', True))
    for index, part in enumerate(CODE.split(text)):
        if part.strip():
            cells.append(_cell(index + 1, part.strip(), bool(index % 2)))
    return json.dumps(
        {
            "cells": cells,
            "metadata": {"language_info": {"name": "python"}},
            "nbformat": 4,
            "nbformat_minor": 5,
        },
        indent=1,
        ensure_ascii=False,
    )


def _cell(number: int, text: str, is_code: bool) -> dict[str, Any]:
    cell: dict[str, Any] = {
        "cell_type": "code" if is_code else "markdown",
        "id": f"cell-{number}",
        "metadata": {},
        "source": text.splitlines(keepends=True),
    }
    if is_code:
        cell |= {"execution_count": None, "outputs": []}
    return cell


def _from_folder(path: Path, link: re.Match[str]) -> str:
    there = os.path.relpath((path.parent / link[2]).resolve(), FOLDER)
    return f"{link[1]}{there}{link[3]}"


if __name__ == "__main__":
    for name, (page, extra) in NOTEBOOKS.items():
        content = notebook(page, extra)
        (FOLDER / f"{name}.ipynb").write_text(f"{content}\n", "utf-8")
