"""Pictures show the numbers they are given, inside their frame."""

import math
import re
from xml.etree import ElementTree

import numpy as np
import pytest

from keras_dp.accountants import (
    RDP,
    AnalyticGaussian,
    trade_off,
)
from keras_dp.accountants.attacks.trade_off import TradeOff
from keras_dp.ledger import (
    DisjointBatches,
    FixedSizeWithoutReplacement,
    FullDataset,
    GaussianSum,
    NonPrivateSum,
    PoissonSampling,
    Round,
)
from keras_dp.planning import EpsilonCurve, epsilon_curve
from keras_dp.reporting import query_costs
from keras_dp.reporting.pictures.axis import Axis
from keras_dp.reporting.pictures.epsilon_picture import epsilon_picture
from keras_dp.reporting.pictures.svg import BOTTOM, HEIGHT, LEFT, RIGHT, WIDTH
from keras_dp.reporting.pictures.trade_off_picture import trade_off_picture
from keras_dp.reporting.query_costs import OTHERS, TOGETHER, QueryCost

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


def texts(root):
    return [each.text for each in root.iter(f"{NAMESPACE}text")]


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


class TestEpsilon:
    def curves(self, **options):
        ledger = [(Round(PoissonSampling(0.01), (SUM,)), 1000)]
        return {
            "RDP": epsilon_curve(
                ledger, delta=1e-5, points=5, accountant=RDP(), **options
            )
        }

    def test_has_a_line_for_each_accountant(self) -> None:
        curves = {**self.curves(), "again <b>": self.curves()["RDP"]}

        root = parsed(epsilon_picture(curves, delta=1e-5))

        (line,), (again,) = lines(root, "k0"), lines(root, "k1")
        assert line == again
        assert len(line) == 5
        assert line[-1][0] == WIDTH - RIGHT
        heights = [HEIGHT - BOTTOM - y for _, y in line]
        epsilons = curves["RDP"].epsilons
        np.testing.assert_allclose(
            np.array(heights) / heights[-1], epsilons / epsilons[-1], atol=1e-3
        )
        assert {"RDP", "again <b>"} <= {*texts(root)}
        assert "epsilon at delta = 1e-05" in texts(root)

    def test_of_groups_is_theirs(self) -> None:
        ledger = [(Round(PoissonSampling(0.01), (SUM,)), 1000)]

        curve = self.curves(units=3)["RDP"]

        exact = RDP().epsilon(ledger, units=3, delta=1e-5)
        assert curve.epsilons[-1] == exact
        assert np.all(curve.epsilons > self.curves()["RDP"].epsilons)

    def test_leaves_out_what_is_infinite(self) -> None:
        curve = EpsilonCurve(
            np.array([1, 2]), np.array([1.0, math.inf]), "zero_out"
        )

        root = parsed(epsilon_picture({"it": curve}, delta=1e-5))

        assert len(lines(root, "k0")[0]) == 1
        assert "it: no bound" in root.get("aria-label")

    def test_of_nothing_is_empty(self) -> None:
        curve = epsilon_curve([], delta=1e-5, accountant=RDP())

        assert lines(
            parsed(epsilon_picture({"RDP": curve}, delta=1e-5)), "k0"
        ) == [[]]

    def test_refuses_more_than_can_be_told_apart(self) -> None:
        curve = self.curves()["RDP"]

        with pytest.raises(ValueError, match="`curves` must"):
            epsilon_picture(dict.fromkeys("abcde", curve), delta=1e-5)


class TestQueries:
    def test_cost_what_they_would_alone(self) -> None:
        other = GaussianSum("loss", 1.0, 20.0)
        ledger = [
            (Round(FullDataset(), (SUM, other)), 3),
            (Round(FullDataset(), (other,)), 2),
        ]

        costs = query_costs(ledger, delta=1e-5)

        def exact(*rounds):
            return AnalyticGaussian().epsilon([*rounds], delta=1e-5)

        assert costs == (
            QueryCost("gradients", exact((Round(FullDataset(), (SUM,)), 3))),
            QueryCost("loss", exact((Round(FullDataset(), (other,)), 5))),
            QueryCost(TOGETHER, exact(*ledger), is_total=True),
        )

    def test_have_the_relation_of_all_rounds(self) -> None:
        ledger = [
            (Round(FullDataset(), (SUM,)), 1),
            (Round(DisjointBatches("1"), (GaussianSum("b", 1.0, 4.0),)), 1),
        ]

        first, second, _ = query_costs(ledger, delta=1e-5)

        assert first.epsilon == second.epsilon

    def test_of_many_names_are_put_together(self) -> None:
        names = [f"gradients/{i}" for i in range(20)]
        names += [f"single{i}" for i in range(20)]
        sums = tuple(GaussianSum(name, 1.0, 40.0) for name in names)

        costs = query_costs([(Round(FullDataset(), sums), 1)], delta=1e-5)

        shown = [each.name for each in costs]
        assert shown[0] == "gradients/..."
        assert shown[-2:] == [OTHERS, TOGETHER]
        assert len(shown) == 9
        assert costs[-2].epsilon > costs[1].epsilon

    @pytest.mark.parametrize(
        "round_",
        [
            Round(FullDataset(), (NonPrivateSum("loss"),)),
            Round(FixedSizeWithoutReplacement(5, 50), (NonPrivateSum("loss"),)),
        ],
    )
    def test_without_a_bound_are_infinite(self, round_) -> None:
        costs = query_costs([(round_, 1)], delta=1e-5)

        assert all(each.epsilon == math.inf for each in costs)

    def test_of_nothing_cost_nothing(self) -> None:
        costs = query_costs([], delta=1e-5)

        assert costs == (QueryCost(TOGETHER, 0.0, is_total=True),)
