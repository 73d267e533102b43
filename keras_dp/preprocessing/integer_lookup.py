"""Whole numbers that become indices, for `keras.layers.IntegerLookup`."""

import dataclasses
from typing import Any

import keras
from typing_extensions import override

from keras_dp import _check
from keras_dp.ledger import SumQueryEvent
from keras_dp.preprocessing.entries import integer_keys, row_chunks
from keras_dp.preprocessing.release import Adapter
from keras_dp.preprocessing.vocabulary import (
    check_settings,
    noised_keys,
    thresholded_sum,
)


@dataclasses.dataclass(frozen=True, slots=True)
class IntegerLookup(Adapter):
    """Adapts a `keras.layers.IntegerLookup` to numbers that many records hold.

    Guarantee: as `StringLookup`, with whole numbers of 64 bits as keys.

    Attributes:
        noise_multiplier: As in `StringLookup`.
        threshold_delta: As in `StringLookup`.
        max_keys: Different numbers of a record that count, at most.
        max_tokens: As in `StringLookup`.
        num_oov_indices: As in the Keras layer, >= 1.
        mask_token: As in the Keras layer. It is no key.
        oov_token: As in the Keras layer. It is no key.
        output_mode: As in the Keras layer, but for "tf_idf".
        pad_to_max_tokens: As in the Keras layer.

    Source: as `StringLookup`.

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
        _check.integer_at_least(1, num_oov_indices=self.num_oov_indices)
        check_settings(self, self._special_tokens)

    @property
    def _special_tokens(self) -> int:
        has_mask = self.mask_token is not None
        # Only indices can be masked.
        return self.num_oov_indices + (has_mask and self.output_mode == "int")

    @override
    def events(self, prefix: str = "") -> tuple[SumQueryEvent, ...]:
        return (thresholded_sum(self, prefix),)

    @override
    def noised_layer(self, data: Any) -> keras.layers.IntegerLookup:
        reserved = {
            token
            for token in (self.oov_token, self.mask_token)
            if token is not None
        }
        records = (
            integer_keys(row, reserved)
            for chunk in row_chunks(data, "iub")
            for row in chunk
        )
        most = self.max_tokens and self.max_tokens - self._special_tokens
        found = noised_keys(records, thresholded_sum(self, ""), most)
        return keras.layers.IntegerLookup(
            max_tokens=self.max_tokens,
            num_oov_indices=self.num_oov_indices,
            mask_token=self.mask_token,
            oov_token=self.oov_token,
            vocabulary=found,
            output_mode=self.output_mode,
            pad_to_max_tokens=self.pad_to_max_tokens,
        )
