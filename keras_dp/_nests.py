"""Nests of dicts, lists and tuples, walked and frozen without Keras.

A nest is a leaf, or a dict, list, tuple or NamedTuple of nests. Children come
in the order of `keras.tree`, which walks nests of tensors: those of a dict by
sorted keys.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

from keras_dp._override import override

Nest = Any  # A leaf, or a dict, list, tuple or NamedTuple of nests.
Keys = tuple[Any, ...]  # The keys and places that lead to a leaf.


class FrozenDict(Mapping[Any, Any]):
    """A dict that cannot be changed, equal to a dict of the same items.

    >>> frozen = FrozenDict({"b": 1, "a": 2})
    >>> frozen == {"a": 2, "b": 1}, {frozen: "hashes"}[frozen]
    (True, 'hashes')
    >>> frozen["a"] = 3
    Traceback (most recent call last):
    ...
    TypeError: 'FrozenDict' object does not support item assignment
    """

    __slots__ = ("_items",)

    _items: Mapping[Any, Any]

    def __init__(
        self, items: Mapping[Any, Any] | Iterable[tuple[Any, Any]] = ()
    ) -> None:
        """Copies the items, and keeps their order."""
        object.__setattr__(self, "_items", MappingProxyType(dict(items)))

    @override
    def __getitem__(self, key: Any) -> Any:
        return self._items[key]

    @override
    def __iter__(self) -> Iterator[Any]:
        return iter(self._items)

    @override
    def __len__(self) -> int:
        return len(self._items)

    @override
    def __hash__(self) -> int:
        return hash(frozenset(self._items.items()))

    @override
    def __repr__(self) -> str:
        return repr(dict(self._items))

    @override
    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(
            "A FrozenDict cannot be changed. Make a dict of it, and change it."
        )

    @override
    def __reduce__(self) -> tuple[Any, ...]:
        return FrozenDict, (dict(self._items),)


class FrozenList(tuple[Any, ...]):
    """A list that cannot be changed, equal to a list of the same items.

    It differs from a tuple, so that `thawed` knows which of the two it was.

    >>> FrozenList([1, 2]) == [1, 2], FrozenList([1, 2]) == (1, 2)
    (True, False)
    """

    __slots__ = ()

    @override
    def __eq__(self, other: object) -> bool:
        return isinstance(other, (list, FrozenList)) and list(self) == list(
            other
        )

    @override
    def __ne__(self, other: object) -> bool:
        return not self == other

    @override
    def __hash__(self) -> int:
        return hash(tuple(self))

    @override
    def __repr__(self) -> str:
        return repr(list(self))


def frozen(nest: Nest) -> Nest:
    """Returns a copy of a nest that neither its owner nor others can change.

    The copy compares and prints like the nest, and hashes if its leaves do.

    >>> nest = frozen({"a": [1, (2,)]})
    >>> nest, hash(nest) == hash(frozen({"a": [1, (2,)]}))
    ({'a': [1, (2,)]}, True)
    """
    if isinstance(nest, Mapping):
        return FrozenDict((key, frozen(nest[key])) for key in nest)
    if _is_list(nest):
        return FrozenList(map(frozen, nest))
    return _rebuilt(nest, map(frozen, nest)) if _is_node(nest) else nest


def thawed(nest: Nest) -> Nest:
    """Returns a copy of a nest whose dicts and lists are plain ones."""
    return join(nest, iter(leaves(nest)))


def children(nest: Nest) -> list[tuple[Any, Nest]] | None:
    """Returns the children with their keys; `None` for a leaf.

    Keys of lists, tuples and NamedTuples are places, 0, 1, 2, ...

    >>> children({"b": [5], "a": 6}), children(7)
    ([('a', 6), ('b', [5])], None)
    """
    if isinstance(nest, Mapping):
        return [(key, nest[key]) for key in sorted(nest, key=str)]
    return list(enumerate(nest)) if _is_node(nest) else None


def flattened(nest: Nest) -> list[tuple[Keys, Any]]:
    """Returns each leaf, after the keys that lead to it.

    >>> flattened({"b": [5], "a": 6})
    [(('a',), 6), (('b', 0), 5)]
    """
    below = children(nest)
    if below is None:
        return [((), nest)]
    return [
        ((key, *keys), leaf)
        for key, child in below
        for keys, leaf in flattened(child)
    ]


def leaves(nest: Nest) -> list[Any]:
    """Returns the leaves."""
    return [leaf for _, leaf in flattened(nest)]


def paths(nest: Nest) -> list[str]:
    """Returns the keys that lead to each leaf, joined by `/`."""
    return ["/".join(map(str, keys)) for keys, _ in flattened(nest)]


def split(prefix: Nest, nest: Nest, rule: str, path: str = "") -> list[Any]:
    """Returns the parts of `nest` that lie below the leaves of `prefix`.

    Lists and tuples stand for one another. An error begins with the rule, which
    says what must fit what, and names a place below `path`.

    >>> split({"a": 0, "b": [1]}, {"a": (5, 6), "b": [7]}, "")
    [(5, 6), 7]
    """
    below = children(prefix)
    if below is None:
        return [nest]
    own = children(nest)
    if (
        own is None
        or isinstance(nest, Mapping) != isinstance(prefix, Mapping)
        or [key for key, _ in own] != [key for key, _ in below]
    ):
        raise ValueError(
            f"{rule} Received: {shown(nest)} at {path or '/'}, where there "
            f"must be {shown(prefix)}."
        )
    return [
        part
        for (key, child), (_, part_of_nest) in zip(below, own, strict=True)
        for part in split(child, part_of_nest, rule, f"{path}/{key}")
    ]


def join(prefix: Nest, parts: Iterator[Any]) -> Nest:
    """Returns a copy of `prefix` with its leaves replaced by `parts`.

    Dicts and lists of the copy are plain, also where they were frozen.

    >>> join({"b": 0, "a": (0, 0)}, iter([7, 8, 9]))
    {'b': 9, 'a': (7, 8)}
    """
    below = children(prefix)
    if below is None:
        return next(parts)
    return _rebuilt(prefix, [join(child, parts) for _, child in below])


def mapped(
    function: Callable[..., Any],
    nest: Nest,
    *others: Nest,
    rule: str = "All nests must have one structure.",
) -> Nest:
    """Applies `function` to the path and the leaves of nests, in step.

    A path is such as "/a/0". The error for nests of other structures begins
    with the rule, which says what must fit what.

    >>> mapped(lambda path, one, two: (path, one + two), {"a": 1}, {"a": 2})
    {'a': ('/a', 3)}
    """
    places = ["/" + path for path in paths(nest)]
    each = [leaves(nest)]
    for other in others:
        each.append(split(nest, other, rule))
        for place, leaf in zip(places, each[-1], strict=True):
            if children(leaf) is not None:
                raise ValueError(
                    f"{rule} Received: {shown(leaf)} at {place}, where there "
                    "must be a leaf."
                )
    return join(nest, map(function, places, *each))


def shown(nest: Nest) -> str:
    """Returns a nest's type and keys, for messages: never what it holds."""
    below = children(nest)
    if below is None:
        return f"one {type(nest).__name__}"
    frozen_kinds = {FrozenDict: "dict", FrozenList: "list"}
    kind = frozen_kinds.get(type(nest), type(nest).__name__)
    return f"a {kind} of {[key for key, _ in below]!r}"


def _rebuilt(nest: Nest, parts: Iterable[Nest]) -> Nest:
    """Returns a node of the kind of `nest`, plain, with other children."""
    if isinstance(nest, Mapping):
        new = dict(zip(sorted(nest, key=str), parts, strict=True))
        return {key: new[key] for key in nest}
    if hasattr(nest, "_fields"):  # A NamedTuple.
        return type(nest)(*parts)
    return list(parts) if _is_list(nest) else tuple(parts)


def _is_node(nest: Nest) -> bool:
    return isinstance(nest, (Mapping, list, tuple))


def _is_list(nest: Nest) -> bool:
    return isinstance(nest, (list, FrozenList))
