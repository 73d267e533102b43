"""Adapts all features of a table, for `keras.utils.FeatureSpace`."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from keras_dp import _check
from keras_dp._override import override
from keras_dp._training_extra import keras
from keras_dp.ledger import SumQueryEvent
from keras_dp.preprocessing.discretization import Discretization
from keras_dp.preprocessing.integer_lookup import IntegerLookup
from keras_dp.preprocessing.normalization import Normalization
from keras_dp.preprocessing.release import Adapter
from keras_dp.preprocessing.schema import Schema, first_of
from keras_dp.preprocessing.string_lookup import StringLookup
from keras_dp.sampling.datasets import batches_of, is_dataset, record_specs

# The dtype and the output mode of features that are given as an adapter.
_KINDS: dict[type[Adapter], tuple[str, str]] = {
    Normalization: ("float32", "float"),
    Discretization: ("float32", "one_hot"),
    IntegerLookup: ("int32", "one_hot"),
    StringLookup: ("string", "one_hot"),
}
# The adapter instead of each type of Keras that needs data.
_ADAPTERS = {
    "float_normalized": "Normalization",
    "float_discretized": "Discretization",
    "integer_categorical": "IntegerLookup",
    "string_categorical": "StringLookup",
}


@dataclasses.dataclass(frozen=True, slots=True)
class FeatureSpace(Adapter):
    """Adapts a `keras.utils.FeatureSpace`: all its features in one round.

    A feature that needs no data is given as in Keras: `"float"`,
    `"string_hashed"`, a `Feature` with a vocabulary, and so on. A feature that
    Keras would adapt to the data is given as an adapter: `Normalization`,
    `Discretization`, `StringLookup` or `IntegerLookup`. For another adapter,
    dtype or output mode, give
    `keras.utils.FeatureSpace.feature(dtype, adapter, output_mode)`.

    Guarantee: a record is a row of all columns. The round holds the events of
    all adapters, each with its own bound. With noise multipliers z_i, their
    privacy loss is that of one Gaussian release with the noise multiplier
    `(sum_i z_i^-2)^(-1/2)`, which is `noise_multiplier`. The `threshold_delta`
    of each vocabulary adds to delta.

    Attributes:
        features: Features by name. Only the ratios of the adapters' own noise
            multipliers count. With equal ones, each of m adapters gets
            `sqrt(m)` times `noise_multiplier`. An adapter with half the noise
            multiplier of the others gets half their noise.
        noise_multiplier: The noise multiplier of the whole round, > 0.
        output_mode: As in Keras.
        crosses: As in Keras.
        crossing_dim: As in Keras.
        hashing_dim: As in Keras.

    Source: McMahan et al. (2018), arXiv:1812.06210, eq. (1), for the noise.

    >>> import numpy as np
    >>> from keras_dp.ledger import PrivacyLedger
    >>> rng = np.random.default_rng(1)
    >>> table = {"age": rng.uniform(20, 60, 5000),
    ...          "hours": rng.uniform(0, 80, 5000)}
    >>> adapter = FeatureSpace(
    ...     {"age": Normalization((0, 100), noise_multiplier=1.0),
    ...      "hours": Discretization((0, 100), 4, noise_multiplier=1.0)},
    ...     noise_multiplier=10.0)
    >>> ledger = PrivacyLedger.in_memory(dataset="people")
    >>> space = adapter.adapt(table, ledger)
    >>> space({"age": [40.0], "hours": [39.0]}).shape
    TensorShape([1, 5])
    >>> [round(each.noise_stddev, 3) for each in adapter.events()]
    [14.142, 14.142]
    """

    features: Mapping[str, Any]
    noise_multiplier: float
    output_mode: str = "concat"
    crosses: Sequence[Any] | None = None
    crossing_dim: int = 32
    hashing_dim: int = 32

    def __post_init__(self) -> None:
        _check.finite_positive(noise_multiplier=self.noise_multiplier)
        features = {
            name: _as_feature(name, spec)
            for name, spec in dict(self.features).items()
        }
        object.__setattr__(self, "features", features)
        if not any(_adapter_of(each) for each in features.values()):
            raise ValueError(
                "`features` must have an adapter, such as Normalization. "
                f"Received: the features {sorted(features)!r}, which need no "
                "data. Use keras.utils.FeatureSpace for them."
            )
        # Keras checks the other arguments here, before a round is spent.
        self._space(
            {name: keras.layers.Identity() for name in self._adapters()}
        )

    @override
    def events(self, prefix: str = "") -> tuple[SumQueryEvent, ...]:
        return tuple(
            event
            for name, adapter in self._adapters().items()
            for event in adapter.events(f"{prefix}{name}/")
        )

    @override
    def check_data(self, data: Any) -> None:
        adapters = self._adapters()
        if not is_dataset(data):
            for name, column in _columns(data, list(adapters)).items():
                adapters[name].check_data(column)
            return
        specs = record_specs(data)
        if specs is not None:
            for name, spec in _columns(specs, list(adapters)).items():
                adapters[name].check_schema(Schema.of(spec))

    @override
    def noised_layer(self, data: Any) -> keras.utils.FeatureSpace:
        columns = _columns(data, list(self._adapters()))
        layers = {
            name: _noised(adapter, columns[name])
            for name, adapter in self._adapters().items()
        }
        space = self._space(layers)
        # Keras does this when it loads one: nothing is left to adapt.
        space.build_from_config({})
        space.get_encoded_features()
        space.built = True
        return space

    def _space(
        self, layers: Mapping[str, keras.Layer]
    ) -> keras.utils.FeatureSpace:
        """Returns the space with layers in the place of adapters."""
        return keras.utils.FeatureSpace(
            features={
                name: _with_layer(feature, layers.get(name))
                for name, feature in self.features.items()
            },
            output_mode=self.output_mode,
            crosses=self.crosses,
            crossing_dim=self.crossing_dim,
            hashing_dim=self.hashing_dim,
        )

    def _adapters(self) -> dict[str, Adapter]:
        """Returns the adapters with their share of the noise, by name."""
        given = {
            name: adapter
            for name, feature in self.features.items()
            if (adapter := _adapter_of(feature)) is not None
        }
        whole = math.hypot(
            *(1 / each.noise_multiplier for each in given.values())
        )
        shares: dict[str, Adapter] = {}
        for name, adapter in given.items():
            own: Any = adapter
            share = self.noise_multiplier * whole * own.noise_multiplier
            shares[name] = dataclasses.replace(own, noise_multiplier=share)
        return shares


def _as_feature(name: str, spec: Any) -> Any:
    """Returns a feature of Keras, whose preprocessor may be an adapter."""
    _check.non_empty_text(features=name)
    if isinstance(spec, Adapter):
        for kind, (dtype, mode) in _KINDS.items():
            if isinstance(spec, kind):
                return keras.utils.FeatureSpace.feature(dtype, spec, mode)
        raise ValueError(
            f"`features` must state the dtype and the output mode of {name!r}. "
            f"Received: {spec!r}. Give keras.utils.FeatureSpace.feature(dtype, "
            "adapter, output_mode)."
        )
    if isinstance(spec, str) and spec in _ADAPTERS:
        raise ValueError(
            "`features` must have an adapter for a feature that Keras adapts "
            f"to data. Received: {name}={spec!r}. Give "
            f"keras_dp.preprocessing.{_ADAPTERS[spec]}(...)."
        )
    if not isinstance(spec, str) and _needs_data(spec.preprocessor):
        raise ValueError(
            "`features` must have an adapter for a feature that Keras adapts "
            f"to data. Received: {name!r} with a "
            f"{type(spec.preprocessor).__name__} that holds no values. Give an "
            "adapter of keras_dp.preprocessing, or a layer with public values."
        )
    return spec


def _needs_data(layer: Any) -> bool:
    """Whether a preprocessor of Keras holds no values yet."""
    if isinstance(layer, Adapter) or not hasattr(layer, "adapt"):
        return False
    if isinstance(layer, keras.layers.Normalization):
        return layer.input_mean is None and not layer.built
    if isinstance(layer, keras.layers.Discretization):
        return layer.bin_boundaries is None
    words = layer.get_vocabulary(include_special_tokens=False)
    return len(words) == 0


def _adapter_of(feature: Any) -> Adapter | None:
    adapter = getattr(feature, "preprocessor", None)
    return adapter if isinstance(adapter, Adapter) else None


def _with_layer(feature: Any, layer: keras.Layer | None) -> Any:
    """Returns a feature whose preprocessor is the layer, if there is one."""
    if layer is None:
        return feature
    return keras.utils.FeatureSpace.feature(
        feature.dtype, layer, feature.output_mode
    )


def _noised(adapter: Adapter, column: Any) -> keras.Layer:
    layer = adapter.noised_layer(column)
    if isinstance(adapter, Discretization):
        # Keras asks for it where it encodes bins.
        layer.num_bins = adapter.num_bins
    return layer


def _columns(data: Any, names: list[str]) -> Mapping[str, Any]:
    """Returns the columns of a table, or of a data set that is read once.

    Entries are not changed. The adapter of a column decides which of them
    count, so that no record raises an error.
    """
    if is_dataset(data):
        parts = [_columns(each, names) for each in batches_of(data, None)]
        if not parts:
            raise ValueError(
                "`data` must hold at least one batch. Received: none. Give a "
                "data set with records."
            )
        return {
            name: np.concatenate([np.asarray(part[name]) for part in parts])
            for name in names
        }
    table: Any = first_of(data)
    if not (isinstance(table, Mapping) or hasattr(table, "columns")):
        raise TypeError(
            "`data` must be a table: a dict of columns, a DataFrame, or a data "
            f"set of dicts. Received: {type(table).__name__}. Give the columns "
            "by name."
        )
    missing = [name for name in names if name not in table]
    if missing:
        raise ValueError(
            "`data` must have a column for every adapter. Received: no column "
            f"for {missing!r}. Add the columns, or remove these features."
        )
    return {name: table[name] for name in names}
