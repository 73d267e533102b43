"""The best of a random number of trials, whatever a trial is.

The price of a search rests on what this file does: the number of trials is
drawn before the first one and from the law alone, each trial is run in the
same way as any other, and the one with the highest rank is kept.
"""

import math
import secrets
from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar

from keras_dp.ledger import TrialLaw
from keras_dp.tuning.priors import Draw

Content = TypeVar("Content")


class Scored(NamedTuple, Generic[Content]):
    """The result of one trial.

    Attributes:
        score: Higher is better. One that is not finite is the worst.
        content: It is released with the score if the trial is the best.
    """

    score: float
    content: Content


def uniform() -> float:
    """Returns a number in [0, 1) from the generator of the system."""
    return secrets.randbits(53) / 2**53


def best_of(
    law: TrialLaw,
    trial: Callable[[], Scored[Content]],
    draw: Draw = uniform,
) -> Scored[Content] | None:
    """Runs a random number of trials, and returns the best one.

    Guarantee: if all trials are alike and independent, given the data, the
    result is that of the algorithm that a `Selection` prices. Equal scores
    are put in order at random.

    Args:
        law: The law of the number of trials.
        trial: Runs one trial. It must not know of the others.
        draw: The source of all randomness of the search itself.

    Returns:
        The best trial; `None` if there was none, or none with a finite score.
        Which of these it was is not told.
    """
    best: tuple[float, float] | None = None
    found: Scored[Content] | None = None
    for _ in range(law.trials(draw())):
        scored = trial()
        if not math.isfinite(scored.score):
            continue
        rank = scored.score, draw()
        if best is None or rank > best:
            best, found = rank, scored
    return found
