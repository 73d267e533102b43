"""Writes rounds as JSON, for programs that read reports."""

import dataclasses
import functools
import json
from collections.abc import Iterable, Iterator
from typing import Any

from keras_dp.ledger import CoordinateBounds, CountedRound, NoiseDistribution


def json_rounds(rounds: Iterable[CountedRound]) -> Iterator[str]:
    """Yields the parts of a JSON list of rounds, with one round on each line.

    Parts save memory: 10^5 kinds of rounds at once would take seconds and
    hundreds of MB.

    Args:
        rounds: The rounds in order, with their counts.
    """
    separator = "["
    for each in rounds:
        queries = ", ".join(map(_text, each.round.queries))
        yield (
            f'{separator}\n    {{"count": {each.count}, "seeded": '
            f"{json.dumps(each.round.seeded)}, "
            f'"sampling": {_text_of_many(each.round.sampling)}, '
            f'"queries": [{queries}]}}'
        )
        separator = ","
    yield "[]" if separator == "[" else "\n  ]"


def _text(event: Any) -> str:
    return json.dumps(_event(event))


# Many rounds have the same sampling.
_text_of_many = functools.lru_cache(maxsize=1024)(_text)


def _event(event: Any) -> dict[str, Any]:
    content = {"event": type(event).__name__}
    for field in dataclasses.fields(event):
        name, value = field.name, getattr(event, field.name)
        if isinstance(value, CoordinateBounds):
            value = {
                "vectors": len(value.level_array()),
                "dimension": value.dimension,
                "largest_l2_norm": value.largest_l2_norm,
            }
        elif isinstance(value, NoiseDistribution):
            own = dataclasses.asdict(value)
            value = {"family": type(value).__name__, **own}
        content[name] = value
    return content
