"""A ledger is read once, normalized once, and each epsilon computed once."""

import contextlib
import math

import pytest

from keras_dp.accountants import RDP, Fourier
from keras_dp.accountants import replay as module
from keras_dp.accountants.coverage import covers
from keras_dp.accountants.replay import Replay, replay_of
from keras_dp.ledger import (
    FullDataset,
    GaussianSum,
    PrivacyLedger,
    Round,
    UnverifiedSampling,
)
from keras_dp.reporting.report import make_report

DELTA = 1e-5
FULL = Round(FullDataset(), (GaussianSum("sum", 1.0, 9.0),))
OWN = Round(UnverifiedSampling(), (GaussianSum("sum", 1.0, 9.0),))


@pytest.fixture
def ledger():
    """Holds a run that kept to its plan, and one without a plan."""
    found = PrivacyLedger.in_memory(
        dataset="d", unit="patient", rows_per_unit=2
    )
    with found.start_run("planned") as run:
        run.plan([(FULL, 10)])
        run.record(FULL.sampling, FULL.queries, 4)
    with found.start_run("other") as run:
        run.record(OWN.sampling, OWN.queries, 3)
    return found


def test_each_part_of_a_ledger_is_normalized_once(ledger, monkeypatch) -> None:
    """A report asks for the rounds that ran, and for those that count."""
    asked = []

    def counting(rounds, *arguments):
        asked.append(rounds)
        return normalize(rounds, *arguments)

    normalize = module.normalize
    monkeypatch.setattr(module, "normalize", counting)

    make_report(ledger, delta=DELTA)

    replay = Replay(ledger)
    for rounds in (replay.rounds, replay.that_count().together.rounds):
        assert asked.count(rounds) == 1


def test_an_epsilon_is_computed_once() -> None:
    class Counting(RDP):
        calls = 0

        def epsilon(self, *args, **named):
            Counting.calls += 1
            return RDP().epsilon(*args, **named)

    replay = Replay([(FULL, 3)])

    claims = {
        replay.claim(delta=DELTA, accountant=Counting()).epsilon
        for _ in range(3)
    }

    assert claims == {RDP().epsilon([(FULL, 3)], delta=DELTA)}
    assert Counting.calls == 1


def test_a_bound_is_computed_once_for_parts_that_are_alike(
    ledger, monkeypatch
) -> None:
    """Names of queries do not matter, and very many kinds may be few."""
    asked = []

    def counting(rounds):
        asked.append(rounds)
        return tightest(rounds)

    tightest = module.tightest
    monkeypatch.setattr(module, "tightest", counting)
    replay = Replay(ledger)
    other = Round(FullDataset(), (GaussianSum("other", 2.0, 18.0),))

    bounds = {
        replay.of([(each, 7)]).bound(delta=DELTA, units=2)
        for each in (FULL, other, FULL)
    }

    assert len(asked) == 1
    assert bounds == {
        replay.of([(FULL, 7)]).claim(delta=DELTA, units=2).epsilon
    }
    assert replay.bound(delta=DELTA, neighbours="add_or_remove_one") == math.inf


def test_other_questions_are_other_answers(ledger) -> None:
    replay = Replay(ledger)

    found = [
        replay.claim(delta=DELTA),
        replay.claim(delta=DELTA / 10),
        replay.claim(delta=DELTA, units=3),
        replay.claim(delta=DELTA, accountant=RDP()),
        replay.claim(delta=DELTA, neighbours="zero_out"),
    ]

    assert len({each.epsilon for each in found}) == 5


def test_parts_keep_the_unit(ledger) -> None:
    replay = Replay(ledger)
    parts = [
        replay.of([(FULL, 1)]),
        replay.plus([(FULL, 1)]),
        replay.until(2),
        replay.that_count().together,
    ]

    assert {each.rows_per_unit for each in parts} == {2}
    assert Replay(ledger.rounds).rows_per_unit == 1  # The control.


def test_what_counts_is_the_plan_that_was_kept(ledger) -> None:
    found = Replay(ledger).that_count()

    assert found.kept == (True, False)
    assert found.neighbours == "replace_one"
    assert found.together.rounds == ((FULL, 10), (OWN, 3))


@pytest.mark.parametrize(
    ("ran", "covered"),
    [
        ([(1.0, 2)], True),
        ([(1.0, 3)], False),
        ([(1.0, 1), (2.0, 5)], True),
        ([(1.0, 1), (2.0, 7)], False),
        ([(4.0, 39)], True),
        ([(4.0, 41)], False),
        ([(0.0, 1)], False),
    ],
)
def test_a_plan_covers_sums_that_cost_no_more_together(ran, covered) -> None:
    def sums(*counted):
        return [
            (Round(FullDataset(), (GaussianSum("sum", 1.0, noise),)), count)
            for noise, count in counted
        ]

    assert covers(sums((2.0, 10)), sums(*ran), "replace_one") == covered


def test_does_not_grow_with_its_ledger(ledger) -> None:
    replay = Replay(ledger)
    before = replay.claim(delta=DELTA)

    ledger.record(FULL.sampling, FULL.queries)

    assert replay.claim(delta=DELTA / 2).epsilon > before.epsilon
    assert len(replay.runs) == 2
    assert replay_of(replay) is replay
    assert Replay(ledger).claim(delta=DELTA).epsilon > before.epsilon


def test_accountants_answer_to_it(ledger) -> None:
    assert Fourier().epsilon(Replay(ledger), delta=DELTA) == Fourier().epsilon(
        ledger, delta=DELTA
    )


def test_is_of_one_moment(tmp_path, monkeypatch) -> None:
    """Another process records a round after each read."""
    path = tmp_path / "d.ledger"
    with (
        PrivacyLedger.open(path, dataset="d") as other,
        other.start_run("other") as run,
        PrivacyLedger.open(path, mode="r") as ledger,
    ):
        reading = type(ledger._handle).reading

        @contextlib.contextmanager
        def then_written(handle):
            with reading(handle) as database:
                yield database
            if handle is ledger._handle:
                run.record(FULL.sampling, FULL.queries)

        monkeypatch.setattr(type(ledger._handle), "reading", then_written)

        def counted(held):
            rounds = sum(part.count for part in held.rounds)
            return rounds, sum(map(len, held.runs))

        for _ in range(2):
            of_rounds, of_runs = counted(Replay(ledger))
            assert of_rounds == of_runs
        of_rounds, of_runs = counted(ledger)
        assert of_rounds < of_runs  # The control: two questions.
