"""Ledgers of many kinds of rounds: fewer stand for them, which cost more."""

import json

import numpy as np
import pytest

from keras_dp.accountants import trade_off
from keras_dp.accountants.normalize import normalize as module
from keras_dp.accountants.normalize.normalize import normalize, normalized
from keras_dp.budgets import guarantee
from keras_dp.ledger import GaussianSum, PoissonSampling, PrivacyLedger, Round
from keras_dp.planning.rounds_left import rounds_left
from keras_dp.reporting import make_report
from keras_dp.reporting.explanation import explain

DELTA, KINDS = 1e-6, 1200
SAMPLING = PoissonSampling(1e-3)


def step(noise):
    return Round(SAMPLING, (GaussianSum("sum", 1.0, noise),))


ROUNDS = [(step(z), 100) for z in np.linspace(4, 5, KINDS).tolist()]


@pytest.fixture(scope="module")
def ledger():
    found = PrivacyLedger.in_memory(dataset="doc")
    with found.start_run("many") as run:
        for each, count in ROUNDS:
            run.record(each.sampling, each.queries, count)
    return found


class TestNormalizedRounds:
    def test_stand_for_their_ledger(self) -> None:
        whole = normalized(ROUNDS[:5], "zero_out")

        assert normalize(whole) == normalize(ROUNDS[:5], "zero_out")
        assert normalized(whole, "zero_out") is whole
        with pytest.raises(ValueError, match="`neighbours` must"):
            normalize(whole, "replace_one")


@pytest.mark.full
class TestReport:
    def test_normalizes_rounds_twice(self, ledger, monkeypatch) -> None:
        """For all numbers together, and for the curve, whose end is known."""
        added = []
        add = module.RoundsTogether.add

        def counting(self, event, count) -> None:
            added.append(count)
            add(self, event, count)

        monkeypatch.setattr(module.RoundsTogether, "add", counting)

        report = make_report(ledger, delta=DELTA, details=True)

        assert len(added) < 2 * KINDS
        assert report.details.explanation.claim == report.claim

    def test_says_no_less_than_for_every_kind(self, ledger) -> None:
        exact = trade_off(ROUNDS, lines=10)
        found = explain(ledger, delta=DELTA)

        assert exact.advantage <= found.curve.advantage
        assert found.curve.advantage <= 1.05 * exact.advantage
        assert found.claim == guarantee(ledger, delta=DELTA).claim

    def test_json_has_every_kind(self, ledger) -> None:
        report = make_report(ledger, delta=DELTA, accountants=())

        rounds = json.loads(report.as_json())["rounds"]
        assert [each["count"] for each in rounds] == [100] * KINDS
        assert rounds[-1]["queries"][0]["noise_stddev"] == 5.0


@pytest.mark.full
def test_rounds_left_are_never_too_many() -> None:
    exact = rounds_left(ROUNDS[::2], step(4.0), target_epsilon=0.6, delta=DELTA)
    twice = [(each, (count + 1) // 2) for each, count in ROUNDS]
    found = rounds_left(twice, step(4.0), target_epsilon=0.6, delta=DELTA)

    assert 0.95 * exact < found <= exact
