"""The rounds of another library, without that library."""

import logging
import sys

import pytest

from keras_dp import budgets
from keras_dp.accountants import Fourier
from keras_dp.bridges import jax_privacy, opacus
from keras_dp.bridges.other_rounds import OtherRounds
from keras_dp.errors import BudgetExceededError, PrivateTrainingError
from keras_dp.ledger import (
    GaussianSum,
    PoissonSampling,
    PrivacyLedger,
    Round,
)
from keras_dp.spending import RunDetails

DELTA = 1e-5
STEP = Round(PoissonSampling(0.1), (GaussianSum("gradients", 1.0, 4.0),))
OTHER = Round(PoissonSampling(0.1), (GaussianSum("gradients", 1.0, 8.0),))


@pytest.fixture
def ledger() -> PrivacyLedger:
    return PrivacyLedger.in_memory(dataset="d")


def rounds_of(ledger, **options) -> OtherRounds:
    return OtherRounds(
        ledger,
        **{
            "library": "other 1.0",
            "note": "as it is set",
            "most": None,
            "target_epsilon": None,
            "delta": DELTA,
            "run": None,
            **options,
        },
    )


def train(rounds: OtherRounds, *planned: Round) -> None:
    with rounds.recording():
        for each in planned:
            rounds.cover(each)


class TestARun:
    def test_names_its_library_and_what_that_is_set_to(self, ledger) -> None:
        train(rounds_of(ledger, run="night"), STEP)

        (run,) = ledger.runs
        assert (run.name, run.start.library) == ("night", "other 1.0")
        assert run.start.description == "as it is set"

    def test_without_steps_leaves_the_ledger_as_it_was(self, ledger) -> None:
        train(rounds_of(ledger, most=3))

        assert ledger.verify().rows == 0

    def test_has_each_round_as_it_was_planned(self, ledger) -> None:
        train(rounds_of(ledger), STEP, STEP, OTHER, STEP)

        assert list(ledger.rounds) == [(STEP, 2), (OTHER, 1), (STEP, 1)]
        assert ledger.unsettled == 0

    def test_covers_a_round_before_it_returns(self, ledger) -> None:
        rounds = rounds_of(ledger)
        with rounds.recording():
            for ran in range(1, 50):
                rounds.cover(STEP if ran % 5 else OTHER)
                assert len(ledger) >= ran == rounds.ran

    def test_is_not_recorded_twice_at_once(self, ledger) -> None:
        rounds = rounds_of(ledger)
        with (
            rounds.recording(),
            pytest.raises(PrivateTrainingError, match="inside another one"),
            rounds.recording(),
        ):
            pass


class TestTheEnd:
    def test_comes_with_the_last_step_of_the_plan(self, ledger) -> None:
        train(rounds_of(ledger, most=3), *[STEP] * 9)

        (run,) = ledger.runs
        assert (run.outcome, len(run)) == ("finished", 3)

    def test_comes_before_the_target(self, ledger, caplog) -> None:
        with caplog.at_level(logging.WARNING):
            train(
                rounds_of(ledger, most=900, target_epsilon=0.5), *[STEP] * 900
            )

        (run,) = ledger.runs
        assert run.outcome == "budget"
        epsilon = Fourier().epsilon
        assert epsilon([(STEP, len(run))], delta=DELTA) <= 0.5
        assert epsilon([(STEP, len(run) + 1)], delta=DELTA) > 0.5
        assert f"after {len(run)} steps" in caplog.text

    def test_comes_where_noise_that_shrinks_has_no_room(self, ledger) -> None:
        small = Round(
            PoissonSampling(0.1), (GaussianSum("gradients", 1.0, 0.4),)
        )
        train(rounds_of(ledger, target_epsilon=0.5), STEP, small, STEP)

        assert list(ledger.rounds) == [(STEP, 1)]

    def test_is_an_error_if_there_was_no_room_at_all(self, ledger) -> None:
        with pytest.raises(BudgetExceededError, match="No round ran"):
            train(rounds_of(ledger, target_epsilon=1e-3), STEP)

        assert ledger.verify().rows == 0

    def test_of_another_run_inside_is_no_end(self, ledger) -> None:
        """Each block hides the end of its own run alone."""
        inner = rounds_of(ledger, target_epsilon=1e-3)
        outer = rounds_of(ledger)

        def nested() -> None:
            with outer.recording():
                outer.cover(STEP)
                train(inner, STEP)

        with pytest.raises(BudgetExceededError):
            nested()

        assert [run.outcome for run in ledger.runs] == ["failed"]

    def test_comes_with_the_rest_of_an_interrupted_run(self, ledger) -> None:
        train(rounds_of(ledger, most=5), STEP, STEP)
        again = rounds_of(ledger, most=2, run=RunDetails(continues=1))

        train(again, *[STEP] * 9)

        (run,) = ledger.runs
        assert (run.outcome, len(run)) == ("finished", 5)
        assert budgets.guarantee(ledger, delta=DELTA).basis == "plan"


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"most": 0}, "`steps`"),
        ({"delta": 1.0}, "`delta`"),
        ({"target_epsilon": 0.0}, "`target_epsilon`"),
        ({"run": 3}, "`run`"),
        ({"run": RunDetails(account="none")}, "account"),
    ],
)
def test_wrong_arguments_are_named(ledger, options, match) -> None:
    with pytest.raises((TypeError, ValueError), match=match):
        rounds_of(ledger, **options)


@pytest.mark.parametrize("name", ["opacus", "jax_privacy"])
def test_a_library_that_is_not_there_names_its_extra(
    name, ledger, monkeypatch
) -> None:
    monkeypatch.setitem(sys.modules, name, None)  # Its import then fails.
    record = {
        "opacus": opacus.recorded_steps(None, None, ledger).__enter__,
        "jax_privacy": lambda: jax_privacy.recorded_batches(None, ledger, 10),
    }

    with pytest.raises(ImportError, match=rf'"keras_dp\[{name}\]"'):
        record[name]()
