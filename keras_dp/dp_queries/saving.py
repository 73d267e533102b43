"""Queries and their parts in the configuration of a saved model."""

import dataclasses
from collections.abc import Mapping
from typing import Any, Self

import keras
import tensorflow as tf

from keras_dp import _nests, ledger
from keras_dp.ledger.rows import codec

# Values that are saved as the ledger stores them.
_OF_THE_LEDGER = (
    ledger.CoordinateBounds,
    ledger.NoiseDistribution,
    ledger.Strategy,
)


class Configured:
    """A frozen dataclass that Keras saves by its fields.

    A NamedTuple comes back as a tuple, which is equal to it.
    """

    __slots__ = ()

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments of the constructor, for JSON."""
        return {
            field.name: _saved(getattr(self, field.name))
            for field in dataclasses.fields(self)  # type: ignore[arg-type]
        }

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """Inverts `get_config`."""
        return cls(**{name: _loaded(each) for name, each in config.items()})


def register(cls: type[Any]) -> type[Any]:
    """Registers a class with Keras, so that a saved model can be loaded."""
    return keras.saving.register_keras_serializable(package="keras_dp")(cls)


def set_fields(value: Configured, **fields: Any) -> None:
    """Sets fields of a frozen value, in its constructor."""
    for name, field in fields.items():
        object.__setattr__(value, name, field)


def as_floats(value: Configured, *fields: str) -> None:
    """Turns fields that are integers or NumPy scalars into Python floats."""
    for field in fields:
        object.__setattr__(value, field, float(getattr(value, field)))


def _saved(value: Any) -> Any:
    if isinstance(value, Configured):
        return keras.saving.serialize_keras_object(value)
    if isinstance(value, _OF_THE_LEDGER):
        return codec.content_from_value(value)
    if isinstance(value, Mapping):
        return {"dict": {key: _saved(each) for key, each in value.items()}}
    if isinstance(value, (list, _nests.FrozenList)):
        return {"list": [_saved(each) for each in value]}
    if isinstance(value, tuple):
        return [_saved(each) for each in value]
    if isinstance(value, tf.TensorSpec):
        return {"shape": value.shape.as_list(), "dtype": value.dtype.name}
    return value


def _loaded(config: Any) -> Any:
    """Inverts `_saved`: the kind of a value shows in its keys."""
    if isinstance(config, list):
        return tuple(_loaded(each) for each in config)
    if not isinstance(config, Mapping):
        return config
    if "dict" in config:
        return {key: _loaded(each) for key, each in config["dict"].items()}
    if "list" in config:
        return list(_loaded(config["list"]))
    if "kind" in config:
        return codec.value_from_content(config)
    if "shape" in config:
        return tf.TensorSpec(**config)
    return keras.saving.deserialize_keras_object(config)


def frozen_specs(record_specs: Any) -> Any:
    """Returns a frozen copy whose leaves are `tf.TensorSpec`s without names.

    A leaf may be anything with a shape and a dtype. Shapes must be fully known,
    and dtypes floating-point.
    """
    record_specs = _nests.thawed(record_specs)
    if not keras.tree.flatten(record_specs):
        raise ValueError(
            "`record_specs` must have at least one leaf. Received: "
            f"record_specs={record_specs!r}."
        )
    return _nests.frozen(keras.tree.map_structure(_spec, record_specs))


def check_fits(template: Any, record_specs: Any) -> None:
    """Raises unless `template` has the structure and shapes of the specs."""

    def shapes(nest: Any) -> Any:
        return keras.tree.map_structure(
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
