"""How long a training is, how samples are drawn, and how noise correlates."""

import math
from typing import Any, Literal, TypeAlias

from keras_dp import _check
from keras_dp.ledger import BandedToeplitz, Strategy
from keras_dp.planning import plan, plan_correlated_noise
from keras_dp.planning.correlated_noise import amplified
from keras_dp.planning.plan import FEWEST_STEPS, LARGEST_SHARE, Offers, sizes_of
from keras_dp.recipes.held_rounds import HeldRounds
from keras_dp.recipes.settings import Settings
from keras_dp.recipes.training_data import TrainingData
from keras_dp.sampling import CyclicPoissonBatches, PoissonBatches, Sampler

# `make_private` takes it as its noise.
Noise: TypeAlias = Literal["independent", "proven", "correlated"] | Strategy
# The noise of a round depends on no other round.
_ALONE = ("independent", "proven")
# Numbers of epochs that are chosen from, and which share of the signal of the
# last is enough (docs/measurements.md).
_EPOCHS, _ENOUGH = (40, 80), 0.97


def choose_epochs(settings: Settings) -> Settings:
    """Chooses the fewest epochs with most of the signal of many."""
    epochs, reason = settings.epochs, ""
    if epochs is None:
        epochs = enough_epochs(settings)
        reason = "more give little more signal; epochs= sets their number"
    return settings.with_choice("epochs", f"{epochs:,}", reason, epochs=epochs)


def enough_epochs(settings: Settings) -> int:
    """Returns the fewest epochs with most of the signal that many give.

    The samples are taken to be Poisson samples of the size that somebody chose,
    or else of the largest that leaves enough rounds.
    """
    data: TrainingData = settings.data
    population, size = data.population, settings.batch_size
    if isinstance(data.records, Sampler):  # It may draw whole microbatches.
        share = data.records.expected_sample_size / population
        population = data.units_of(1)
        size = max(1, round(share * population))

    def signal(epochs: int) -> float:
        share = min(LARGEST_SHARE, epochs / FEWEST_STEPS)
        sizes = [size or max(1, int(share * population))]
        found = _plan(population, epochs, settings.held, sizes)
        return found.rows[0].signal

    best = signal(_EPOCHS[-1])
    enough = next(x for x in _EPOCHS if signal(x) >= _ENOUGH * best)
    if size is None:
        return enough
    each = max(1, round(population / size))
    return max(enough, math.ceil(FEWEST_STEPS / each))


def choose_samples(settings: Settings) -> Settings:
    """Chooses the size of samples, and their classes for correlated noise."""
    data = settings.data
    samples = sampler_of(
        data, settings.batch_size, settings.epochs, settings.held
    )
    is_chosen = settings.batch_size is None and samples is not data.records
    samples, noise, ratio = _correlated(settings, samples)
    expected = samples.expected_sample_size
    value = f"{expected:,.6g} records expected"
    if samples.unit == "user":
        value = f"{expected:,.6g} users expected"
    elif not samples.draw.rows_of_record.are_apart:
        value += f", in {samples.expected_records:,.6g} microbatches"
    if samples.views > 1:
        value += f", each with {samples.views} views"
    settings = settings.with_choice(
        "samples",
        value,
        "the smallest with nearly the best signal" if is_chosen else "",
        samples=samples,
        noise=noise,
    )
    if settings.strategy is not None:
        return settings.with_choice("bands", *_about(settings, ratio))
    if ratio is None:
        return settings
    return settings.with_choice(
        "bands",
        "none",
        f"correlated noise would leave {ratio:.0%} of the noise in the "
        "sums over rounds",
    )


def sampler_of(
    data: TrainingData,
    batch_size: int | None,
    epochs: int,
    held: HeldRounds,
) -> Sampler:
    """Returns what draws the samples of a training; a given sampler as it is.

    By default a sample has the size that `plan` recommends for what is left.
    """
    if isinstance(data.records, Sampler):
        return data.records
    if batch_size is None:
        sizes = sizes_of(data.population)
        found = _plan(data.population, epochs, held, sizes)
        batch_size = found.recommended.batch_size
    return PoissonBatches(
        data.records,
        sampling_probability=batch_size / data.population,
        map=data.map,
        views=data.views,
    )


def _plan(
    population: int, epochs: int, held: HeldRounds, sizes: list[int]
) -> Offers:
    with held.explaining():
        return plan(population, epochs=epochs, batch_sizes=sizes, **held.terms)


# Noise that is correlated over the rounds, if that is better.


def check_noise(noise: Any, data: Any, l2_norm_clip: Any) -> None:
    """Raises for noise of `make_private` that cannot be, by the arguments."""
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
    if noise not in _ALONE and l2_norm_clip == "automatic":
        raise ValueError(
            "`l2_norm_clip` must be a number with correlated noise. Received: "
            f'l2_norm_clip="automatic", noise={noise!r}.'
        )


def _correlated(
    settings: Settings, samples: Sampler
) -> tuple[Sampler, str | Strategy, float | None]:
    """Returns samples, the noise that suits them, and what that leaves.

    The samples that are given go with independent noise. The number is the
    noise of the sums over the first rounds with the best strategy, divided by
    that of independent noise; it is `None` if nobody computed it.
    """
    noise, data = settings.noise, settings.data
    if noise in _ALONE or (
        noise != "correlated" and isinstance(data.records, Sampler)
    ):
        return samples, noise, None
    rounds = settings.epochs * samples.rounds_per_epoch
    share = samples.expected_sample_size / samples.population_size
    terms = settings.held.terms
    if noise != "correlated":
        best, independent = (
            amplified(each, rounds, share, **terms)
            for each in (noise, BandedToeplitz((1.0,)))
        )
    else:
        best, *others = plan_correlated_noise(
            rounds, sampling_probability=share, **terms
        )
        independent = next(x for x in (best, *others) if x.classes == 1)
        if best is independent:
            ratios = [x.sum_noise / best.sum_noise for x in others]
            return samples, "independent", min(ratios, default=None)
    classes = CyclicPoissonBatches(
        data.records,
        classes=best.classes,
        sampling_probability=best.sampling_probability,
        map=data.map,
        views=data.views,
    )
    ratio = best.sum_noise / independent.sum_noise
    return classes, best.strategy, ratio


def _about(settings: Settings, ratio: float | None) -> tuple[str, str]:
    """Returns how noise is correlated, and what that brings and costs."""
    strategy: Any = settings.noise
    kept = strategy.filter(settings.rounds).weights.shape[1]
    how = type(strategy).__name__
    if strategy.bands is not None:
        how = f"{strategy.bands:,} bands"
    why = f"keeps {kept:,} times the memory of a gradient"
    if ratio is not None:
        why = (
            f"leaves {ratio:.0%} of the noise in the sums over rounds "
            f"(optimizers other than SGD may gain less); {why}"
        )
    return how, f"{why}; a training that stops early costs a whole one"
