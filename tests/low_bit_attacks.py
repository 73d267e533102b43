"""Attacks on the low bits of answers with Gaussian noise.

An attacker sees an answer, a vector of floats, and decides which of two sums
lies behind it. Both attacks look for a coordinate that the float program could
not have computed from a sum. Noise that is large against the sums does not
help: the attacks look at bits far below it.

* `refuted` asks for a float noise that makes the sum the answer. Small answers
  have bits that a larger sum would have rounded away (Haney et al. 2022,
  arXiv:2207.13793, the precision-based attack).
* `unreachable` asks for a noise that the generator can draw (Mironov 2012, "On
  significance of the least significant bits for differential privacy"; Jin et
  al. 2022, arXiv:2112.05307, for Gaussian noise). It needs all values of the
  generator.

NumPy is all they need.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

# One record of norm 1 moves each of so many coordinates by a power of two.
COORDINATES = 1024
STEP = 2.0**-5

Answers = NDArray[np.floating]
Attack = Callable[[Answers, float], bool]


def refuted(answer: Answers, total: float) -> bool:
    """Returns whether no float noise makes a sum the answer.

    Args:
        answer: float32 or float64, any shape.
        total: The sum in every coordinate, a float of that dtype.
    """
    kind = answer.dtype.type
    nearest = (answer.astype(np.longdouble) - total).astype(kind)
    possible = np.zeros(answer.shape, bool)
    for noise in (
        np.nextafter(nearest, kind(-np.inf)),
        nearest,
        np.nextafter(nearest, kind(np.inf)),
    ):
        possible |= kind(total) + noise == answer
    return not possible.all()


def unreachable(values: Answers) -> Attack:
    """Returns the attack that knows all values of the noise.

    Args:
        values: The values of the noise, sorted, in the answers' dtype.
    """

    known = values.astype(np.longdouble)

    def attack(answer: Answers, total: float) -> bool:
        # Any noise in between makes the sum the answer.
        middle = answer.astype(np.longdouble) - total
        half = np.spacing(np.abs(answer)) / np.longdouble(2)
        first = np.searchsorted(known, middle - half, "left")
        behind = np.searchsorted(known, middle + half, "right")
        return not (behind > first).all()

    return attack


def success_rate(attack: Attack, without: Answers, with_one: Answers) -> float:
    """Returns the share of answers that an attacker assigns to their sum.

    Half is chance. Noise of a standard deviation as large as the norm of the
    record should keep every attacker below 0.70.

    Args:
        attack: Takes an answer and a sum, and returns whether that sum is ruled
            out.
        without: Answers `[trials, COORDINATES]` to a sum of zeros.
        with_one: Answers of the same shape to a sum of `STEP`s.
    """
    right = [attack(answer, STEP) for answer in without]
    right += [not attack(answer, STEP) for answer in with_one]
    return float(np.mean(right))


def rounding_records(batch: int) -> Answers:
    """Returns records of one coordinate, whose float sum is far from theirs.

    The first is 1. Each of the others is a little more than half of the last
    bit of 1. If they are added in order, each moves the sum by that whole bit,
    but only where the first record is there (Casacuberta et al. 2022,
    arXiv:2207.10635, "repeated rounding").

    Returns:
        float32 `[batch, 1]`.
    """
    small = np.float32(2.0**-24 * (1 + 2.0**-10))
    return np.r_[np.float32(1), np.full(batch - 1, small)][:, np.newaxis]


def excess(total: Callable[[Answers], Answers], batch: int = 4096) -> float:
    """Returns how far the first record moves a float sum beyond its norm, 1.

    Args:
        total: Returns the sum of records `[batch, 1]`.
        batch: The number of records.
    """
    records = rounding_records(batch)
    others = records.copy()
    others[0] = 0
    moved = np.float64(total(records)) - np.float64(total(others))
    return float(np.abs(moved).max() - 1)
