"""Shapes of records, where a configuration has to hold them."""

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from keras_dp.dp_queries.dp_query import Nest


def normalized(record_specs: Nest) -> Nest:
    """Returns a copy whose leaves are `tf.TensorSpec`s without names.

    Args:
        record_specs: Nest (dicts with string keys, lists, tuples) of
            `tf.TensorSpec`s, or of anything with a shape and a dtype.

    Raises:
        TypeError: A leaf has no shape, or is not floating-point.
        ValueError: A shape is not fully known, or the nest is empty.
    """
    if not tf.nest.flatten(record_specs):
        raise ValueError(
            "`record_specs` must have at least one leaf. Received: "
            f"record_specs={record_specs!r}."
        )
    return tf.nest.map_structure(_spec, record_specs)


def to_config(record_specs: Nest) -> dict[str, Any]:
    """Returns what JSON can hold; a NamedTuple comes back as a tuple."""
    if isinstance(record_specs, Mapping):
        items = {key: to_config(each) for key, each in record_specs.items()}
        return {"dict": items}
    if isinstance(record_specs, (list, tuple)):
        kind = "tuple" if isinstance(record_specs, tuple) else "list"
        return {kind: [to_config(each) for each in record_specs]}
    return {
        "shape": record_specs.shape.as_list(),
        "dtype": record_specs.dtype.name,
    }


def from_config(config: Mapping[str, Any]) -> Nest:
    """Returns the nest of `to_config`."""
    if "shape" in config:
        return tf.TensorSpec(config["shape"], config["dtype"])
    ((kind, held),) = config.items()
    if kind == "dict":
        return {key: from_config(each) for key, each in held.items()}
    children = [from_config(each) for each in held]
    return tuple(children) if kind == "tuple" else children


def check_fits(template: Nest, record_specs: Nest) -> None:
    """Raises unless records of `template` have the stated structure."""

    def shapes(nest: Nest) -> Nest:
        return tf.nest.map_structure(
            lambda leaf: tuple(
                leaf.shape if hasattr(leaf, "shape") else tf.shape(leaf)
            ),
            nest,
        )

    expected, received = shapes(record_specs), shapes(template)
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
