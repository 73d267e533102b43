"""Nests of queries: dicts, lists and tuples, with queries as leaves.

The nest of queries says where a record is cut; below a leaf is that query's
own business.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import keras

from keras_dp.dp_queries.dp_query import DPQuery, Nest


def leaves(queries: Nest) -> list[Any]:
    """Returns the leaves, queries or not, in `tf.nest`'s order."""
    if not _is_node(queries):
        return [queries]
    return [leaf for _, child in _items(queries) for leaf in leaves(child)]


def paths(queries: Nest) -> list[str]:
    """Returns the keys that lead to each leaf, joined by `/`."""
    return ["/".join(map(str, keys)) for keys in _keys_to_leaves(queries)]


def check(queries: Nest) -> None:
    """Raises unless the leaves are queries, told apart by their paths."""
    each = leaves(queries)
    if not each or not all(isinstance(leaf, DPQuery) for leaf in each):
        raise TypeError(
            "`queries` must be a nest of at least one DPQuery and of "
            f"nothing else. Received: queries={queries!r}."
        )
    if not all(
        key and isinstance(key, str) and "/" not in key
        for key in _names(queries)
    ):
        raise ValueError(
            "`queries` must have non-empty strings without `/` as keys of its "
            "dicts: they make the paths that name queries in the ledger. "
            f"Received: queries={queries!r}."
        )


def split(
    queries: Nest, nest: Nest, path: str = "", name: str = "queries"
) -> list[Any]:
    """Returns the parts of `nest` that lie below the leaves of `queries`.

    Args:
        queries: Nest whose structure is a prefix of that of `nest`.
        nest: What is cut.
        path: Where in a record the two are.
        name: What an error calls `queries`.
    """
    if not _is_node(queries):
        return [nest]
    if isinstance(queries, Mapping):
        fits = isinstance(nest, Mapping) and set(nest) == set(queries)
    else:
        fits = isinstance(nest, Sequence) and len(nest) == len(queries)
    if not fits:
        raise ValueError(
            f"`{name}` must have a structure that is a prefix of the record's. "
            f"Received: a record with {_shown(nest)} at {path or '/'}, where "
            f"`{name}` has {_shown(queries)}."
        )
    return [
        part
        for key, child in _items(queries)
        for part in split(child, nest[key], f"{path}/{key}", name)
    ]


def join(queries: Nest, parts: Iterator[Any]) -> Nest:
    """Returns a copy of `queries` with its leaves replaced by `parts`."""
    if not _is_node(queries):
        return next(parts)
    children = {key: join(child, parts) for key, child in _items(queries)}
    if isinstance(queries, Mapping):
        return {key: children[key] for key in queries}
    if hasattr(queries, "_fields"):  # A NamedTuple.
        return type(queries)(*children.values())
    return (
        tuple(children.values())
        if isinstance(queries, tuple)
        else list(children.values())
    )


def to_config(queries: Nest) -> dict[str, Any]:
    """Returns what JSON can hold, which has neither tuples nor queries.

    A NamedTuple comes back as a tuple, which is equal to it.
    """
    if isinstance(queries, Mapping):
        items: Any = {key: to_config(child) for key, child in queries.items()}
        return {"dict": items}
    if _is_node(queries):
        kind = "tuple" if isinstance(queries, tuple) else "list"
        return {kind: [to_config(child) for child in queries]}
    return {"query": keras.saving.serialize_keras_object(queries)}


def from_config(config: Mapping[str, Any]) -> Nest:
    """Returns the nest of `to_config`."""
    ((kind, held),) = config.items()
    if kind == "query":
        return keras.saving.deserialize_keras_object(held)
    if kind == "dict":
        return {key: from_config(child) for key, child in held.items()}
    children = [from_config(child) for child in held]
    return tuple(children) if kind == "tuple" else children


def _is_node(queries: Nest) -> bool:
    return isinstance(queries, (Mapping, list, tuple))


def _items(queries: Nest) -> list[tuple[Any, Nest]]:
    """Returns the children of a nest with their keys, in `tf.nest`'s order."""
    if isinstance(queries, Mapping):
        return [(key, queries[key]) for key in sorted(queries, key=str)]
    return list(enumerate(queries))


def _names(queries: Nest) -> list[Any]:
    """Returns the keys of all dicts of a nest."""
    if not _is_node(queries):
        return []
    own = list(queries) if isinstance(queries, Mapping) else []
    return own + [k for _, child in _items(queries) for k in _names(child)]


def _keys_to_leaves(queries: Nest) -> list[tuple[Any, ...]]:
    if not _is_node(queries):
        return [()]
    return [
        (key, *below)
        for key, child in _items(queries)
        for below in _keys_to_leaves(child)
    ]


def _shown(nest: Nest) -> str:
    """A nest's type and keys, never what it holds."""
    if not _is_node(nest):
        return f"one {type(nest).__name__}"
    return f"a {type(nest).__name__} of {[key for key, _ in _items(nest)]!r}"
