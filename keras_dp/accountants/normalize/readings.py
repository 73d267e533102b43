"""Several things that dominate the same rounds: the smallest price holds."""

from collections import Counter

from keras_dp.accountants.normalize.mechanisms import (
    CountedMechanism,
    Mechanism,
    Overflow,
    Slack,
)
from keras_dp.accountants.normalize.order import in_order


def readings(
    rounds: tuple[CountedMechanism, ...],
) -> tuple[tuple[CountedMechanism, ...], ...]:
    """Returns mechanisms that dominate rounds, each tuple by itself.

    Truncated samples take a part of delta, or are of less noise where they are
    full (see `truncation`). Which price is smaller depends on delta.

    Args:
        rounds: Mechanisms with their counts.

    Returns:
        At least one tuple, in none of which there is a choice.
    """
    if not any(isinstance(mechanism, Overflow) for mechanism, _ in rounds):
        return (rounds,)
    return _of_slack(rounds), _without_slack(rounds)


def _of_slack(
    rounds: tuple[CountedMechanism, ...],
) -> tuple[CountedMechanism, ...]:
    """Returns truncated samples that take what they take of delta."""
    found = Counter[Mechanism]()
    for mechanism, count in rounds:
        if isinstance(mechanism, Overflow):
            mechanism = Slack(mechanism.delta_p)
        found[mechanism] += count
    return in_order(found)


def _without_slack(
    rounds: tuple[CountedMechanism, ...],
) -> tuple[CountedMechanism, ...]:
    """Returns truncated samples as rounds that tell whether they are full."""
    found = Counter[Mechanism](dict(rounds))
    for mechanism, count in rounds:
        if isinstance(mechanism, Overflow):
            found[mechanism.told.whole] -= count
            found[mechanism.told] += count
            del found[mechanism]
    return in_order(+found)
