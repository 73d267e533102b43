"""The page on tests states no more than there is."""

import re

import pytest

from tests import figures

ROW = re.compile(r"^\| (.+) \| ([\d,]+) \|$", re.MULTILINE)


@pytest.mark.full
def test_the_figures_of_the_page_are_there() -> None:
    """Else run `python -m tests.figures`."""
    text = figures.PAGE.read_text("utf-8")
    stated = {what: int(n.replace(",", "")) for what, n in ROW.findall(text)}
    found = figures.figures()
    assert stated.keys() == found.keys()
    assert {what for what in stated if stated[what] > found[what]} == set()
