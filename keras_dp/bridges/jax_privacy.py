"""Records the steps of a JAX Privacy training, each before its batch is used.

A step of JAX is one compiled function, which nothing can enter. So the ledger
covers a round before its batch is handed out.
"""

import dataclasses
import secrets
from collections.abc import Generator, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from keras_dp import _check
from keras_dp.bridges.other_rounds import OtherRounds
from keras_dp.ledger import (
    BandedToeplitz,
    CorrelatedSum,
    CyclicPoissonSampling,
    GaussianSum,
    PoissonSampling,
    PrivacyLedger,
    Round,
    SamplingEvent,
    TruncatedPoissonSampling,
)
from keras_dp.spending.epsilon_limit import default_delta
from keras_dp.spending.run import RunDetails

Indices = npt.NDArray[np.integer[Any]]


@dataclasses.dataclass(frozen=True, slots=True)
class DeclaredSteps:
    """Steps that the caller puts together, without a plan of JAX Privacy.

    Attributes:
        samples: The `CyclicPoissonSampling` that draws the batches, of one
            cycle.
        gradients: The function that `clipped_grad` returned, before `jax.jit`.
            Its bound is read.
        stddev: The `stddev` of the `gaussian_privatizer`, >= 0, in the unit of
            what `gradients` returns. It is recorded as declared.
        seeded: Whether the caller chose the key of the noise.

    >>> from keras_dp.bridges import DeclaredSteps
    >>> DeclaredSteps(samples=None, gradients=None, stddev=4.0).seeded
    True
    """

    samples: Any
    gradients: Any
    stddev: float
    seeded: bool = True


def recorded_batches(
    plan: Any,
    ledger: PrivacyLedger,
    num_examples: int,
    *,
    rng: Any = None,
    target_epsilon: float | None = None,
    delta: float | None = None,
    run: RunDetails | str | None = None,
) -> Generator[Indices, None, None]:
    """Yields the batches of a plan, and records the step of each beforehand.

    The ledger names JAX Privacy as the library of the run. The plan of the run
    has all iterations of `plan`, so that its cost is a guarantee however early
    the loop ends.

    Guarantee: before a batch is yielded, the ledger durably covers one more
    round of a Gaussian sum, or of a sum with correlated noise, with the
    sensitivity, the noise and the sampling of the plan. That the loop clips and
    adds noise so is declared and not checked, as is that it uses each batch for
    one step, and for nothing else.

    Args:
        plan: A `BandMFExecutionPlanConfig`, whose own `plan` then makes the
            gradients and the noise. One band is DP-SGD. Several bands are a
            mechanism with correlated noise: all of its iterations are paid for
            when the first batch is yielded. Or `DeclaredSteps`.
        ledger: A ledger opened for writing.
        num_examples: The number of records, >= 1.
        rng: As in `batch_iterator` of JAX Privacy. By default the operating
            system seeds the samples.
        target_epsilon: The largest epsilon of the ledger, > 0. The batches end
            before a round would exceed it. All rounds of the ledger count.
        delta: The delta of the target and of the plan, in (0, 1). By default
            that of `plan`, or else `N^-1.1` for N records.
        run: As in `PrivateModel.fit`. A checkpoint of DP-SGD is continued by
            `RunDetails(continues=...)`.

    Yields:
        The indices of the records of one sample, shape `[size of the sample]`.

    Raises:
        BudgetExceededError: There is no room for the first round.
        ImportError: JAX Privacy is not installed.
        LedgerWriteError: A round could not be covered. Its batch is not
            yielded.
        TypeError: `plan` is of another kind.
        ValueError: No event of the ledger says how its samples are drawn or
            its columns scaled, it is for another number of records, or it
            continues a mechanism with correlated noise.

    Source: JAX Privacy 2.0.0, `DPExecutionPlan`; Choquette-Choo et al. (2023),
    arXiv:2306.08153.
    """
    with _check.needing("jax_privacy", "to record its trainings"):
        import jax_privacy

    _check.integer_at_least(1, num_examples=num_examples)
    steps, strategy, given_delta = _steps_of(plan, num_examples)
    sampling = _sampling_of(steps.samples, num_examples, strategy.bands)
    iterations = steps.samples.iterations
    bound = float(steps.gradients.l2_norm_bound)
    planned = Round(
        sampling,
        (
            GaussianSum("gradients", bound, steps.stddev)
            if strategy.bands == 1
            else CorrelatedSum(
                "gradients",
                bound,
                steps.stddev,
                strategy,
                iterations,
                mechanism_id=secrets.token_hex(16),
            ),
        ),
        seeded=steps.seeded or rng is not None,
    )
    if strategy.bands > 1 and RunDetails.of(run).continues is not None:
        raise ValueError(
            "`run` must be a new run where the noise is correlated: classes "
            "and noise of the earlier one are gone. Received: "
            f"run={run!r}. Begin a new run, which costs as much again."
        )
    scheduled = _scheduled(planned, iterations)
    if delta is None:
        delta = given_delta or default_delta(num_examples)
    rounds = OtherRounds(
        ledger,
        library=f"jax_privacy {jax_privacy.__version__}",
        note=type(plan).__name__,
        most=iterations,
        target_epsilon=target_epsilon,
        delta=delta,
        run=run,
        # The first round of DP-SGD stands for all.
        scheduled=scheduled if len(scheduled) > 1 else None,
    )
    batches = steps.samples.batch_iterator(num_examples, rng)
    return _covered(rounds, scheduled, batches)


def _covered(
    rounds: OtherRounds,
    scheduled: list[tuple[Round, int]],
    batches: Iterator[Indices],
) -> Generator[Indices, None, None]:
    coming = (
        (planned, count - before)
        for planned, count in scheduled
        for before in range(count)
    )
    with rounds.recording():
        for batch, (planned, left) in zip(batches, coming, strict=True):
            rounds.cover(planned, left)
            yield batch


def _scheduled(planned: Round, iterations: int) -> list[tuple[Round, int]]:
    """Returns all rounds in order, counted: those of a cycle are equal."""
    first = planned.sampling
    if not isinstance(first, CyclicPoissonSampling):
        return [(planned, iterations)]
    rounds = []
    for cycle, ran in enumerate(range(0, iterations, first.classes)):
        sampling = dataclasses.replace(
            first, epoch_id=f"{first.draw_id}-{cycle}"
        )
        rounds.append(
            (
                dataclasses.replace(planned, sampling=sampling),
                min(first.classes, iterations - ran),
            )
        )
    return rounds


def _steps_of(
    plan: Any, num_examples: int
) -> tuple[DeclaredSteps, BandedToeplitz, float | None]:
    """Returns the steps of a plan, the strategy of its noise, and its delta.

    Raises:
        TypeError: It is no plan.
        ValueError: Its columns are scaled, or it is for other data.
    """
    from jax_privacy import clipping
    from jax_privacy.experimental import execution_plan

    if isinstance(plan, DeclaredSteps):
        _check.kind(
            clipping.BoundedSensitivityCallable, gradients=plan.gradients
        )
        return plan, BandedToeplitz((1.0,)), None
    if type(plan) is not execution_plan.BandMFExecutionPlanConfig:
        raise TypeError(
            "`plan` must be a BandMFExecutionPlanConfig of JAX Privacy, or "
            f"DeclaredSteps. Received: a {type(plan).__name__}."
        )
    if plan.column_normalize:
        raise ValueError(
            "`column_normalize` must be False: the ledger records strategies "
            "that are constant along each diagonal. Received: "
            "column_normalize=True."
        )
    if plan.num_examples not in (None, num_examples):
        raise ValueError(
            f"`num_examples` must be {plan.num_examples!r}, as in the plan. "
            f"Received: num_examples={num_examples!r}."
        )
    made = plan.plan
    gradients = made.clipped_grad(lambda: None)
    relation = plan.accountant.neighboring_relation
    event = made.dp_event.event  # It is sampled, and perhaps truncated.
    event = getattr(event, "event", event)
    # The noise of the plan is for columns of norm 1, ours for a leading 1.
    column = np.asarray(plan.strategy, np.float64)
    column /= column[0]
    stddev = event.noise_multiplier * gradients.sensitivity(relation)
    steps = DeclaredSteps(
        made.batch_selection_strategy,
        gradients,
        float(stddev * np.linalg.norm(column)),
        seeded=plan.noise_seed is not None,
    )
    return steps, BandedToeplitz(tuple(column.tolist())), plan.delta


def _sampling_of(samples: Any, num_examples: int, bands: int) -> SamplingEvent:
    """Returns how samples are drawn, as their strategy shows.

    Raises:
        TypeError: The strategy is of another kind.
        ValueError: They are no Poisson samples, of all records or of a class
            for each band that each record drew.
    """
    from jax_privacy import batch_selection

    _check.kind(batch_selection.CyclicPoissonSampling, samples=samples)
    if samples.cycle_length != bands:
        raise ValueError(
            "`samples` must have one cycle, so that each step draws from all "
            f"records. Received: cycle_length={samples.cycle_length!r}."
        )
    truncated = samples.truncated_batch_size
    if bands > 1:
        split = batch_selection.PartitionType.INDEPENDENT
        if samples.partition_type != split or truncated is not None:
            raise ValueError(
                "`partition_type` must be PartitionType.INDEPENDENT, without "
                "`truncated_batch_size`, if the noise has several bands: else "
                "a record moves others between classes or out of samples. "
                f"Received: {samples.partition_type}, truncated_batch_size="
                f"{truncated!r}."
            )
        draw = secrets.token_hex(16)
        return CyclicPoissonSampling(f"{draw}-0", bands, samples.sampling_prob)
    if truncated is None:
        return PoissonSampling(samples.sampling_prob)
    return TruncatedPoissonSampling(
        samples.sampling_prob, truncated, num_examples
    )
