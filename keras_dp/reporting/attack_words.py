"""Says in sentences what the best attack on one unit can reach."""

import math

from keras_dp.accountants.attacks.precision import precision_at_recall
from keras_dp.accountants.attacks.trade_off import TradeOff
from keras_dp.reporting.wording import percent

# Suspicions before the attack, and the share of cases in which a true one may
# grow further than is said.
_PRIORS, _EXCEPT = (0.5, 0.01), 0.01
# The false positive rate of an attack that accuses many.
_FALSE_ALARMS = 0.001
# The chance of a hit without the releases: of all data, and of one attribute.
_HITS, _GUESSES = (1e-6, 1e-3), (0.5, 0.9)


def membership_sentences(curve: TradeOff) -> tuple[str, ...]:
    """Returns how well an attack can know which data set was used."""
    right = 0.5 + 0.5 * curve.advantage
    cases = round(1 / _EXCEPT)
    ends = ", and one of ".join(
        f"{percent(prior)} to "
        f"{percent(precision_at_recall(curve, prior=prior, recall=_EXCEPT))}"
        for prior in _PRIORS
    )
    hits = float(curve.largest_true_positive_rate(_FALSE_ALARMS))
    alarms = f"{round(1 / _FALSE_ALARMS):,}"
    return (
        "An attacker who guesses without the releases is right 50 % of the "
        f"time; with them, at most {percent(right)}.",
        f"In {cases - 1} of {cases} cases, a true suspicion grows at most "
        f"like this: one of {ends}.",
        "An attacker who asks about many, and wrongly accuses 1 in "
        f"{alarms} of those for whom the answer is no, finds at most "
        f"{percent(hits)} of those for whom it is yes; by guessing, "
        f"{percent(_FALSE_ALARMS)}.",
    )


def reconstruction_sentence(curve: TradeOff, unit: str) -> str:
    """Returns how often an attack can reproduce the data of a unit.

    Args:
        curve: A bound on every attack.
        unit: The word for the unit, or for a group of units.
    """
    (seldom, reached), (often, more) = (
        (f"1 time in {round(1 / prior):,}", _reached(curve, prior))
        for prior in _HITS
    )
    return (
        f"An attacker may try to reproduce the data of one {unit}, whatever "
        f"counts as close enough. If that succeeds {seldom} without the "
        f"releases, it succeeds at most {reached} of the time with them; if "
        f"{often}, at most {more}."
    )


def attribute_sentence(curve: TradeOff, unit: str) -> str:
    """Returns how often an attack can guess an attribute of a unit.

    Args:
        curve: A bound on every attack.
        unit: The word for the unit, or for a group of units.
    """
    (even, reached), (likely, higher) = (
        (percent(prior), _reached(curve, prior)) for prior in _GUESSES
    )
    # Up to a tenth; an excess by rounding alone is not rounded up.
    more = math.ceil(1000 * curve.advantage - 1e-9) / 10
    return (
        f"An attacker may know all but one attribute of one {unit}. If its "
        f"likeliest value is right {even} of the time, a guess with the "
        f"releases is right at most {reached}; if {likely}, at most {higher}. "
        f"For any attribute, the releases add at most {more:g} percentage "
        "points."
    )


def _reached(curve: TradeOff, prior: float) -> str:
    return percent(float(curve.largest_reconstruction_rate(prior)))
