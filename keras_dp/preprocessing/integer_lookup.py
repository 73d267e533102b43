"""Vocabularies of integers, for `keras.layers.IntegerLookup`."""

import dataclasses
import itertools
from collections.abc import Iterator
from typing import Any, ClassVar

import keras

from keras_dp._override import override
from keras_dp.preprocessing.entries import integer_keys, row_chunks
from keras_dp.preprocessing.vocabulary import VocabularyAdapter, special_tokens


@dataclasses.dataclass(frozen=True, slots=True)
class IntegerLookup(VocabularyAdapter):
    """Adapts a `keras.layers.IntegerLookup` to integers that many records hold.

    Guarantee: as for `StringLookup`, with integers of 64 bits as keys.

    Attributes:
        noise_multiplier: As in `StringLookup`.
        threshold_delta: As in `StringLookup`.
        max_keys: The largest number of different integers of a record that
            count.
        max_tokens: As in `StringLookup`.
        mask_token: As in the Keras layer. It is not a key, and neither is -1,
            which stands for unknown integers.
        output_mode: As in the Keras layer, except "tf_idf".

    Source: as for `StringLookup`.

    >>> from keras_dp.ledger import PrivacyLedger
    >>> codes = [112, 110] * 300 + [7]
    >>> ledger = PrivacyLedger.in_memory(dataset="calls")
    >>> adapter = IntegerLookup(noise_multiplier=8.0, threshold_delta=1e-7)
    >>> layer = adapter.adapt(codes, ledger)
    >>> sorted(int(each) for each in layer.get_vocabulary())
    [-1, 110, 112]
    """

    kind: ClassVar[type[keras.Layer]] = keras.layers.IntegerLookup
    dtypes: ClassVar[str] = "iub"
    noise_multiplier: float
    threshold_delta: float
    max_keys: int = 1
    max_tokens: int | None = None
    mask_token: int | None = None
    output_mode: str = "int"

    def __post_init__(self) -> None:
        self.check_settings()

    @property
    @override
    def special_tokens(self) -> int:
        return special_tokens(self.mask_token, self.output_mode)

    @override
    def keys_of_records(self, data: Any) -> Iterator[set[int]]:
        reserved = {-1}
        if self.mask_token is not None:
            reserved.add(self.mask_token)
        rows = itertools.chain.from_iterable(row_chunks(data, self.dtypes))
        return (integer_keys(row, reserved) for row in rows)
