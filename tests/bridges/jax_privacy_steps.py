"""Steps of the real JAX Privacy in a ledger; `test_bridges.py` runs this."""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import logging
import signal
import subprocess
import sys

import dp_accounting
import jax
import jax.numpy as jnp
import jax_privacy
import numpy as np
import optax
import pytest
from jax_privacy import batch_selection, clipping, noise_addition
from jax_privacy.experimental.execution_plan import BandMFExecutionPlanConfig

from keras_dp import budgets
from keras_dp.accountants import Fourier
from keras_dp.bridges.jax_privacy import DeclaredSteps, recorded_batches
from keras_dp.errors import BudgetExceededError, PrivateTrainingError
from keras_dp.ledger import (
    BandedToeplitz,
    GaussianSum,
    PoissonSampling,
    PrivacyLedger,
    TruncatedPoissonSampling,
)
from keras_dp.reporting.certificate import certify
from keras_dp.spending import RunDetails

DELTA = 1e-5
RECORDS = 400
Relation = dp_accounting.NeighboringRelation


@pytest.fixture
def ledger():
    return PrivacyLedger.in_memory(dataset="d")


def config(**options) -> BandMFExecutionPlanConfig:
    return BandMFExecutionPlanConfig(
        **{
            "strategy": np.array([1.0]),
            "iterations": 12,
            "noise_multiplier": 2.0,
            "epsilon": None,
            "delta": None,
            "sampling_prob": 0.1,
            **options,
        }
    )


def banded(**options) -> BandMFExecutionPlanConfig:
    """Returns a plan of two bands; twelve steps are six cycles."""
    return config(
        **{
            "strategy": np.array([0.5, 0.25]),
            "partition_type": batch_selection.PartitionType.INDEPENDENT,
            **options,
        }
    )


def loss(weights, x, y):
    return ((x @ weights - y) ** 2).mean()


def declared(**options) -> DeclaredSteps:
    clip = {"l2_clip_norm": 3.0, "normalize_by": 40, "batch_argnums": (1, 2)}
    return DeclaredSteps(
        **{
            "samples": batch_selection.CyclicPoissonSampling(0.1, 12),
            "gradients": clipping.clipped_grad(loss, **clip),
            "stddev": 6 / 40,
            **options,
        }
    )


def train(plan, ledger, steps=None, **options):
    """Trains as users of JAX Privacy do; returns the steps and the weights."""
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.normal(size=(RECORDS, 5)))
    y = x[:, 0]
    weights = jnp.zeros(5)
    if isinstance(plan, DeclaredSteps):
        gradients = plan.gradients
        noise = noise_addition.gaussian_privatizer(stddev=plan.stddev)
    else:
        gradients = plan.plan.clipped_grad(loss, batch_argnums=(1, 2))
        noise = plan.plan.noise_addition_transform
    optimizer = optax.chain(noise, optax.sgd(0.001))
    state = optimizer.init(weights)
    ran = 0
    for rows in recorded_batches(plan, ledger, RECORDS, **options):
        rows = batch_selection.pad_to_multiple_of(rows, 64)
        answer = gradients(
            weights, x[rows], y[rows], is_padding_example=rows == -1
        )
        updates, state = optimizer.update(answer, state)
        weights = optax.apply_updates(weights, updates)
        ran += 1
        if ran == steps:
            break
    return ran, weights


class TestRounds:
    @pytest.mark.parametrize(
        ("relation", "noise"),
        [
            (Relation.REPLACE_SPECIAL, 2.0),
            (Relation.ADD_OR_REMOVE_ONE, 2.0),
            (Relation.REPLACE_ONE, 4.0),
        ],
    )
    def test_are_those_of_the_plan(self, ledger, relation, noise) -> None:
        options = {}
        if relation is Relation.ADD_OR_REMOVE_ONE:
            options["partition_type"] = (
                batch_selection.PartitionType.INDEPENDENT
            )
        plan = config(
            accountant=dp_accounting.pld.PLDAccountant(relation), **options
        )

        assert train(plan, ledger)[0] == 12

        (run,) = ledger.runs
        ((round_, count),) = run.rounds
        assert (run.outcome, count, run.plan[0].count) == ("finished", 12, 12)
        assert round_.sampling == PoissonSampling(0.1)
        assert round_.queries == (GaussianSum("gradients", 1.0, noise),)
        assert run.start.library == f"jax_privacy {jax_privacy.__version__}"
        assert dict(run.start.author.versions)["jax"] == jax.__version__
        assert not round_.seeded
        assert budgets.guarantee(ledger, delta=DELTA).basis == "plan"

    def test_cost_what_the_accountant_of_the_plan_says(self, ledger) -> None:
        plan = BandMFExecutionPlanConfig.default(
            num_bands=1,
            iterations=100,
            epsilon=1.0,
            delta=DELTA,
            sampling_prob=0.1,
            l2_clip_norm=5.0,
            normalize_by=40.0,
            rescale_to_unit_norm=False,
            noise_seed=3,
        )
        train(plan, ledger)

        epsilon = Fourier().epsilon(
            ledger, delta=DELTA, neighbours="add_or_remove_one"
        )
        assert epsilon == pytest.approx(1.0, abs=0.01)
        ((round_, count),) = ledger.rounds
        assert count == 100
        assert round_.queries[0].l2_norm_bound == 5.0 / 40
        assert round_.seeded
        assert ledger.runs[0].delta == DELTA

    def test_have_the_noise_that_is_drawn(self, ledger) -> None:
        """With a control: half of the noise would be noticed."""
        plan = config(l2_clip_norm=5.0, rescale_to_unit_norm=False)
        train(plan, ledger, steps=1)
        noise = plan.plan.noise_addition_transform
        zeros = jnp.zeros(20_000)

        drawn, _ = noise.update(zeros, noise.init(zeros))

        stddev = ledger.rounds[0].round.queries[0].noise_stddev
        assert stddev == 10.0
        # 20 000 draws have a relative standard error of 0.5 %.
        assert float(drawn.std()) == pytest.approx(stddev, rel=0.05)
        assert float(drawn.std()) != pytest.approx(stddev / 2, rel=0.05)

    def test_of_one_band_have_its_noise_whatever_its_scale(
        self, ledger
    ) -> None:
        train(config(strategy=np.array([0.25])), ledger, steps=1)

        (query,) = ledger.rounds[0].round.queries
        assert query == GaussianSum("gradients", 1.0, 2.0)

    def test_are_declared_without_a_plan(self, ledger) -> None:
        assert train(declared(), ledger)[0] == 12

        ((round_, count),) = ledger.rounds
        (query,) = round_.queries
        assert count == 12
        assert query.l2_norm_bound == 3 / 40
        assert query.noise_stddev == 6 / 40
        assert round_.seeded

    def test_of_truncated_samples(self, ledger) -> None:
        plan = config(truncated_batch_size=48, num_examples=RECORDS)
        train(plan, ledger)

        sampling = ledger.rounds[0].round.sampling
        assert sampling == TruncatedPoissonSampling(0.1, 48, RECORDS)
        assert ledger.rounds[0].round.queries[0].noise_stddev == 2.0

    def test_are_covered_before_their_batch_is_there(self, ledger) -> None:
        batches = recorded_batches(config(), ledger, RECORDS)
        assert len(ledger) == 0

        for ran, _ in enumerate(batches, 1):
            assert len(ledger) >= ran
        assert len(ledger) == 12

    def test_of_a_chosen_sample_say_so(self, ledger) -> None:
        train(config(), ledger, rng=0)

        assert ledger.rounds[0].round.seeded


class TestCorrelatedRounds:
    def test_are_those_of_the_plan(self, ledger) -> None:
        assert train(banded(iterations=11), ledger)[0] == 11

        (run,) = ledger.runs
        assert (run.outcome, len(run)) == ("finished", 11)
        assert [each.count for each in run.rounds] == [2, 2, 2, 2, 2, 1]
        cycles = [each.round.sampling for each in run.rounds]
        assert [each.cycle for each in cycles] == [*range(6)]
        assert len({each.draw_id for each in cycles}) == 1
        assert {(each.classes, each.probability) for each in cycles} == {
            (2, 0.1)
        }
        ((query,),) = {each.round.queries for each in run.rounds}
        assert query.strategy == BandedToeplitz((1.0, 0.5))
        assert query.noise_stddev == pytest.approx(2.0 * np.sqrt(1.25))
        assert (query.l2_norm_bound, query.rounds) == (1.0, 11)
        assert budgets.guarantee(ledger, delta=DELTA).basis == "plan"

    def test_cost_what_the_accountant_of_the_plan_says(self, ledger) -> None:
        plan = BandMFExecutionPlanConfig.default(
            num_bands=4,
            iterations=40,
            epsilon=1.0,
            delta=DELTA,
            sampling_prob=0.4,
            partition_type=batch_selection.PartitionType.INDEPENDENT,
        )
        train(plan, ledger)

        epsilon = Fourier().epsilon(
            ledger, delta=DELTA, neighbours="add_or_remove_one"
        )
        assert epsilon == pytest.approx(1.0, abs=0.01)

    def test_have_the_noise_that_is_drawn(self, ledger) -> None:
        """With a control: the noise of the plan is not independent."""
        plan = banded()
        train(plan, ledger, steps=1)
        (query,) = ledger.rounds[0].round.queries
        noise = plan.plan.noise_addition_transform
        zeros = jnp.zeros(20_000)

        state, rows = noise.init(zeros), []
        for _ in range(3):
            drawn, state = noise.update(zeros, state)
            rows.append(np.asarray(drawn))

        draws = query.strategy.matrix(3) @ rows
        # 20 000 draws have a relative standard error of 0.5 %.
        np.testing.assert_allclose(draws.std(1), query.noise_stddev, rtol=0.05)
        assert abs(np.corrcoef(draws)[0, 1]) < 0.05
        assert np.corrcoef(rows)[0, 1] < -0.3

    def test_are_all_paid_for_by_the_first(self, ledger) -> None:
        assert train(banded(), ledger, steps=1)[0] == 1
        whole = PrivacyLedger.in_memory(dataset="whole")
        train(banded(), whole)

        assert Fourier().epsilon(ledger, delta=DELTA) == pytest.approx(
            Fourier().epsilon(whole, delta=DELTA)
        )

    def test_are_not_continued(self, ledger) -> None:
        train(banded(), ledger, steps=3)

        with pytest.raises(ValueError, match="`run` must be a new run"):
            train(banded(), ledger, run=RunDetails(continues=1))
        assert len(ledger) == 3

    def test_need_room_for_all_of_them(self, ledger) -> None:
        batches = recorded_batches(
            banded(), ledger, RECORDS, target_epsilon=0.01, delta=DELTA
        )
        with pytest.raises(BudgetExceededError, match="No round ran"):
            next(batches)
        assert len(ledger) == 0


class TestEnds:
    def test_before_the_target_is_exceeded(self, ledger, caplog) -> None:
        plan = config(iterations=5_000)
        with caplog.at_level(logging.WARNING):
            for _ in recorded_batches(
                plan, ledger, RECORDS, target_epsilon=1.0, delta=DELTA
            ):
                pass

        (run,) = ledger.runs
        ((round_, count),) = run.rounds
        assert run.outcome == "budget"
        assert 0 < count < 5_000
        assert budgets.guarantee(ledger, delta=DELTA).claim.epsilon <= 1.0
        assert Fourier().epsilon([(round_, count + 1)], delta=DELTA) > 1.0
        assert f"Training ends after {count} steps" in caplog.text

    def test_before_a_target_that_leaves_no_room_at_all(self, ledger) -> None:
        batches = recorded_batches(
            config(), ledger, RECORDS, target_epsilon=0.01, delta=DELTA
        )
        with pytest.raises(BudgetExceededError, match="No round ran"):
            next(batches)
        assert len(ledger) == 0

    def test_before_its_account_is_exceeded(self, ledger) -> None:
        other = PrivacyLedger.in_memory(dataset="other")
        train(config(), other, steps=1)
        ((round_, _),) = other.rounds
        budgets.open_account(
            ledger, "all", budgets.FixedPlan([(round_, 5)], 3.0, DELTA)
        )

        assert train(config(), ledger)[0] == 5
        assert ledger.runs[0].outcome == "budget"

    def test_where_the_loop_is_left(self, ledger) -> None:
        assert train(config(), ledger, steps=3)[0] == 3

        (run,) = ledger.runs
        assert (run.outcome, len(run), run.unsettled) == ("stopped", 3, 0)
        assert run.rest.count == 9
        ran, _ = train(config(), ledger, run=RunDetails(continues=1))
        assert ran == 9
        assert [each.outcome for each in ledger.runs] == ["finished"]

    def test_of_a_run_with_other_rounds(self, ledger) -> None:
        train(config(), ledger, steps=3)

        with pytest.raises(PrivateTrainingError, match="must have the rounds"):
            train(
                config(noise_multiplier=0.5),
                ledger,
                run=RunDetails(continues=1),
            )
        assert len(ledger) == 3


class TestWrongUse:
    @pytest.mark.parametrize(
        ("make", "error", "match"),
        [
            (lambda: config().plan, TypeError, "`plan` must be"),
            (lambda: None, TypeError, "`plan` must be"),
            (
                lambda: config(strategy=np.array([1.0, 0.5])),
                ValueError,
                "PartitionType.INDEPENDENT",
            ),
            (
                lambda: banded(
                    partition_type=batch_selection.PartitionType.EQUAL_SPLIT,
                    truncated_batch_size=48,
                    num_examples=RECORDS,
                ),
                ValueError,
                "truncated_batch_size=48",
            ),
            (
                lambda: config(strategy=np.array([1.0]), column_normalize=True),
                ValueError,
                "column_normalize=True",
            ),
            (
                lambda: config(truncated_batch_size=48, num_examples=399),
                ValueError,
                "`num_examples` must be 399",
            ),
            (
                lambda: declared(gradients=jax.jit(jax.grad(loss))),
                TypeError,
                "`gradients`",
            ),
            (lambda: declared(samples=None), TypeError, "`samples`"),
            (
                lambda: declared(
                    samples=batch_selection.CyclicPoissonSampling(
                        0.1, 12, cycle_length=3
                    )
                ),
                ValueError,
                "one cycle",
            ),
            (lambda: declared(stddev=-1.0), ValueError, "noise_stddev"),
        ],
    )
    def test_is_refused_at_once(self, ledger, make, error, match) -> None:
        with pytest.raises(error, match=match):
            recorded_batches(make(), ledger, RECORDS)
        assert ledger.verify().rows == 0


KILLED = """
import os, signal, sys
sys.path.insert(0, {root!r})
from tests.bridges.jax_privacy_steps import config, recorded_batches
from keras_dp.ledger import PrivacyLedger

ledger = PrivacyLedger.open({path!r}, dataset="d")
plan = config(iterations=500)
for ran, rows in enumerate(recorded_batches(plan, ledger, 400), 1):
    os.write(1, b"released\\n")
    if ran == 6:
        os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_kill_leaves_every_release_covered_and_the_run_goes_on(
    tmp_path,
) -> None:
    path = str(tmp_path / "l.ledger")
    ran = subprocess.run(
        [sys.executable, "-c", KILLED.format(root=os.getcwd(), path=path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == -signal.SIGKILL, ran.stderr
    released = ran.stdout.count("released")
    assert released == 6

    with PrivacyLedger.open(path) as ledger:
        (run,) = ledger.runs
        assert run.state == "died"
        left = 500 - len(run)
        assert released <= len(run) < 500
        again = list(
            recorded_batches(
                config(iterations=500),
                ledger,
                RECORDS,
                run=RunDetails(continues=run.number),
            )
        )
        assert len(again) == left
        (run,) = ledger.runs
        assert (run.outcome, len(run)) == ("finished", 500)
        certificate = certify(ledger, delta=DELTA)
        assert "jax_privacy" in "\n".join(certificate.sentences)
        certificate.check(ledger)
