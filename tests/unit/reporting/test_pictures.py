"""Pictures show the numbers they are given, inside their frame."""

import re
from xml.etree import ElementTree

import numpy as np
import pytest

from keras_dp.accountants import trade_off
from keras_dp.accountants.attacks.trade_off import TradeOff
from keras_dp.ledger import (
    FullDataset,
    GaussianSum,
    Round,
)
from keras_dp.reporting.chart import (
    BOTTOM,
    HEIGHT,
    LEFT,
    RIGHT,
    WIDTH,
    Axis,
    trade_off_picture,
)
from tests.analytic_gaussian import AnalyticGaussian

NAMESPACE = "{http://www.w3.org/2000/svg}"
SUM = GaussianSum("gradients", 1.0, 4.0)
CURVE = trade_off(
    [(Round(FullDataset(), (SUM,)), 20)], accountant=AnalyticGaussian()
)


def parsed(picture):
    """Returns the element, checked for what every picture promises."""
    root = ElementTree.fromstring(picture)
    assert root.tag == f"{NAMESPACE}svg"
    assert root.get("aria-label") == root.find(f"{NAMESPACE}title").text
    assert "prefers-color-scheme:dark" in root.find(f"{NAMESPACE}style").text
    # Nothing is loaded, and nothing runs.
    tags = {each.tag.removeprefix(NAMESPACE) for each in root.iter()}
    assert tags <= {
        *("svg", "title", "style", "rect", "text"),
        *("path", "polygon", "polyline"),
    }
    assert not re.search(r"url\(|@import|href|on\w+=", picture)
    width, height = map(float, root.get("viewBox").split()[2:])
    for each in root.iter():
        for x, y in points(each):
            assert 0 <= x <= width
            assert 0 <= y <= height
    return root


def points(element):
    pairs = (element.get("points") or "").split()
    found = [tuple(map(float, pair.split(","))) for pair in pairs]
    if element.get("x"):
        found.append((float(element.get("x")), float(element.get("y"))))
    return found


def lines(root, kind):
    return [
        points(each)
        for each in root.iter(f"{NAMESPACE}polyline")
        if each.get("class") == f"line {kind}"
    ]


class TestAxes:
    @pytest.mark.parametrize(
        ("axis", "names"),
        [
            (
                Axis("", 0.0, 1.0, is_share=True),
                "0 % 20 % 40 % 60 % 80 % 100 %",
            ),
            (Axis("", 0.0, 10_000.0), "0 2,000 4,000 6,000 8,000 10,000"),
            (Axis("", 0.0, 0.37), "0 0.1 0.2 0.3"),
            (
                Axis("", 1e-5, 1.0, True, True),
                "100 % 10 % 1 % 0.1 % 0.01 % 0.001 %",
            ),
            (Axis("", 1.0, 1e12, is_log=True), None),
        ],
    )
    def test_name_a_few_round_values(self, axis, names) -> None:
        ticks = axis.ticks()

        if names:
            assert " ".join(name for _, name in ticks) == names
        assert 3 <= len(ticks) <= 7
        assert all(0 <= axis.position(value) <= 1 for value, _ in ticks)

    @pytest.mark.parametrize("is_log", [False, True])
    def test_end_where_they_end(self, is_log) -> None:
        axis = Axis("", 0.5, 2.0, is_log)

        assert [axis.position(v) for v in (0.1, 0.5, 2.0, 9.0)] == [0, 0, 1, 1]
        assert axis.position(1.0) == pytest.approx(0.5 if is_log else 1 / 3)


class TestTheTradeOff:
    @pytest.mark.parametrize("logarithmic", [False, True])
    def test_has_the_curve(self, logarithmic) -> None:
        root = parsed(trade_off_picture(CURVE, logarithmic=logarithmic))

        ((*line,),) = lines(root, "k0")
        low = 1e-5 if logarithmic else 0.0
        axis = Axis("", low, 1.0, logarithmic)
        x = LEFT + (WIDTH - RIGHT - LEFT) * axis.position(0.1)
        rate = float(CURVE.largest_true_positive_rate(0.1))
        drawn = np.interp(x, *zip(*line, strict=True))
        top = HEIGHT - BOTTOM
        height = (top - drawn) / (top - line[-1][1])
        assert height == pytest.approx(axis.position(rate), abs=2e-3)
        assert line == sorted(line)
        assert len(root.findall(f"{NAMESPACE}polygon")) == 1

    def test_says_what_it_shows(self) -> None:
        curve = TradeOff((0.0, 1.0), (0.4, 0.01))

        title = parsed(trade_off_picture(curve)).get("aria-label")

        assert "right at most 70 % of the time" in title
        assert "at most 1.3 % are found" in title

    @pytest.mark.parametrize("delta", [0.0, 1.0])
    @pytest.mark.parametrize("logarithmic", [False, True])
    def test_may_be_at_the_edge(self, delta, logarithmic) -> None:
        curve = TradeOff((0.0,), (delta,))

        root = parsed(trade_off_picture(curve, logarithmic=logarithmic))

        ((*line,),) = lines(root, "k0")
        assert line[-1][0] == WIDTH - RIGHT
        top = line[-1][1]
        assert line[0] == (LEFT, top if delta else HEIGHT - BOTTOM)
