"""Pictures show the numbers they are given, inside their frame."""

from xml.etree import ElementTree

import numpy as np
import pytest

from keras_dp.accountants import trade_off
from keras_dp.accountants.trade_off_curves import TradeOff
from keras_dp.ledger import FullDataset, GaussianSum, Round
from keras_dp.reporting.chart import (
    BOTTOM,
    HEIGHT,
    LEFT,
    RIGHT,
    WIDTH,
    Axis,
    trade_off_pictures,
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


class TestTheTradeOff:
    @pytest.mark.parametrize("logarithmic", [False, True])
    def test_has_the_curve(self, logarithmic) -> None:
        root = parsed(trade_off_pictures(CURVE, "A title.")[logarithmic])

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

    @pytest.mark.parametrize("delta", [0.0, 1.0])
    @pytest.mark.parametrize("logarithmic", [False, True])
    def test_may_be_at_the_edge(self, delta, logarithmic) -> None:
        curve = TradeOff((0.0,), (delta,))

        root = parsed(trade_off_pictures(curve, "A title.")[logarithmic])

        ((*line,),) = lines(root, "k0")
        assert line[-1][0] == WIDTH - RIGHT
        top = line[-1][1]
        assert line[0] == (LEFT, top if delta else HEIGHT - BOTTOM)
