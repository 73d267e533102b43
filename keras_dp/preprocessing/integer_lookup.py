"""Vocabularies of integers, for `keras.layers.IntegerLookup`."""

import dataclasses
import itertools
from typing import Any

import keras
from typing_extensions import override

from keras_dp.ledger import SumQueryEvent
from keras_dp.preprocessing.entries import (
    check_keys,
    integer_keys,
    row_chunks,
)
from keras_dp.preprocessing.release import Adapter
from keras_dp.preprocessing.schema import Schema
from keras_dp.preprocessing.vocabulary import (
    check_lookup,
    keras_layer,
    lookup_tokens,
    noised_vocabulary,
    thresholded_sum,
)

# Codes of the dtypes of NumPy that columns may have.
_KINDS = "iub"


@dataclasses.dataclass(frozen=True, slots=True)
class IntegerLookup(Adapter):
    """Adapts a `keras.layers.IntegerLookup` to integers that many records hold.

    Guarantee: as for `StringLookup`, with integers of 64 bits as keys.

    Attributes:
        noise_multiplier: As in `StringLookup`.
        threshold_delta: As in `StringLookup`.
        max_keys: The largest number of different integers of a record that
            count.
        max_tokens: As in `StringLookup`.
        num_oov_indices: As in the Keras layer, >= 1.
        mask_token: As in the Keras layer. It is not a key.
        oov_token: As in the Keras layer. It is not a key.
        output_mode: As in the Keras layer, except "tf_idf".
        pad_to_max_tokens: As in the Keras layer.

    Source: as for `StringLookup`.

    >>> from keras_dp.ledger import PrivacyLedger
    >>> codes = [112, 110] * 300 + [7]
    >>> ledger = PrivacyLedger.in_memory(dataset="calls")
    >>> adapter = IntegerLookup(noise_multiplier=8.0, threshold_delta=1e-7)
    >>> layer = adapter.adapt(codes, ledger)
    >>> sorted(int(each) for each in layer.get_vocabulary())
    [-1, 110, 112]
    """

    noise_multiplier: float
    threshold_delta: float
    max_keys: int = 1
    max_tokens: int | None = None
    num_oov_indices: int = 1
    mask_token: int | None = None
    oov_token: int = -1
    output_mode: str = "int"
    pad_to_max_tokens: bool = False

    def __post_init__(self) -> None:
        check_lookup(self)

    @override
    def events(self, prefix: str = "") -> tuple[SumQueryEvent, ...]:
        return (thresholded_sum(self, prefix),)

    @override
    def check_schema(self, schema: Schema) -> None:
        check_keys(schema, _KINDS)

    @override
    def noised_layer(self, data: Any) -> keras.layers.IntegerLookup:
        reserved = {self.oov_token}
        if self.mask_token is not None:
            reserved.add(self.mask_token)
        rows = itertools.chain.from_iterable(row_chunks(data, _KINDS))
        found = noised_vocabulary(
            self,
            (integer_keys(row, reserved) for row in rows),
            lookup_tokens(self),
        )
        layer: keras.layers.IntegerLookup = keras_layer(
            keras.layers.IntegerLookup, self, found
        )
        return layer
