"""Ledgers of many kinds of rounds: fewer stand for them, which cost more."""

import json

import numpy as np
import pytest

from keras_dp.accountants import trade_off
from keras_dp.accountants.normalize import normalize as module
from keras_dp.accountants.normalize import rounds as normalized_rounds
from keras_dp.accountants.normalize.few_kinds import few_kinds
from keras_dp.accountants.normalize.normalize import normalize, normalized
from keras_dp.accountants.replay import Replay
from keras_dp.budgets import guarantee
from keras_dp.ledger import GaussianSum, PoissonSampling, PrivacyLedger, Round
from keras_dp.planning.rounds_left import rounds_left
from keras_dp.reporting import make_report, render
from keras_dp.reporting.explanation import bound_on_attacks

DELTA = 1e-6
SAMPLING = PoissonSampling(1e-3)


def step(noise):
    return Round(SAMPLING, (GaussianSum("sum", 1.0, noise),))


@pytest.fixture(
    scope="module",
    params=[32, pytest.param(1200, marks=pytest.mark.nightly)],
)
def rounds(request):
    """Returns rounds of more kinds than are many."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param < normalized_rounds._MANY:
            patch.setattr(normalized_rounds, "_MANY", 30)
            patch.setattr(normalized_rounds, "_FEW", 8)
        noises = np.linspace(4, 5, request.param).tolist()
        yield [(step(z), 120_000 // request.param) for z in noises]


@pytest.fixture(scope="module")
def ledger(rounds):
    found = PrivacyLedger.in_memory(dataset="doc")
    with found.start_run("many") as run:
        for each, count in rounds:
            run.record(each.sampling, each.queries, count)
    return found


class TestNormalizedRounds:
    def test_stand_for_their_ledger(self) -> None:
        rounds = [(step(z), 100) for z in (4.0, 4.5, 5.0)]
        whole = normalized(rounds, "zero_out")

        assert normalize(whole) == normalize(rounds, "zero_out")
        assert normalized(whole, "zero_out") is whole
        with pytest.raises(ValueError, match="`neighbours` must"):
            normalize(whole, "replace_one")


@pytest.mark.full
class TestReport:
    def test_normalizes_rounds_twice(self, ledger, rounds, monkeypatch) -> None:
        """For all numbers together, and for the curve, whose end is known."""
        added = []
        released = module.released

        def counting(queries):
            added.append(queries)
            return released(queries)

        monkeypatch.setattr(module, "released", counting)

        report = make_report(ledger, delta=DELTA, details=True)

        assert len(added) < 2 * len(rounds)
        assert "explanation" in report.facts

    def test_says_no_less_than_for_every_kind(self, ledger, rounds) -> None:
        exact = trade_off(rounds, lines=10)
        replay = Replay(ledger)
        found = bound_on_attacks(replay, guarantee(replay, delta=DELTA))

        assert exact.advantage <= found.advantage <= 1.05 * exact.advantage

    def test_json_has_every_kind(self, ledger, rounds) -> None:
        report = make_report(ledger, delta=DELTA, accountants=())

        found = json.loads(render(report, "json"))["rounds"]
        assert [each["count"] for each in found] == [n for _, n in rounds]
        assert found[-1]["queries"][0]["noise_stddev"] == 5.0


@pytest.mark.full
def test_rounds_left_are_never_too_many(monkeypatch) -> None:
    rounds = [(step(z), 6000) for z in np.linspace(4, 5, 20).tolist()]

    def left():
        return rounds_left(rounds, step(4.0), target_epsilon=0.6, delta=DELTA)

    exact = left()
    monkeypatch.setattr(few_kinds, "__defaults__", (8,))

    assert 0.95 * exact < left() < exact
