"""Structures, shapes and dtypes of records, as a part of a configuration."""

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from keras_dp import _nests
from keras_dp.dp_queries.dp_query import Nest


def normalized(record_specs: Nest) -> Nest:
    """Returns a frozen copy whose leaves are `tf.TensorSpec`s without names.

    Args:
        record_specs: Nest (dicts with string keys, lists, tuples) of
            `tf.TensorSpec`s, or of anything with a shape and a dtype.

    Raises:
        TypeError: A leaf has no shape, or is not floating-point.
        ValueError: A shape is not fully known, or the nest is empty.
    """
    record_specs = _nests.thawed(record_specs)
    if not tf.nest.flatten(record_specs):
        raise ValueError(
            "`record_specs` must have at least one leaf. Received: "
            f"record_specs={record_specs!r}."
        )
    return _nests.frozen(tf.nest.map_structure(_spec, record_specs))


def to_config(record_specs: Nest) -> dict[str, Any]:
    """Returns the specs for JSON; a NamedTuple comes back as a tuple."""

    def of_leaf(spec: tf.TensorSpec) -> dict[str, Any]:
        return {"shape": spec.shape.as_list(), "dtype": spec.dtype.name}

    return _nests.to_config(record_specs, of_leaf)


def from_config(config: Mapping[str, Any]) -> Nest:
    """Inverts `to_config`."""
    return _nests.from_config(config, lambda leaf: tf.TensorSpec(**leaf))


def check_fits(template: Nest, record_specs: Nest) -> None:
    """Raises unless `template` has the structure and shapes of the specs."""

    def shapes(nest: Nest) -> Nest:
        return tf.nest.map_structure(
            lambda leaf: tuple(
                leaf.shape if hasattr(leaf, "shape") else tf.shape(leaf)
            ),
            nest,
        )

    expected, received = shapes(_nests.thawed(record_specs)), shapes(template)
    if expected != received:
        raise ValueError(
            "`template` must have the structure and shapes of `record_specs`, "
            f"which are {expected}. Received: {received}."
        )


def _spec(leaf: Any) -> tf.TensorSpec:
    if not (hasattr(leaf, "shape") and hasattr(leaf, "dtype")):
        raise TypeError(
            "`record_specs` must be a nest of tf.TensorSpecs. Received: a "
            f"leaf {leaf!r}."
        )
    dtype = tf.as_dtype(leaf.dtype)
    if not dtype.is_floating:
        raise TypeError(
            "`record_specs` must be floating-point. Received: a leaf of dtype "
            f"{dtype.name}."
        )
    shape = tf.TensorShape(leaf.shape)
    if not shape.is_fully_defined():
        raise ValueError(
            "`record_specs` must have fully known shapes. Received: a leaf of "
            f"shape {shape}."
        )
    return tf.TensorSpec(shape, dtype)
