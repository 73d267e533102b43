"""Records the steps of an Opacus training, each before its noise is drawn.

Opacus calls the hook of `attach_step_hook` once the noised gradient is there.
That is too late for a ledger. So `add_noise` of the optimizer is replaced: it
covers the round first. Steps that are skipped, because a sample has more
physical batches to come, add no noise and are not rounds.
"""

import contextlib
import math
from collections.abc import Iterator
from typing import Any

from keras_dp import _check
from keras_dp.bridges.other_rounds import OtherRounds
from keras_dp.errors import PrivateTrainingError
from keras_dp.ledger import (
    GaussianSum,
    PoissonSampling,
    PrivacyLedger,
    Round,
    SamplingEvent,
    UnverifiedSampling,
)
from keras_dp.spending.epsilon_limit import default_delta
from keras_dp.spending.run import RunDetails

# The `id` of optimizers and samplers, while their steps are recorded.
_IN_USE: set[int] = set()
_VERSION = "1.6."
# PyTorch draws multiples of this, and compares them with the sample rate.
_GRID = 2.0**-24
# A generator that nobody seeded has a random seed of at least 53 bits.
_LARGEST_CHOSEN_SEED = 2**32


@contextlib.contextmanager
def recorded_steps(
    optimizer: Any,
    data_loader: Any,
    ledger: PrivacyLedger,
    *,
    steps: int | None = None,
    target_epsilon: float | None = None,
    delta: float | None = None,
    sampling: SamplingEvent | None = None,
    run: RunDetails | str | None = None,
) -> Iterator[None]:
    """Records the steps of an Opacus optimizer inside a `with` block.

    The clip, the noise multiplier and the sample rate are those that Opacus has
    when the step runs, so that its schedulers of noise and clip may change
    them. The ledger names Opacus as the library of the run.

    The block ends before a step that exceeds `steps`, the target or the
    account, and the program goes on behind it. Later steps of the optimizer
    are refused, until another block records them.

    Guarantee: before Opacus draws the noise of a step, the ledger durably
    covers one more round of a Gaussian sum: with the largest clip of the
    physical batches that were summed, and with the noise that Opacus is about
    to add. That Opacus samples, clips and adds noise so is declared and not
    checked, as are these: each step takes a sample of its own, the batches of
    the steps that were skipped belong to it, and the loop uses the data for
    nothing else.

    Args:
        optimizer: The optimizer that `PrivacyEngine.make_private` returned. Its
            clipping is flat or per layer, with any `grad_sample_mode` of one
            process.
        data_loader: The loader that `make_private` returned, or the one of a
            `BatchMemoryManager`. With `poisson_sampling=False` no amplification
            is counted.
        ledger: A ledger opened for writing.
        steps: The most steps that will run, >= 1, such as `epochs *
            len(data_loader)`. They are written as the plan before the first
            step, so that the cost of the plan is a guarantee however early
            training stops. Leave it out if a scheduler changes noise or clip.
        target_epsilon: The largest epsilon of the ledger, > 0. All of its
            rounds count.
        delta: The delta of the target and of the plan, in (0, 1). By default
            `N^-1.1` for N records.
        sampling: How a loader of another kind draws its samples. It is recorded
            as declared.
        run: As in `PrivateModel.fit`. A checkpoint is continued by
            `RunDetails(continues=...)`.

    Raises:
        BudgetExceededError: There is no room for the first step.
        ImportError: Opacus is not installed, or of another version.
        LedgerWriteError: A round could not be covered. Its step did not run.
        PrivateTrainingError: There are several processes. Or the optimizer or
            the samples of the loader are being recorded already. Or a step
            sums several samples, or changes what it is averaged over.
        TypeError: `optimizer` or `data_loader` is of a kind that cannot be
            recorded.
        ValueError: `data_loader` makes up records, or `sampling` contradicts
            it.

    Source: Opacus 1.6.0, `DPOptimizer.pre_step`.
    """
    with _check.needing("opacus", "to record its trainings"):
        import opacus

    if not opacus.__version__.startswith(_VERSION):
        raise ImportError(
            f"recorded_steps needs Opacus {_VERSION}x, whose steps it knows. "
            f"Received: Opacus {opacus.__version__}."
        )
    _check_optimizer(optimizer)
    sampler = _sampler_of(data_loader)
    recorded = _RecordedSteps(
        optimizer,
        sampler,
        _sampling_of(sampler, sampling),
        OtherRounds(
            ledger,
            library=f"opacus {opacus.__version__}",
            note=f"{type(optimizer).__name__}, {type(sampler).__name__}",
            most=steps,
            target_epsilon=target_epsilon,
            delta=default_delta(len(data_loader.dataset))
            if delta is None
            else delta,
            run=run,
        ),
    )
    with recorded.recording():
        yield


class _RecordedSteps:
    """Replaces methods of one optimizer, so that its rounds are covered."""

    def __init__(
        self,
        optimizer: Any,
        sampler: Any,
        sampling: SamplingEvent,
        rounds: OtherRounds,
    ) -> None:
        self._optimizer, self._sampler = optimizer, sampler
        self._sampling, self._rounds = sampling, rounds
        self._first_clip, self._average = _clip(optimizer), _average(optimizer)
        self._clips: list[float] = []

    @contextlib.contextmanager
    def recording(self) -> Iterator[None]:
        """Covers the steps inside, and refuses those that come later.

        Raises:
            PrivateTrainingError: The optimizer or the sampler is in use.
        """
        used = {id(self._optimizer), id(self._sampler)}
        if used & _IN_USE:
            raise PrivateTrainingError(
                "Neither the optimizer nor the samples of `data_loader` may be "
                "recorded already. Two steps on one sample cost more than two "
                "steps on two. Give each optimizer a loader of its own."
            )
        _IN_USE.update(used)
        optimizer = self._optimizer
        optimizer.add_noise = self._add_noise
        optimizer.clip_and_accumulate = self._clip_and_accumulate
        try:
            with self._rounds.recording():
                yield
        finally:
            optimizer.add_noise = _refuse
            del optimizer.clip_and_accumulate
            _IN_USE.difference_update(used)

    def _clip_and_accumulate(self) -> None:
        optimizer = self._optimizer
        batches = optimizer.accumulated_iterations
        if batches != 1:
            raise PrivateTrainingError(
                "A step must take one sample. Received: the gradients of "
                f"{batches!r} batches, in which a record may be {batches!r} "
                "times. Call optimizer.step() and optimizer.zero_grad() after "
                "each batch; for large samples, use BatchMemoryManager."
            )
        self._clips.append(_clip(optimizer))
        type(optimizer).clip_and_accumulate(optimizer)

    def _add_noise(self) -> None:
        self._rounds.cover(self._planned())
        self._clips.clear()
        type(self._optimizer).add_noise(self._optimizer)

    def _planned(self) -> Round:
        """Returns the round that the next noise releases.

        Raises:
            PrivateTrainingError: A constant of the training was changed.
        """
        optimizer, clip = self._optimizer, _clip(self._optimizer)
        if _average(optimizer) != self._average:
            raise PrivateTrainingError(
                "`loss_reduction` and `expected_batch_size` must stay the "
                "same: the size of a sample is secret. Received: "
                f"{_average(optimizer)!r} after {self._average!r}. Leave them "
                "as make_private set them."
            )
        if not self._clips and clip != self._first_clip:
            raise PrivateTrainingError(
                "`max_grad_norm` must stay the same with ghost clipping: the "
                f"module clips to the first one. Received: {clip!r} after "
                f"{self._first_clip!r}. Use grad_sample_mode='hooks'."
            )
        stddev = float(optimizer.noise_multiplier * optimizer.max_grad_norm)
        bound = max(self._clips, default=clip)
        return Round(
            self._sampling,
            (GaussianSum("gradients", bound, stddev),),
            seeded=_is_seeded(optimizer, self._sampler),
        )


def _refuse() -> None:
    raise PrivateTrainingError(
        "A step of this optimizer must be recorded. Received: a step after the "
        "end of recorded_steps. It did not run. Take it in another such block."
    )


def _clip(optimizer: Any) -> float:
    """Returns the bound on the norm of a record."""
    norms = getattr(optimizer, "max_grad_norms", None)
    if norms is None:
        return float(optimizer.max_grad_norm)
    return math.hypot(*map(float, norms))


def _average(optimizer: Any) -> tuple[str, int | None]:
    return optimizer.loss_reduction, optimizer.expected_batch_size


def _is_seeded(optimizer: Any, sampler: Any) -> bool:
    """Returns whether the caller chose a seed of the noise or the sample."""
    import torch

    if optimizer.secure_mode:
        return False
    generators = optimizer.generator, getattr(sampler, "generator", None)
    return (
        any(each is not None for each in generators)
        or torch.initial_seed() < _LARGEST_CHOSEN_SEED
    )


def _check_optimizer(optimizer: Any) -> None:
    """Raises unless the steps of an optimizer cost what a Gaussian sum costs.

    Raises:
        PrivateTrainingError: Other processes have steps, too.
        TypeError: They do not, or nobody knows.
    """
    from opacus import optimizers
    from torch import distributed

    known = (
        optimizers.DPOptimizer,
        optimizers.DPOptimizerFastGradientClipping,
        optimizers.DPPerLayerOptimizer,
    )
    if type(optimizer) in known:
        together = distributed.is_available() and distributed.is_initialized()
        size = distributed.get_world_size() if together else 1
        if size > 1:
            raise PrivateTrainingError(
                "The training must be one process: this one does not see what "
                f"the others release. Received: world_size={size}. Call "
                "torch.distributed.destroy_process_group, and train in one."
            )
        return
    remedy = "Pass the optimizer that PrivacyEngine.make_private returned."
    if isinstance(optimizer, optimizers.AdaClipDPOptimizer):
        remedy = (
            "AdaClip divides its noised count by the exact number of records "
            "in the sample, which no noise protects. Use clipping='flat'."
        )
    elif isinstance(optimizer, optimizers.DPOptimizer):
        remedy = "Train in one process, with clipping='flat' or 'per_layer'."
    raise TypeError(
        "`optimizer` must be one of "
        f"{', '.join(each.__name__ for each in known)} of Opacus. Received: a "
        f"{type(optimizer).__name__}. {remedy}"
    )


def _sampler_of(data_loader: Any) -> Any:
    """Returns what draws the samples, which may be split into batches later.

    Raises:
        TypeError: `data_loader` is no loader of batches.
        ValueError: It makes up a record for an empty sample.
    """
    from opacus.utils.batch_memory_manager import BatchSplittingSampler
    from torch.utils.data import DataLoader

    sampler = None
    if isinstance(data_loader, DataLoader):
        sampler = data_loader.batch_sampler
    if isinstance(sampler, BatchSplittingSampler):
        sampler = sampler.sampler
    if sampler is None:
        raise TypeError(
            "`data_loader` must be a DataLoader that draws batches. Received: "
            f"a {type(data_loader).__name__}. Pass the loader that "
            "PrivacyEngine.make_private returned."
        )
    if getattr(data_loader.collate_fn, "rand_on_empty", False):
        raise ValueError(
            "`rand_on_empty` of make_private must be False: where a sample "
            "would be empty but for one record, the made-up record moves the "
            "sum by a second clip. Received: rand_on_empty=True."
        )
    return sampler


def _sampling_of(sampler: Any, declared: SamplingEvent | None) -> SamplingEvent:
    """Returns how samples are drawn, as the sampler shows or as declared.

    Raises:
        TypeError: The sampler is of an unknown kind, and nothing was declared.
        ValueError: The declaration contradicts the sampler, or that draws at
            another rate than it says.
    """
    from opacus.utils.uniform_sampler import UniformWithReplacementSampler

    if type(sampler) is UniformWithReplacementSampler:
        if declared is not None:
            raise ValueError(
                "`sampling` must be None for a loader that draws Poisson "
                f"samples. Received: sampling={declared!r}."
            )
        return PoissonSampling(_rate(sampler))
    if declared is not None:
        _check.kind(SamplingEvent, sampling=declared)
        if declared.drawn_by_library or hasattr(declared, "epoch_id"):
            raise ValueError(
                "`sampling` must say how each round draws a sample anew, and "
                "that no sampler of keras_dp does it. Received: "
                f"sampling={declared!r}."
            )
        return declared
    if _takes_each_once(sampler):
        return UnverifiedSampling()
    raise TypeError(
        "`data_loader` must draw Poisson samples, or batches in which no "
        f"record occurs twice. Received: one with a {type(sampler).__name__}. "
        "Say how it draws by `sampling`, or leave it to make_private."
    )


def _rate(sampler: Any) -> float:
    """Returns an upper bound on the chance with which a record is drawn.

    The sampler compares a random number of PyTorch with its sample rate. Of
    default dtypes with fewer bits, that number is too coarse: in bfloat16, a
    rate of 0.001 draws 0.003 of the records.

    Raises:
        ValueError: The default dtype has too few bits.
    """
    import torch

    dtype = torch.get_default_dtype()
    if dtype not in (torch.float32, torch.float64):
        raise ValueError(
            "The default dtype of PyTorch must be torch.float32, in which "
            f"Opacus draws samples. Received: {dtype}. Call "
            "torch.set_default_dtype(torch.float32)."
        )
    drawn = math.ceil(float(sampler.sample_rate) / _GRID) * _GRID
    return min(1.0, drawn)


def _takes_each_once(sampler: Any) -> bool:
    """Returns whether no batch can hold a record twice."""
    from torch.utils.data import (
        BatchSampler,
        RandomSampler,
        SequentialSampler,
    )

    if type(sampler) is not BatchSampler:
        return False
    inner = sampler.sampler
    if type(inner) is RandomSampler:
        size = len(inner.data_source)
        return not inner.replacement and inner.num_samples <= size
    return type(inner) is SequentialSampler
