"""Nests of arrays, `[records, ...]`, walked in step."""

from collections.abc import Callable
from typing import Any

from keras_dp import _nests

Nest = Any  # Tuples, lists and dicts, with arrays `[records, ...]` as leaves.

_RULE = "`data[indices]` must have the structure of the first record."


def mapped(function: Callable[..., Any], nest: Nest, *others: Nest) -> Nest:
    """Applies `function` to the path and the leaves of nests, in step.

    Raises:
        ValueError: `others` are not of the structure of `nest`.
    """
    paths = ["/" + path for path in _nests.paths(nest)]
    leaves = [_nests.leaves(nest)]
    for other in others:
        leaves.append(_nests.split(nest, other, _RULE))
        for path, leaf in zip(paths, leaves[-1], strict=True):
            if _nests.children(leaf) is not None:
                raise ValueError(
                    f"{_RULE} Received: {_nests.shown(leaf)} at {path}, where "
                    "there must be an array."
                )
    return _nests.join(nest, map(function, paths, *leaves))
