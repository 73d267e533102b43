"""Rounds as JSON for reports, for people's programs to read."""

import dataclasses
from typing import Any

from keras_dp.ledger import CoordinateBounds, CountedRound, NoiseDistribution


def json_round(each: CountedRound) -> dict[str, Any]:
    """Returns a counted round as what JSON can hold."""
    return {
        "count": each.count,
        "seeded": each.round.seeded,
        "sampling": _event(each.round.sampling),
        "queries": [_event(query) for query in each.round.queries],
    }


def _event(event: Any) -> dict[str, Any]:
    content = {"event": type(event).__name__}
    for field in dataclasses.fields(event):
        value = getattr(event, field.name)
        if isinstance(value, CoordinateBounds):
            value = {
                "vectors": len(value.level_array()),
                "dimension": value.dimension,
                "largest_l2_norm": value.largest_l2_norm,
            }
        elif isinstance(value, NoiseDistribution):
            own = dataclasses.asdict(value)
            value = {"family": type(value).__name__, **own}
        content[field.name] = value
    return content
