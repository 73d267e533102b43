"""Finds values that layers keep in Python attributes while they run eagerly."""

import contextlib
import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_dp.keras_internals import attributes_of

_VALUES = (np.ndarray, np.generic, bool, int, float, complex, str, bytes)


@contextlib.contextmanager
def changed_attributes(layers: list[keras.Layer]) -> Iterator[list[str]]:
    """Compares the values in the attributes of layers, and in containers there.

    Containers are lists, tuples, sets and mappings, at any depth. Values inside
    other objects are not compared. An array that was written in place counts as
    another value.

    Yields:
        A list. When the context ends, it gets the names of the attributes
        whose tensors, arrays, numbers or texts are others than before.
    """
    changed: list[str] = []
    before = [_values(attributes_of(layer)) for layer in layers]
    yield changed
    for layer, old in zip(layers, before, strict=True):
        new = _values(attributes_of(layer))
        changed += [
            f"{layer.path}.{name}"
            for name in new
            if not _are_same(old.get(name, []), new[name])
        ]


def _values(attributes: Mapping[str, Any]) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for name, value in attributes.items():
        found[name] = []
        _collect(value, found[name], set())
    return found


def _collect(value: Any, found: list[Any], seen: set[int]) -> None:
    if isinstance(value, np.ndarray) and value.dtype.hasobject:
        value = value.tolist()
    if isinstance(value, Mapping):
        value = list(value.items())
    if isinstance(value, (list, tuple, set, frozenset)):
        if id(value) not in seen:  # A list may hold itself.
            seen.add(id(value))
            for each in value:
                _collect(each, found, seen)
    elif isinstance(value, _VALUES) or (
        tf.is_tensor(value) and not isinstance(value, tf.Variable)
    ):
        found.append(value)
        if isinstance(value, np.ndarray):
            # It may be written in place.
            contents = np.ascontiguousarray(value).tobytes()
            found.append(hashlib.blake2b(contents).digest())


def _are_same(old: list[Any], new: list[Any]) -> bool:
    return len(old) == len(new) and all(
        one is two or (not hasattr(one, "shape") and one == two)
        for one, two in zip(old, new, strict=True)
    )
