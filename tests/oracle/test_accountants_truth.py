"""Accountants against epsilons known to 14 digits, by other means.

`truth/table.json` is the output of `truth/compute.py`, which uses no code of
the package: contour integrals of the moments, in 50 digits.
"""

import decimal
import functools
import json
import pathlib
from typing import Any

import mpmath as mp
import pytest

from keras_dp.accountants.fourier import Fourier
from keras_dp.accountants.rdp import RDP
from keras_dp.ledger import (
    DisjointBatches,
    FullDataset,
    GaussianSum,
    PoissonSampling,
    Round,
)
from tests.oracle.truth import cases, compute, nested

TABLE = json.loads(
    (pathlib.Path(__file__).parent / "truth" / "table.json").read_text()
)
BY_NAME = {row["name"]: row for row in TABLE}
SAMPLINGS = {
    "poisson": PoissonSampling,
    "full": FullDataset,
    "disjoint": DisjointBatches,
}

# What the accountant promises, and where only less than that: next to no
# sampling, where a few large losses keep the line from the saddle point.
RELATIVE_WIDTH = 1e-8
WIDER = {
    "5 rounds, hardly sampled": 1e-7,
    "10^6 rounds, hardly sampled": 1e-6,
    "10^6 rounds, 1e-9": 1e-7,
}

every_row = pytest.mark.parametrize(
    "row", TABLE, ids=[row["name"].replace(" ", "_") for row in TABLE]
)


def ledger_of(row: dict[str, Any], share: float = 1.0):
    """The rounds of a row, or a share of the repetitions of each."""
    rounds = []
    for each in row["rounds"]:
        options = dict(each["sampling"])
        sampling = SAMPLINGS[options.pop("kind")](**options)
        sums = tuple(
            GaussianSum(f"sum {index}", bound, stddev)
            for index, (bound, stddev) in enumerate(each["sums"])
        )
        count = max(1, int(each["count"] * share))
        rounds.append((Round(sampling, sums), count))
    return rounds


@functools.cache
def bounds_of(name: str):
    row = BY_NAME[name]
    return Fourier().epsilon_bounds(ledger_of(row), **query(row))


def query(row: dict[str, Any]) -> dict[str, Any]:
    return {"delta": row["delta"], "neighbours": row["neighbours"]}


def test_the_table_is_that_of_the_cases() -> None:
    """And every truth is known to more digits than are tested."""
    listed = [
        (row["name"], row["rounds"], row["delta"], row["neighbours"])
        for row in TABLE
    ]
    assert listed == cases.CASES
    for row in TABLE:
        low, high = decimal.Decimal(row["lower"]), decimal.Decimal(row["upper"])
        assert 0 < low < high < low * (1 + decimal.Decimal("1e-11"))


@every_row
def test_bounds_contain_the_truth(row) -> None:
    """In exact arithmetic: no tolerance, neither below nor above."""
    bounds = bounds_of(row["name"])

    assert decimal.Decimal(bounds.lower) <= decimal.Decimal(row["upper"])
    assert decimal.Decimal(bounds.upper) >= decimal.Decimal(row["lower"])


@every_row
def test_bounds_are_narrow(row) -> None:
    """The promised width, around the truth."""
    bounds = bounds_of(row["name"])

    truth = float(row["upper"])
    width = WIDER.get(row["name"], RELATIVE_WIDTH)
    assert bounds.upper <= truth * (1 + width)
    assert bounds.lower >= truth * (1 - width)


@every_row
def test_moments_are_never_below_the_truth(row) -> None:
    epsilon = RDP().epsilon(ledger_of(row), **query(row))

    assert decimal.Decimal(epsilon) >= decimal.Decimal(row["lower"])


@pytest.mark.parametrize("name", ["abadi", "2 rounds", "replaced, 50 rounds"])
def test_half_of_the_rounds_are_noticed(name) -> None:
    """The control: the upper bound for them is below the truth for all."""
    row = BY_NAME[name]

    bounds = Fourier().epsilon_bounds(ledger_of(row, share=0.5), **query(row))

    assert bounds.upper < float(row["lower"])


@pytest.mark.parametrize(
    "name",
    [
        "one round, every other record",
        "abadi",
        "replaced, 50 rounds",
        "shuffled, replaced",
    ],
)
def test_cheap_rows_can_be_reproduced(name) -> None:
    """To the digits that are tested, by the script that made the table."""
    case = next(case for case in cases.CASES if case[0] == name)

    assert float(compute.row(*case)["lower"]) == pytest.approx(
        float(BY_NAME[name]["lower"]), rel=1e-13
    )


@pytest.mark.parametrize(
    "name", ["one round", "2 rounds", "2 rounds, little noise"]
)
def test_the_truth_is_that_of_the_definition(name) -> None:
    """Nested integrals at the epsilon of the table give its delta.

    A relative 1e-12 of delta is less than that of these epsilons.
    """
    row = BY_NAME[name]
    (repeated,) = row["rounds"]
    ((_, z),) = repeated["sums"]
    q = repeated["sampling"]["probability"]

    with mp.workdps(20):
        epsilon = mp.mpf(row["lower"])
        delta = nested.removed_delta(q, z, repeated["count"], epsilon)

    assert float(delta) == pytest.approx(row["delta"], rel=1e-12)


def test_the_truth_is_that_of_the_definition_for_a_replaced_record() -> None:
    """The same for two rounds, whose orders are mirror images."""
    row = BY_NAME["replaced, 2 rounds"]
    q, z = 0.5, 0.8

    with mp.workdps(20):
        delta = nested.replaced_delta(q, z, mp.mpf(row["lower"]))

    assert float(delta) == pytest.approx(row["delta"], rel=1e-12)
