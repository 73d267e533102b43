"""Noise that is correlated over the rounds of a training, if that is better."""

import math
from typing import Any, Literal, NamedTuple, TypeAlias

import keras
import tensorflow as tf

from keras_dp import _check
from keras_dp.dp_queries import (
    CorrelatedSumQuery,
    DPQuery,
    GaussianAverageQuery,
    NormalizedQuery,
)
from keras_dp.ledger import Strategy
from keras_dp.planning import calibrate_correlated_noise, plan_correlated_noise
from keras_dp.planning.correlated_noise import CorrelatedNoise, sum_error
from keras_dp.recipes.held_rounds import HeldRounds
from keras_dp.recipes.learning_rate import build
from keras_dp.recipes.training_data import TrainingData
from keras_dp.sampling import Sampler
from keras_dp.spending import PrivacyTarget

# `make_private` takes it as its noise.
Noise: TypeAlias = Literal["independent", "proven", "correlated"] | Strategy
# The noise of a round depends on no other round.
_ALONE = ("independent", "proven")


class Correlation(NamedTuple):
    """How the noise of a training is correlated.

    Attributes:
        samples: How samples are drawn.
        strategy: `None` for independent noise.
        ratio: The noise of the sums over the first rounds, divided by that of
            independent noise. `None` if nobody computed it.
    """

    samples: Sampler
    strategy: Strategy | None
    ratio: float | None

    def said(self, rounds: int) -> tuple[str, str] | None:
        """Returns what was chosen, and why; `None` if nothing was.

        Args:
            rounds: The number of rounds of the training.
        """
        if self.strategy is None:
            if self.ratio is None:
                return None
            return (
                "none",
                "correlated noise would leave "
                f"{self.ratio:.0%} of the noise in the sums over rounds",
            )
        kept = self.strategy.filter(rounds).weights.shape[1]
        how = type(self.strategy).__name__
        if self.strategy.bands is not None:
            how = f"{self.strategy.bands:,} bands"
        why = f"keeps {kept:,} times the memory of a gradient"
        if self.ratio is not None:
            why = (
                f"leaves {self.ratio:.0%} of the noise in the sums over rounds "
                f"(optimizers other than SGD may gain less); {why}"
            )
        return how, f"{why}; a training that stops early costs a whole one"


def check_noise(noise: Any, data: Any, l2_norm_clip: Any) -> None:
    """Raises for noise of `make_private` that cannot be, before data is read.

    Raises:
        ValueError: It is something else, or correlated and does not go with
            the data or with the clip.
    """
    if not isinstance(noise, Strategy) and (
        not isinstance(noise, str) or noise not in (*_ALONE, "correlated")
    ):
        raise ValueError(
            '`noise` must be "independent", "proven", "correlated" or a '
            "strategy of keras_dp.ledger. Received: "
            f"noise={_check.shown(noise)}."
        )
    if noise == "correlated" and isinstance(data, Sampler):
        raise ValueError(
            '`noise` must be "independent" or a strategy with a sampler: '
            'noise="correlated" chooses its own. Received: '
            f'noise="correlated", data={data!r}. Pass the records, or a '
            "strategy such as BandedToeplitz."
        )
    if is_correlated(noise) and l2_norm_clip == "automatic":
        raise ValueError(
            "`l2_norm_clip` must be a number with correlated noise. Received: "
            f'l2_norm_clip="automatic", noise={noise!r}.'
        )


def is_correlated(noise: str | Strategy) -> bool:
    """Returns whether noise is to be correlated, or may be."""
    return noise not in _ALONE


def correlation_of(
    noise: Noise,
    given: TrainingData,
    samples: Sampler,
    rounds: int,
    target: PrivacyTarget,
    held: HeldRounds,
) -> Correlation:
    """Returns the strategy of a training, and samples that suit it.

    Args:
        noise: As in `make_private`.
        given: The records.
        samples: The sampler that goes with independent noise.
        rounds: The number of rounds of the training.
        target: For all rounds of the ledger.
        held: Rounds that are spent already.

    Raises:
        CalibrationError: No noise meets the target.
    """
    if not is_correlated(noise):
        return Correlation(samples, None, None)
    if isinstance(noise, Strategy) and isinstance(given.records, Sampler):
        return Correlation(samples, noise, None)
    share = samples.expected_sample_size / samples.population_size
    terms: dict[str, Any] = {
        "target_epsilon": target.epsilon,
        "delta": target.delta,
        "ledger": held.replay,
    }
    if isinstance(noise, Strategy):
        (independent,) = plan_correlated_noise(
            rounds, sampling_probability=share, bands=[1], **terms
        )
        best = _of_strategy(noise, rounds, share, terms)
    else:
        best, *others = plan_correlated_noise(
            rounds, sampling_probability=share, **terms
        )
        independent = next(x for x in (best, *others) if x.classes == 1)
        if best is independent:
            if not others:
                return Correlation(samples, None, None)
            least = min(x.sum_noise for x in others)
            return Correlation(samples, None, least / best.sum_noise)
    return Correlation(
        given.in_classes(best.classes, best.sampling_probability),
        best.strategy,
        best.sum_noise / independent.sum_noise,
    )


def correlated(
    query: GaussianAverageQuery,
    strategy: Strategy,
    rounds: int,
    specs: Any,
) -> DPQuery:
    """Returns a query like the given one, with the noise of a strategy.

    Args:
        query: Has the clip, the noise multiplier and the denominator.
        strategy: How the noise is correlated.
        rounds: The number of rounds of the training.
        specs: The shapes and dtypes of one record.
    """
    total = CorrelatedSumQuery(
        strategy, query.l2_norm_clip, query.noise_multiplier, rounds, specs
    )
    return NormalizedQuery(total, query.denominator)


def with_noise_of_sums(
    query: GaussianAverageQuery, strategy: Strategy, rounds: int
) -> GaussianAverageQuery:
    """Returns the query of independent noise with as much noise in the sums."""
    share = sum_error(strategy, rounds) / math.sqrt((rounds + 1) / 2)
    return GaussianAverageQuery(
        query.l2_norm_clip, share * query.sum_stddev, query.denominator
    )


def gradient_specs(model: keras.Model, samples: Sampler) -> list[Any]:
    """Returns the shapes and dtypes of the gradients of one example."""
    build(model, samples)
    return [
        tf.TensorSpec(each.shape, each.dtype)
        for each in model.trainable_variables
    ]


def _of_strategy(
    strategy: Strategy, rounds: int, share: float, terms: dict[str, Any]
) -> CorrelatedNoise:
    """Returns a strategy with the samples that suit it, and its noise.

    With as many classes as bands it is amplified. Where a class would have
    fewer records than a sample, each class is a sample as a whole.
    """
    classes, probability = strategy.bands, 1.0
    if classes is None or classes * share > 1:
        classes = max(1, round(1 / share))
    else:
        probability = classes * share
    noise = calibrate_correlated_noise(
        strategy,
        rounds,
        classes=classes,
        sampling_probability=probability,
        **terms,
    )
    return CorrelatedNoise(
        strategy,
        classes,
        probability,
        noise,
        noise * sum_error(strategy, rounds),
    )
