"""How long a training is, and how samples are drawn."""

import math

from keras_dp.planning import plan
from keras_dp.planning.plan import (
    FEWEST_STEPS,
    LARGEST_SHARE,
    PlannedTrainings,
    sizes_of,
)
from keras_dp.recipes.correlated_noise import about_strategy, samples_and_noise
from keras_dp.recipes.held_rounds import HeldRounds
from keras_dp.recipes.settings import Settings
from keras_dp.recipes.training_data import TrainingData
from keras_dp.sampling import PoissonBatches, Sampler

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
    data = settings.data
    population, size = data.population, settings.batch_size
    if isinstance(data.records, Sampler):
        size = max(1, round(data.records.expected_sample_size))

    def signal(epochs: int) -> float:
        share = min(LARGEST_SHARE, epochs / FEWEST_STEPS)
        sizes = [size or max(1, int(share * population))]
        found = _plan(population, epochs, settings.held, sizes)
        return found.rows[0].signal

    *fewer, most = _EPOCHS
    best = signal(most)
    enough = next((x for x in fewer if signal(x) >= _ENOUGH * best), most)
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
    samples, noise, ratio = samples_and_noise(settings, samples)
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
        return settings.with_choice("bands", *about_strategy(settings, ratio))
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
) -> PlannedTrainings:
    with held.explaining():
        return plan(population, epochs=epochs, batch_sizes=sizes, **held.terms)
