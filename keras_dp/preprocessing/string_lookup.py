"""Texts that become indices, for `keras.layers.StringLookup`."""

import dataclasses
import itertools
from typing import Any

import keras
from typing_extensions import override

from keras_dp.ledger import SumQueryEvent
from keras_dp.preprocessing.entries import (
    check_keys,
    row_chunks,
    text_keys,
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
_KINDS = "OSUT"


@dataclasses.dataclass(frozen=True, slots=True)
class StringLookup(Adapter):
    """Adapts a `keras.layers.StringLookup` to the texts that many records hold.

    Guarantee: what `ThresholdedSum` says. A record of t different texts adds
    1 / sqrt(t) to the sum of each of them, and counts with at most `max_keys`
    of them. A text is in the vocabulary if its sum exceeds the threshold after
    noise; the order of the vocabulary is that of the noised sums. A record of
    any size moves sums by an L2 norm of at most 1.

    A text that fewer records hold than the threshold is rarely in it: with
    `max_keys=1` and a `threshold_delta` of 1e-7 that is 1 + 5.2 times
    `noise_multiplier` records.

    Attributes:
        max_keys: Different texts of a record that count, at most. 1 for a
            column with one text a record.
        noise_multiplier: Standard deviation of the noise over what one record
            adds, > 0.
        threshold_delta: How likely a text that one record alone holds may be
            in the vocabulary, in (0, 1/2]. The ledger's delta pays for it,
            whatever epsilon is: take a tenth of that, or less.
        max_tokens: As in the Keras layer: the most indices, those of masked and
            unknown texts included. The texts with the largest noised sums stay.
        num_oov_indices: As in the Keras layer, >= 1: no text is sure to be in
            the vocabulary.
        mask_token: As in the Keras layer. It is no key, so that "" can fill
            up records with fewer texts.
        oov_token: As in the Keras layer. It is no key.
        output_mode: As in the Keras layer, but for "tf_idf", which needs other
            sums.
        pad_to_max_tokens: As in the Keras layer.

    Source: Gopi et al. (2020), arXiv:2002.09745, the weighted Gaussian
    mechanism. We differ in the weights, which are equal whatever others hold.

    >>> from keras_dp.ledger import PrivacyLedger
    >>> towns = ["Kiel", "Bonn"] * 300 + ["Ulm"]
    >>> ledger = PrivacyLedger.in_memory(dataset="people")
    >>> adapter = StringLookup(noise_multiplier=8.0, threshold_delta=1e-7)
    >>> layer = adapter.adapt(towns, ledger)
    >>> [str(each) for each in sorted(layer.get_vocabulary())]
    ['Bonn', 'Kiel', '[UNK]']
    """

    noise_multiplier: float
    threshold_delta: float
    max_keys: int = 1
    max_tokens: int | None = None
    num_oov_indices: int = 1
    mask_token: str | None = None
    oov_token: str = "[UNK]"
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
    def noised_layer(self, data: Any) -> keras.layers.StringLookup:
        tokens = {self.oov_token, self.mask_token} - {None}
        reserved = {str(token).encode() for token in tokens}
        rows = itertools.chain.from_iterable(row_chunks(data, _KINDS))
        found = noised_vocabulary(
            self,
            (text_keys(row, reserved) for row in rows),
            lookup_tokens(self),
        )
        words = [key.decode() for key in found]
        layer: keras.layers.StringLookup = keras_layer(
            keras.layers.StringLookup, self, words
        )
        return layer
