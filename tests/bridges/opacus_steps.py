"""Steps of the real Opacus in a ledger; `test_bridges.py` runs this there."""

import logging
import math
import os
import signal
import subprocess
import sys
import warnings

import opacus
import pytest
import torch
from opacus import schedulers
from opacus.optimizers import DPOptimizer
from opacus.utils.batch_memory_manager import BatchMemoryManager
from opacus.utils.uniform_sampler import UniformWithReplacementSampler

from keras_dp import budgets
from keras_dp.accountants import Fourier
from keras_dp.bridges.opacus import recorded_steps
from keras_dp.errors import BudgetExceededError, PrivateTrainingError
from keras_dp.ledger import (
    DisjointBatches,
    FixedSizeWithoutReplacement,
    GaussianSum,
    PoissonSampling,
    PrivacyLedger,
    UnverifiedSampling,
)
from keras_dp.reporting.certificate import certify
from keras_dp.reporting.report import make_report
from keras_dp.spending import RunDetails

DELTA = 1e-5
RECORDS, BATCH = 400, 40


@pytest.fixture(autouse=True)
def quiet():
    """Opacus warns that its generator is not secure, PyTorch of hooks."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.seed()
        yield


@pytest.fixture
def ledger():
    return PrivacyLedger.in_memory(dataset="d")


class Training:
    """An Opacus training as its users write it."""

    def __init__(self, **options) -> None:
        generator = torch.Generator().manual_seed(0)
        x = torch.randn(RECORDS, 5, generator=generator)
        data = torch.utils.data.TensorDataset(x, (x[:, 0] > 0).long())
        module = torch.nn.Linear(5, 2)
        loss = torch.nn.CrossEntropyLoss(
            reduction=options.get("loss_reduction", "mean")
        )
        made = opacus.PrivacyEngine().make_private(
            module=module,
            optimizer=torch.optim.SGD(module.parameters(), lr=0.1),
            criterion=loss,
            data_loader=options.pop(
                "loader", torch.utils.data.DataLoader(data, BATCH)
            ),
            **{"noise_multiplier": 1.0, "max_grad_norm": 1.0, **options},
        )
        self.module, self.optimizer, *criterion, self.loader = made
        (self.criterion,) = criterion or [loss]

    def gradients(self, x, y) -> None:
        self.criterion(self.module(x), y).backward()

    def step(self, x, y) -> None:
        self.optimizer.zero_grad()
        self.gradients(x, y)
        self.optimizer.step()

    def epoch(self, loader=None) -> None:
        for batch in self.loader if loader is None else loader:
            self.step(*batch)

    def batch(self):
        return next(iter(self.loader))


def weights(training):
    return [p.detach().clone() for p in training.module.parameters()]


class TestRounds:
    @pytest.mark.parametrize("mode", ["hooks", "ew", "ghost"])
    @pytest.mark.parametrize("reduction", ["mean", "sum"])
    def test_are_those_of_the_training(self, ledger, mode, reduction) -> None:
        training = Training(
            grad_sample_mode=mode,
            noise_multiplier=2.0,
            max_grad_norm=0.5,
            loss_reduction=reduction,
        )
        steps = 2 * len(training.loader)

        with recorded_steps(
            training.optimizer, training.loader, ledger, steps=steps
        ):
            training.epoch()
            training.epoch()

        (run,) = ledger.runs
        ((round_, count),) = run.rounds
        assert count == steps == 20
        assert round_.queries == (GaussianSum("gradients", 0.5, 1.0),)
        assert not round_.seeded
        assert round_.sampling.probability == pytest.approx(0.1, abs=2**-24)
        assert not round_.sampling.drawn_by_library
        assert run.start.library == f"opacus {opacus.__version__}"
        assert dict(run.start.author.versions)["torch"] == torch.__version__
        assert (run.outcome, run.plan[0].count) == ("finished", 20)

    def test_cost_what_the_accountant_of_opacus_says(self, ledger) -> None:
        engine = opacus.PrivacyEngine(accountant="rdp")
        module = torch.nn.Linear(5, 2)
        x = torch.randn(RECORDS, 5)
        data = torch.utils.data.TensorDataset(x, (x[:, 0] > 0).long())
        module, optimizer, loader = engine.make_private(
            module=module,
            optimizer=torch.optim.SGD(module.parameters(), lr=0.1),
            data_loader=torch.utils.data.DataLoader(data, BATCH),
            noise_multiplier=1.1,
            max_grad_norm=1.0,
        )
        with recorded_steps(optimizer, loader, ledger):
            for x, y in loader:
                optimizer.zero_grad()
                torch.nn.functional.cross_entropy(module(x), y).backward()
                optimizer.step()

        assert engine.accountant.history == [(1.1, 0.1, 10)]
        prv = opacus.accountants.PRVAccountant()
        prv.history = engine.accountant.history
        theirs = prv.get_epsilon(DELTA)
        ours = Fourier().epsilon(ledger, delta=DELTA)
        # Theirs has an error of 0.01 of its own; ours is certified.
        assert ours == pytest.approx(theirs, abs=0.011)
        assert engine.get_epsilon(DELTA) >= ours

    def test_have_the_rate_at_which_samples_are_drawn(self, ledger) -> None:
        """All numbers that PyTorch can draw are counted."""
        above = 0
        for rate in (0.1, 1 / 3, 1 / 7, 2**-10, 0.9999):
            training = Training()
            training.loader.batch_sampler.sample_rate = rate
            with recorded_steps(training.optimizer, training.loader, ledger):
                training.step(*training.batch())

            drawn = torch.arange(2**24, dtype=torch.float32) * 2.0**-24
            taken = int((drawn < rate).sum())
            recorded = ledger.rounds[-1].round.sampling.probability * 2**24
            assert taken <= recorded <= taken + 1
            above += taken > rate * 2**24
        assert above  # The rate itself would not do.

    def test_are_samples_and_not_physical_batches(self, ledger) -> None:
        training = Training()
        with (
            recorded_steps(training.optimizer, training.loader, ledger),
            BatchMemoryManager(
                data_loader=training.loader,
                max_physical_batch_size=8,
                optimizer=training.optimizer,
            ) as batches,
        ):
            physical = 0
            for batch in batches:
                physical += 1
                training.gradients(*batch)
                training.optimizer.step()
                training.optimizer.zero_grad()

        assert len(ledger) == len(training.loader) == 10 < physical

    def test_of_the_loader_of_a_memory_manager(self, ledger) -> None:
        training = Training()
        with (
            BatchMemoryManager(
                data_loader=training.loader,
                max_physical_batch_size=8,
                optimizer=training.optimizer,
            ) as batches,
            recorded_steps(training.optimizer, batches, ledger),
        ):
            for batch in batches:
                training.gradients(*batch)
                training.optimizer.step()
                training.optimizer.zero_grad()

        ((round_, count),) = ledger.rounds
        assert count == 10
        assert round_.sampling.probability == pytest.approx(0.1, abs=2**-24)

    def test_of_layers_have_the_norm_of_all_clips(self, ledger) -> None:
        training = Training(clipping="per_layer", max_grad_norm=[3.0, 4.0])
        with recorded_steps(training.optimizer, training.loader, ledger):
            training.step(*training.batch())

        (query,) = ledger.rounds[0].round.queries
        assert query.l2_norm_bound == 5.0
        assert query.noise_stddev == pytest.approx(5.0, rel=1e-6)

    def test_have_the_noise_that_a_scheduler_gives_them(self, ledger) -> None:
        training = Training(noise_multiplier=4.0)
        scheduler = schedulers.StepNoise(
            training.optimizer, step_size=2, gamma=0.5
        )
        clips = schedulers.LambdaGradClip(
            training.optimizer, scheduler_function=lambda epoch: 1.0 + epoch
        )
        with recorded_steps(training.optimizer, training.loader, ledger):
            for _ in range(4):
                training.step(*training.batch())
                scheduler.step()
                clips.step()

        assert [
            (each.queries[0].l2_norm_bound, each.queries[0].noise_stddev)
            for each, _ in ledger.rounds
        ] == [(1, 4), (2, 8), (3, 6), (4, 8)]

    def test_are_bounded_by_the_largest_clip_of_their_sample(
        self, ledger
    ) -> None:
        training = Training()
        with recorded_steps(training.optimizer, training.loader, ledger):
            for skip, clip in ((True, 3.0), (False, 1.0)):
                training.optimizer.signal_skip_step(do_skip=skip)
                training.optimizer.max_grad_norm = clip
                training.gradients(*training.batch())
                training.optimizer.step()
                training.optimizer.zero_grad()

        assert ledger.rounds[0].round.queries == (
            GaussianSum("gradients", 3.0, 1.0),
        )

    def test_with_the_noise_of_opacus_change_the_weights(self, ledger) -> None:
        training = Training(noise_multiplier=0.0)
        plain = torch.nn.Linear(5, 2)
        plain.load_state_dict(training.module._module.state_dict())
        x, y = training.batch()
        with recorded_steps(training.optimizer, training.loader, ledger):
            training.step(x, y)

        torch.nn.functional.cross_entropy(plain(x), y).backward()
        moved = training.module._module.weight - plain.weight
        norm = torch.linalg.vector_norm(moved.detach())
        assert norm > 0
        assert Fourier().epsilon(ledger, delta=DELTA) == math.inf

    @pytest.mark.parametrize("where", ["noise", "global"])
    def test_with_a_chosen_seed_say_so(self, ledger, where) -> None:
        if where == "global":
            torch.manual_seed(7)
            training = Training()
        else:
            training = Training(
                noise_generator=torch.Generator().manual_seed(7)
            )
        with recorded_steps(training.optimizer, training.loader, ledger):
            training.step(*training.batch())

        assert ledger.rounds[0].round.seeded
        found = make_report(ledger, delta=DELTA).cautions
        assert any("seed that the caller chose" in each for each in found)


class TestOtherSamples:
    def test_of_a_shuffled_loader_are_not_amplified(self, ledger) -> None:
        data = Training().loader.dataset
        loader = torch.utils.data.DataLoader(data, BATCH, shuffle=True)
        training = Training(loader=loader, poisson_sampling=False)

        with recorded_steps(training.optimizer, training.loader, ledger):
            training.epoch()

        assert ledger.rounds[0].round.sampling == UnverifiedSampling()
        assert Fourier().epsilon(ledger, delta=DELTA) > 5

    def test_with_replacement_are_refused(self, ledger) -> None:
        data = Training().loader.dataset
        for sampler in (
            torch.utils.data.RandomSampler(data, replacement=True),
            torch.utils.data.RandomSampler(data, num_samples=2 * RECORDS),
            torch.utils.data.WeightedRandomSampler([1.0] * RECORDS, RECORDS),
        ):
            loader = torch.utils.data.DataLoader(data, BATCH, sampler=sampler)
            training = Training(loader=loader, poisson_sampling=False)
            with (
                pytest.raises(TypeError, match="`data_loader` must draw"),
                recorded_steps(training.optimizer, training.loader, ledger),
            ):
                pass

    def test_are_recorded_as_declared(self, ledger) -> None:
        data = Training().loader.dataset
        loader = torch.utils.data.DataLoader(
            data, batch_sampler=[list(range(40))] * 3
        )
        training = Training(loader=loader, poisson_sampling=False)
        declared = FixedSizeWithoutReplacement(40, RECORDS)
        with recorded_steps(
            training.optimizer, training.loader, ledger, sampling=declared
        ):
            training.epoch()

        assert ledger.rounds[0].round.sampling == declared

    @pytest.mark.parametrize(
        "declared",
        [PoissonSampling(0.01), DisjointBatches("a"), UnverifiedSampling()],
    )
    def test_are_not_declared_beside_those_that_are_seen(
        self, ledger, declared
    ) -> None:
        training = Training()
        with (
            pytest.raises(ValueError, match="`sampling` must be None"),
            recorded_steps(
                training.optimizer, training.loader, ledger, sampling=declared
            ),
        ):
            pass

    @pytest.mark.parametrize(
        "declared", [DisjointBatches("a"), PoissonSampling(0.1, True)]
    )
    def test_are_not_declared_as_what_they_cannot_be(
        self, ledger, declared
    ) -> None:
        data = Training().loader.dataset
        loader = torch.utils.data.DataLoader(data, batch_sampler=[[1, 2]])
        training = Training(loader=loader, poisson_sampling=False)
        with (
            pytest.raises(ValueError, match="`sampling` must say"),
            recorded_steps(
                training.optimizer, training.loader, ledger, sampling=declared
            ),
        ):
            pass


class TestEnds:
    def test_before_the_target_is_exceeded(self, ledger, caplog) -> None:
        training = Training(noise_multiplier=2.0)
        with (
            caplog.at_level(logging.WARNING),
            recorded_steps(
                training.optimizer,
                training.loader,
                ledger,
                steps=10_000,
                target_epsilon=1.0,
                delta=DELTA,
            ),
        ):
            for _ in range(1_000):
                training.epoch()

        (run,) = ledger.runs
        assert run.outcome == "budget"
        assert run.plan[0].count == len(run) > 0
        found = budgets.guarantee(ledger, delta=DELTA)
        assert found.claim.epsilon <= 1.0
        assert found.basis == "plan"
        ((round_, count),) = run.rounds
        assert Fourier().epsilon([(round_, count + 1)], delta=DELTA) > 1.0
        assert f"Training ends after {count} steps" in caplog.text

    def test_before_a_target_that_leaves_no_room_at_all(self, ledger) -> None:
        training = Training(noise_multiplier=0.5)
        before = weights(training)
        with (
            pytest.raises(BudgetExceededError, match="No round ran"),
            recorded_steps(
                training.optimizer,
                training.loader,
                ledger,
                target_epsilon=0.1,
                delta=DELTA,
            ),
        ):
            training.epoch()

        assert len(ledger) == 0
        assert all(map(torch.equal, before, weights(training)))

    def test_before_its_account_is_exceeded(self, ledger) -> None:
        training = Training(noise_multiplier=4.0)
        other = PrivacyLedger.in_memory(dataset="other")
        with recorded_steps(training.optimizer, training.loader, other):
            training.step(*training.batch())
        ((round_, _),) = other.rounds
        budgets.open_account(
            ledger, "all", budgets.FixedPlan([(round_, 5)], 3.0, DELTA)
        )

        with recorded_steps(training.optimizer, training.loader, ledger):
            training.epoch()

        assert len(ledger) == 5
        assert ledger.runs[0].outcome == "budget"
        assert budgets.guarantee(ledger, delta=DELTA).basis == "account"

    def test_after_its_steps(self, ledger) -> None:
        training = Training()
        with recorded_steps(
            training.optimizer, training.loader, ledger, steps=7
        ):
            training.epoch()

        (run,) = ledger.runs
        assert (run.outcome, len(run)) == ("finished", 7)

    def test_with_an_error_of_the_program(self, ledger) -> None:
        training = Training()

        def train() -> None:
            with recorded_steps(
                training.optimizer, training.loader, ledger, steps=9
            ):
                training.step(*training.batch())
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            train()

        (run,) = ledger.runs
        assert (run.outcome, len(run), run.unsettled) == ("failed", 1, 0)

    def test_for_good_and_not_only_for_the_ledger(self, ledger) -> None:
        training = Training()
        with recorded_steps(training.optimizer, training.loader, ledger):
            training.step(*training.batch())

        after = weights(training)
        with pytest.raises(PrivateTrainingError, match="must be recorded"):
            training.step(*training.batch())
        assert all(map(torch.equal, after, weights(training)))
        training.optimizer.zero_grad()
        with recorded_steps(training.optimizer, training.loader, ledger):
            training.step(*training.batch())
        assert [len(run) for run in ledger.runs] == [1, 1]


class TestWrongUse:
    @pytest.mark.parametrize(
        ("kind", "match"),
        [
            ("plain", "make_private returned"),
            ("adaptive", "exact number of records"),
            ("own", "one process"),
        ],
    )
    def test_of_an_optimizer(self, ledger, kind, match) -> None:
        training = Training()
        optimizer = training.optimizer.original_optimizer
        if kind == "adaptive":
            optimizer = Training(
                clipping="adaptive",
                target_unclipped_quantile=0.5,
                clipbound_learning_rate=0.2,
                max_clipbound=10.0,
                min_clipbound=0.1,
                unclipped_num_std=4.0,
            ).optimizer
        elif kind == "own":

            class Own(DPOptimizer):
                pass

            optimizer = Own(
                optimizer,
                noise_multiplier=1.0,
                max_grad_norm=1.0,
                expected_batch_size=BATCH,
            )

        with (
            pytest.raises(TypeError, match=match),
            recorded_steps(optimizer, training.loader, ledger),
        ):
            pass
        assert ledger.verify().rows == 0

    @pytest.mark.parametrize("loader", [None, [1, 2]])
    def test_of_a_loader(self, ledger, loader) -> None:
        with (
            pytest.raises(TypeError, match="`data_loader` must be"),
            recorded_steps(Training().optimizer, loader, ledger),
        ):
            pass

    def test_of_a_loader_that_makes_up_records(self, ledger) -> None:
        training = Training(rand_on_empty=True)
        with (
            pytest.raises(ValueError, match="`rand_on_empty`"),
            recorded_steps(training.optimizer, training.loader, ledger),
        ):
            pass

    def test_of_a_dtype_in_which_samples_are_too_large(self, ledger) -> None:
        """In float32 they are of the size that the rate says."""
        sampler = UniformWithReplacementSampler(
            num_samples=1_000_000, sample_rate=0.001, steps=1
        )
        (sample,) = sampler
        # A binomial number, with a standard deviation of 32.
        assert len(sample) == pytest.approx(1_000, abs=6 * 32)
        training = Training()
        torch.set_default_dtype(torch.bfloat16)
        try:
            (sample,) = sampler
            assert len(sample) > 2_000
            with (
                pytest.raises(ValueError, match="default dtype"),
                recorded_steps(training.optimizer, training.loader, ledger),
            ):
                pass
        finally:
            torch.set_default_dtype(torch.float32)

    def test_of_several_processes(self, ledger, monkeypatch, tmp_path) -> None:
        """With a control: a group of one process is none."""
        from torch import distributed

        training = Training()
        distributed.init_process_group(
            "gloo", f"file://{tmp_path}/group", rank=0, world_size=1
        )
        try:
            with recorded_steps(training.optimizer, training.loader, ledger):
                training.step(*training.batch())
            monkeypatch.setattr(distributed, "get_world_size", lambda: 2)
            with (
                pytest.raises(PrivateTrainingError, match="world_size=2"),
                recorded_steps(training.optimizer, training.loader, ledger),
            ):
                pass
        finally:
            distributed.destroy_process_group()
        assert len(ledger) == 1

    def test_of_another_version(self, ledger, monkeypatch) -> None:
        training = Training()
        monkeypatch.setattr(opacus, "__version__", "1.7.0")
        with (
            pytest.raises(ImportError, match="needs Opacus"),
            recorded_steps(training.optimizer, training.loader, ledger),
        ):
            pass

    def test_of_one_sample_for_two_optimizers(self, ledger) -> None:
        first, second = Training(), Training()
        with (
            recorded_steps(first.optimizer, first.loader, ledger),
            pytest.raises(PrivateTrainingError, match="recorded already"),
            recorded_steps(second.optimizer, first.loader, ledger),
        ):
            pass
        # Each with samples of its own is fine.
        with (
            recorded_steps(first.optimizer, first.loader, ledger),
            recorded_steps(second.optimizer, second.loader, ledger),
        ):
            first.step(*first.batch())
            second.step(*second.batch())
        assert len(ledger) == 2

    def test_of_one_optimizer_for_two_ledgers(self, ledger) -> None:
        training = Training()
        other = PrivacyLedger.in_memory(dataset="other")
        with (
            recorded_steps(training.optimizer, training.loader, ledger),
            pytest.raises(PrivateTrainingError, match="recorded already"),
            recorded_steps(training.optimizer, Training().loader, other),
        ):
            pass

    @pytest.mark.parametrize(
        ("name", "value"),
        [("expected_batch_size", 39), ("loss_reduction", "sum")],
    )
    def test_of_what_it_is_averaged_over(self, ledger, name, value) -> None:
        training = Training()
        with recorded_steps(training.optimizer, training.loader, ledger):
            training.step(*training.batch())
            setattr(training.optimizer, name, value)
            before = weights(training)
            with pytest.raises(PrivateTrainingError, match="must stay the"):
                training.step(*training.batch())
            assert all(map(torch.equal, before, weights(training)))

        assert len(ledger) == 1

    def test_of_several_batches_for_one_step(self, ledger) -> None:
        """Opacus itself refuses that of Poisson samples."""
        loader = torch.utils.data.DataLoader(Training().loader.dataset, BATCH)
        training = Training(loader=loader, poisson_sampling=False)
        with recorded_steps(training.optimizer, training.loader, ledger):
            training.gradients(*training.batch())
            training.gradients(*training.batch())
            with pytest.raises(PrivateTrainingError, match="2 batches"):
                training.optimizer.step()

        assert len(ledger) == 0

    def test_of_a_clip_that_ghost_clipping_does_not_follow(
        self, ledger
    ) -> None:
        training = Training(grad_sample_mode="ghost")
        with recorded_steps(training.optimizer, training.loader, ledger):
            training.step(*training.batch())
            training.optimizer.max_grad_norm = 0.1
            with pytest.raises(PrivateTrainingError, match="ghost clipping"):
                training.step(*training.batch())

        assert len(ledger) == 1

    def test_of_a_ledger_without_the_run(self, ledger) -> None:
        training = Training()
        with (
            pytest.raises(ValueError, match="`continues` must be"),
            recorded_steps(
                training.optimizer,
                training.loader,
                ledger,
                run=RunDetails(continues=3),
            ),
        ):
            pass

    def test_of_a_ledger_that_is_closed(self, tmp_path) -> None:
        training = Training()
        ledger = PrivacyLedger.open(tmp_path / "l.ledger", dataset="d")
        before = weights(training)
        ledger.close()
        with (
            pytest.raises(Exception, match="closed"),
            recorded_steps(training.optimizer, training.loader, ledger),
        ):
            training.epoch()
        assert all(map(torch.equal, before, weights(training)))


KILLED = """
import os, signal, sys, warnings
warnings.simplefilter("ignore")
sys.path.insert(0, {root!r})
from opacus.optimizers import DPOptimizer
from tests.bridges.opacus_steps import Training, recorded_steps
from keras_dp.ledger import PrivacyLedger

released, noise = 0, DPOptimizer.add_noise
def add_noise(self):
    global released
    noise(self)
    released += 1
    os.write(1, b"released\\n")
    if released == 6:
        os.kill(os.getpid(), signal.SIGKILL)
DPOptimizer.add_noise = add_noise

training = Training()
ledger = PrivacyLedger.open({path!r}, dataset="d")
with recorded_steps(training.optimizer, training.loader, ledger, steps=50):
    for epoch in range(5):
        training.epoch()
        import torch
        torch.save(training.module._module.state_dict(), {path!r} + ".pt")
"""


class TestKills:
    def test_leave_every_release_covered_and_the_run_goes_on(
        self, tmp_path
    ) -> None:
        path = str(tmp_path / "l.ledger")
        code = KILLED.format(root=os.getcwd(), path=path)
        ran = subprocess.run(
            [sys.executable, "-c", code],
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
            assert len(run) >= released
            left = 50 - len(run)
            assert run.rest.count == left > 0

            training = Training()
            with recorded_steps(
                training.optimizer,
                training.loader,
                ledger,
                run=RunDetails(continues=run.number),
            ):
                for _ in range(10):
                    training.epoch()
            (run,) = ledger.runs
            assert (run.outcome, len(run)) == ("finished", 50)
            assert budgets.guarantee(ledger, delta=DELTA).basis == "plan"

            certificate = certify(ledger, delta=DELTA)
            text = "\n".join(certificate.sentences)
            assert f"ran in opacus {opacus.__version__}" in text
            certificate.check(ledger)
            with (
                pytest.raises(ValueError, match="`continues` must be"),
                recorded_steps(
                    training.optimizer,
                    training.loader,
                    ledger,
                    run=RunDetails(continues=run.number),
                ),
            ):
                pass

    def test_continues_only_the_same_rounds(self, ledger) -> None:
        training = Training()
        with recorded_steps(
            training.optimizer, training.loader, ledger, steps=9
        ):
            training.step(*training.batch())
        other = Training(noise_multiplier=0.5)
        with (
            pytest.raises(PrivateTrainingError, match="must have the rounds"),
            recorded_steps(
                other.optimizer,
                other.loader,
                ledger,
                run=RunDetails(continues=1),
            ),
        ):
            other.epoch()
        assert len(ledger) == 1
