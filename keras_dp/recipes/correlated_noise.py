"""Noise that is correlated over the rounds, where that is better."""

from typing import Any

from keras_dp import _check
from keras_dp.ledger import BandedToeplitz, Strategy
from keras_dp.planning import plan_correlated_noise
from keras_dp.planning.correlated_noise import amplified
from keras_dp.recipes.settings import Settings
from keras_dp.sampling import CyclicPoissonBatches, Sampler

# The noise of a round depends on no other round.
_ALONE = ("independent", "proven")


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


def samples_and_noise(
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
    if settings.strategy is not None:
        best, independent = (
            amplified(each, rounds, share, **terms)
            for each in (settings.strategy, BandedToeplitz((1.0,)))
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


def about_strategy(settings: Settings, ratio: float | None) -> tuple[str, str]:
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
