"""Nests of tuples, lists and dicts, without TensorFlow or Keras."""

from collections.abc import Callable
from typing import Any

Nest = Any  # Tuples, lists and dicts, with arrays `[records, ...]` as leaves.


def mapped(
    function: Callable[..., Any], nest: Nest, *others: Nest, path: str = ""
) -> Nest:
    """Applies `function` to the path and the leaves of nests, in step.

    Raises:
        ValueError: `others` are not of the structure of `nest`.
    """
    keys = _keys(nest)
    for other in others:
        if _keys(other) != keys:
            raise ValueError(
                "`data[indices]` must have the structure of the first record. "
                f"Received: {_kind(other)} at {path or '/'}, where that has "
                f"{_kind(nest)}."
            )
    if keys is None:
        return function(path or "/", nest, *others)
    children = [
        mapped(
            function,
            nest[key],
            *(other[key] for other in others),
            path=f"{path}/{key}",
        )
        for key in keys
    ]
    if isinstance(nest, dict):
        return dict(zip(keys, children, strict=True))
    if hasattr(nest, "_fields"):  # A NamedTuple.
        return type(nest)(*children)
    return children if isinstance(nest, list) else tuple(children)


def _keys(nest: Nest) -> list[Any] | None:
    """Returns the keys of a node of a nest, and `None` for a leaf."""
    if isinstance(nest, dict):
        return sorted(nest, key=str)  # Equal for equal dicts, in any order.
    return list(range(len(nest))) if isinstance(nest, (tuple, list)) else None


def _kind(nest: Nest) -> str:
    keys = _keys(nest)
    if keys is None:
        return "an array"
    return f"a {type(nest).__name__} with the keys {keys}"


def leaves_of(nest: Nest) -> list[Any]:
    """Returns the leaves, those of dicts in the order of their keys."""
    leaves: list[Any] = []
    mapped(lambda _, leaf: leaves.append(leaf), nest)
    return leaves
