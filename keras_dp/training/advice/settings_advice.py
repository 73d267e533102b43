"""Warns of settings that are sound but seldom meant."""

from collections.abc import Iterator, Mapping
from typing import Any

import keras
import numpy as np
from absl import logging

from keras_dp import _nests
from keras_dp.dp_queries import DPQuery, NestedQuery
from keras_dp.ledger import GaussianSum, Round
from keras_dp.training.advice.said import Said
from keras_dp.training.data.data_adapter import DataAdapter, PhysicalStep

# Below it, a round of a small sample costs an epsilon of about ten.
_LEAST_MULTIPLIER = 0.3
# A sample of fewer records is mostly noise at any useful epsilon. It is also
# the least that `make_private` chooses where there are enough records.
_SMALL_SAMPLE = 32
_WEIGHTS = (
    "Weights scale gradients before the clip, and the noise follows the clip: "
    "small ones drown in it."
)
# A bound that fails with a larger probability is commented on.
_LARGE_DELTA = 1e-3
# Beyond these, epsilon protects hardly anyone, or leaves nothing to learn.
_LARGE_EPSILON, _SMALL_EPSILON = 20.0, 0.02
# A share that the denominator may differ from the expected sample by.
_ABOUT = 0.05


def advice(
    planned: Round, query: DPQuery, adapter: DataAdapter, batch: PhysicalStep
) -> Iterator[str]:
    """Yields a warning for each setting of a training that is seldom meant."""
    yield from _about_noise(planned)
    yield from _about_samples(query, adapter)
    yield from _about_batches(adapter, batch)
    yield from _about_weights(adapter, batch)


def advise_target(epsilon: float) -> None:
    """Logs a warning for an epsilon that hardly anyone means.

    Args:
        epsilon: The epsilon of a target, > 0.
    """
    if epsilon > _LARGE_EPSILON:
        logging.warning(
            "target_epsilon = %g protects hardly anyone: an attacker can be "
            "all but certain whether a record was used. Targets are mostly "
            "between 1 and 10.",
            epsilon,
        )
    elif epsilon < _SMALL_EPSILON:
        logging.warning(
            "target_epsilon = %g leaves hardly anything to learn, unless there "
            "are very many records. Targets are mostly between 1 and 10.",
            epsilon,
        )


def advise_delta(
    delta: float, population_size: int | None, rows_per_unit: int = 1
) -> None:
    """Logs a warning for a delta that is large, or as large as 1/N.

    Args:
        delta: The delta of the epsilon that is shown.
        population_size: The number of records, or `None` if it is not known.
        rows_per_unit: How many of them one unit has at most. N is the least
            number of units that there can be.
    """
    if population_size is None:
        return
    units = max(1, population_size // rows_per_unit)
    if delta * units >= 1:
        rows = "records"
        if rows_per_unit > 1:
            rows = f"units of {rows_per_unit} records each"
        logging.warning(
            "delta = %r is at least 1/N for %d %s: it allows a mechanism "
            "that publishes one of them. Take N^-1.1 or less.",
            delta,
            units,
            rows,
        )
    elif delta > _LARGE_DELTA:
        logging.warning(
            "delta = %g is large: the bound epsilon may fail with this "
            "probability. The default N^-1.1 is so large because there are "
            "only %d records or units. Pass a smaller one, such as delta=1e-5; "
            "it takes more noise.",
            delta,
            units,
        )


def warn_of_loss(logs: Mapping[str, Any], said: Said) -> None:
    """Warns once if the loss that is shown is not finite.

    It tells no more of the records than the loss does. With private metrics
    there is no loss, and nothing is said.
    """
    if not np.isfinite(float(logs.get("loss", 0.0))):
        said.warn(
            "The loss that is shown is not finite: a record, or what the model "
            "computes of it, is not. Records without a finite gradient count "
            "as zero: they train nothing, and do not harm the weights. Replace "
            "missing values; np.isfinite(x).all(axis=0) shows their columns. "
            "If there are none, the weights may have grown: lower the learning "
            "rate."
        )


def _about_noise(round_: Round) -> Iterator[str]:
    for event in round_.queries:
        if not isinstance(event, GaussianSum):
            continue
        if event.noise_stddev == 0:
            yield (
                f"The sum {event.name!r} has no noise: epsilon is infinite. "
                "Give its query a noise_multiplier > 0."
            )
        elif event.noise_stddev < _LEAST_MULTIPLIER * event.l2_norm_bound:
            ratio = event.noise_stddev / event.l2_norm_bound
            yield (
                f"The noise of {event.name!r} is only {ratio:.3g} times its "
                "clip: every round costs a large epsilon. Was it meant as "
                "noise_multiplier=, which follows the clip?"
            )


def _about_samples(query: DPQuery, adapter: DataAdapter) -> Iterator[str]:
    if not adapter.is_sampler:
        return
    expected = adapter.source.expected_sample_size
    if adapter.source.microbatches is not None:  # Each is one record.
        expected /= adapter.source.microbatches.size
    for denominator in sorted(set(_denominators(query))):
        if abs(denominator - expected) > _ABOUT * expected:
            yield (
                f"The denominator is {denominator:g}, where samples have "
                f"{expected:g} records on average: steps are "
                f"{expected / denominator:.3g} times those of an average. Take "
                f"denominator={expected:g}: expected_sample_size of the "
                "sampler, over the size of a microbatch if there is one."
            )
    if expected < _SMALL_SAMPLE:
        yield (
            f"Samples have {expected:g} records on average: noise hides "
            "gradients of so few. keras_dp.planning.plan compares batch "
            "sizes at the same epsilon."
        )


def _about_batches(adapter: DataAdapter, batch: PhysicalStep) -> Iterator[str]:
    if adapter.is_sampler:
        return
    rows = keras.tree.flatten(batch.x)[0].shape[0]
    if adapter.population_size is None or rows < adapter.population_size:
        yield (
            "The library did not draw these batches, so they are recorded "
            "without amplification by sampling: each costs as much as all "
            "records. Pass a sampler to fit, such as "
            "keras_dp.PoissonBatches((x, y), sampling_probability=...), or "
            "PoissonBatches.from_dataset(dataset, sampling_probability=...)."
        )


def _about_weights(adapter: DataAdapter, batch: PhysicalStep) -> Iterator[str]:
    """Yields advice that does not depend on the weights of any example."""
    if adapter.class_weight is not None:
        weights = np.abs([*adapter.class_weight.values()])
        if len(weights) and not 0.1 <= np.median(weights) <= 10:
            yield (
                f"`class_weight` has weights far from 1. {_WEIGHTS} Scale them "
                "to about 1."
            )
    elif batch.sample_weight is not None:
        yield (
            f"Examples have weights. {_WEIGHTS} Scale them to about 1, such as "
            "1/count by the mean count. They are not looked at."
        )


def _denominators(query: Any) -> Iterator[float]:
    """Yields the public denominators of a query and of those it holds."""
    if hasattr(query, "denominator"):
        yield query.denominator
    elif isinstance(query, NestedQuery):
        for each in _nests.leaves(query.queries):
            yield from _denominators(each)
    elif hasattr(query, "inner"):
        yield from _denominators(query.inner)
