"""Queries and their parts in the configuration of a saved model."""

import dataclasses
from collections.abc import Mapping
from typing import Any, Self

import keras

from keras_dp import ledger
from keras_dp.ledger.rows import codec

# Values that are saved as the ledger stores them.
_OF_THE_LEDGER = (
    ledger.CoordinateBounds,
    ledger.NoiseDistribution,
    ledger.Strategy,
)


class Configured:
    """A frozen dataclass that Keras saves by its fields."""

    __slots__ = ()

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments of the constructor, for JSON."""
        return {
            field.name: _saved(getattr(self, field.name))
            for field in dataclasses.fields(self)  # type: ignore[arg-type]
        }

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """Inverts `get_config`.

        Args:
            config: The result of `get_config`.
        """
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
    if isinstance(value, tuple):
        return [_saved(each) for each in value]
    return value


def _loaded(config: Any) -> Any:
    """Inverts `_saved`: the kind of a value shows in its keys."""
    if isinstance(config, list):
        return tuple(_loaded(each) for each in config)
    if not isinstance(config, Mapping):
        return config
    if "class_name" in config:
        return keras.saving.deserialize_keras_object(config)
    return codec.value_from_content(config) if "kind" in config else config
