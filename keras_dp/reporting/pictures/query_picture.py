"""Draws a bar for the cost of each query, or of each run."""

import math
from collections.abc import Sequence

from keras_dp.accountants.claim import shown_epsilon
from keras_dp.reporting.pictures.svg import WIDTH, label, picture
from keras_dp.reporting.query_costs import QueryCost

_ROW, _TOP, _LEFT, _RIGHT = 40, 10, 12, 84
_LONGEST_NAME = 52


def query_picture(
    costs: Sequence[QueryCost], *, delta: float, each_one: str = "query"
) -> str:
    """Returns an SVG picture with a bar for each query.

    A bar ends at the epsilon that the query would have if nothing else had
    been released; the last one is all of them together, which is no sum.

    Args:
        costs: From `query_costs`.
        delta: All costs are at it.
        each_one: Names the things that have a bar.

    Returns:
        An `<svg>` element that is complete by itself.
    """
    finite = [each.epsilon for each in costs if math.isfinite(each.epsilon)]
    widest = max(finite, default=0.0) or 1.0
    room = WIDTH - _LEFT - _RIGHT
    marks = []
    for index, each in enumerate(costs):
        top = _TOP + _ROW * index
        share = min(1.0, each.epsilon / widest)
        kind = "all" if each.is_total else "bar"
        marks.append(
            label(_LEFT, top + 13, _shortened(each.name))
            + f'<rect class="{kind}" x="{_LEFT}" y="{top + 18}" '
            f'width="{max(1.0, share * room):.2f}" height="13"/>'
            + label(
                _LEFT + share * room + 7, top + 29, shown_epsilon(each.epsilon)
            )
        )
    said = "; ".join(
        f"{each.name}: {shown_epsilon(each.epsilon)}" for each in costs
    )
    return picture(
        "".join(marks),
        f"Epsilon at delta = {delta:g} of each {each_one} alone, and of all "
        f"together: {said}.",
        2 * _TOP + _ROW * len(costs),
    )


def _shortened(name: str) -> str:
    if len(name) <= _LONGEST_NAME:
        return name
    half = _LONGEST_NAME // 2
    return f"{name[:half]} ... {name[-half:]}"
