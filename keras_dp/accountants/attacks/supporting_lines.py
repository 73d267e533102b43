"""Lines above the true positive rates of attacks, where they help most.

A pair (epsilon, delta) is the line `x -> delta + e^epsilon x`. What an attack
can achieve is a concave function below all of them, and nearly touches each.
"""

import math
from collections.abc import Callable, Iterable
from typing import NamedTuple

from keras_dp.accountants.arrays import EXPONENT


class Line(NamedTuple):
    """A bound on true positives.

    Attributes:
        epsilon: Log of the slope, >= 0.
        delta: The true positive rate without false positives.
    """

    epsilon: float
    delta: float


class Corner(NamedTuple):
    """Where the lowest of some lines changes.

    Attributes:
        rate: The false positive rate.
        flat: The lowest line to the right.
        steep: The lowest line to the left.
    """

    rate: float
    flat: Line
    steep: Line

    def height(self, rate: float) -> float:
        """Returns what the lower of the two lines is."""
        line = self.flat if rate >= self.rate else self.steep
        if rate == 0:
            return line.delta
        return line.delta + math.exp(line.epsilon + math.log(rate))


def corners(lines: Iterable[Line]) -> list[Corner]:
    """Returns the corners of the lowest of some lines, from right to left.

    Args:
        lines: In rising order of epsilon.
    """
    kept: list[Line] = []
    found: list[Corner] = []
    for line in lines:
        if kept and line.delta >= kept[-1].delta:
            continue  # Steeper and not lower.
        while found and _crossing(kept[-1], line) >= found[-1].rate:
            kept.pop()
            found.pop()
        if kept:
            rate = _crossing(kept[-1], line)
            found.append(Corner(rate, kept[-1], line))
        kept.append(line)
    return found


def supporting_lines(
    delta: Callable[[float], float],
    *,
    largest_epsilon: float,
    lines: int,
    least_rate: float,
    tail_weight: float,
) -> list[Line]:
    """Returns lines in rising order of epsilon.

    The curve lies above the chord between two corners, which all but touch
    it, and below the corner between them. Where that leaves most room, in
    units of the power `tail_weight` of the height, the next line is made: with
    the slope of the chord, or nearest to it in the middle half between the two
    lines, which covers all scales in few steps.

    Args:
        delta: At an epsilon >= 0.
        largest_epsilon: Epsilon of the steepest line.
        lines: How many, unless fewer leave no room.
        least_rate: Smaller rates of false positives do not matter, > 0.
        tail_weight: At 1 rooms are relative ones, at 0 absolute ones.

    Source: the chord rule of sandwich algorithms for convex functions; Rote
    (1992), Computing 48.
    """
    found = {0.0: Line(0.0, delta(0.0))}
    if 0 < largest_epsilon < math.inf:
        found[largest_epsilon] = Line(largest_epsilon, delta(largest_epsilon))
    while len(found) < lines:
        ordered = [found[epsilon] for epsilon in sorted(found)]
        rooms = _rooms(ordered, least_rate, tail_weight)
        rooms = [(room, at) for room, at in rooms if at not in found]
        if not rooms:
            break
        _, epsilon = max(rooms)
        found[epsilon] = Line(epsilon, delta(epsilon))
    return [found[epsilon] for epsilon in sorted(found)]


def _rooms(
    lines: list[Line], least_rate: float, tail_weight: float
) -> list[tuple[float, float]]:
    """Returns rooms at corners, and the epsilons of lines to fill them."""
    # The curve is its own mirror image: its lowest line there touches it.
    middle, center = max(
        ((1 - line.delta) / (1 + math.exp(line.epsilon)), index)
        for index, line in enumerate(lines)
        if line.epsilon < EXPONENT
    )
    found = [each for each in corners(lines) if each.rate < middle]
    points = [(middle, 1 - middle)]
    points += [(each.rate, each.height(each.rate)) for each in found]
    points.append((0.0, 0.0))
    rooms = []
    for corner, right, left in zip(found, points, points[2:], strict=False):
        rate = max(corner.rate, least_rate)
        if not left[0] < rate < right[0]:
            continue
        slope = (right[1] - left[1]) / (right[0] - left[0])
        height = corner.height(rate)
        room = height - (left[1] + slope * (rate - left[0]))
        first, last = corner.flat.epsilon, corner.steep.epsilon
        margin = (last - first) / 4
        epsilon = math.log(slope) if 0 < slope < math.inf else last
        epsilon = min(max(epsilon, first + margin), last - margin)
        if room > 0 and first < epsilon < last:
            rooms.append((room * math.pow(height, -tail_weight), epsilon))
    if center > 0:  # The accountant's delta is not tight at small epsilons.
        rate, height = points[1]
        room = 1 - middle - (1 + height - rate) / 2
        flatter = (lines[center - 1].epsilon + lines[center].epsilon) / 2
        rooms.append((room * math.pow(1 - middle, -tail_weight), flatter))
    return rooms


def _crossing(flat: Line, steep: Line) -> float:
    """Returns the false positive rate where two lines are as high."""
    fall = math.exp(-steep.epsilon) / -math.expm1(flat.epsilon - steep.epsilon)
    return (flat.delta - steep.delta) * fall
