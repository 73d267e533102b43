"""Words of texts that become indices, for `keras.layers.TextVectorization`."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf
from typing_extensions import override

from keras_dp import _check, keras_internals
from keras_dp.ledger import SumQueryEvent
from keras_dp.preprocessing.entries import (
    check_keys,
    row_chunks,
    text_keys,
)
from keras_dp.preprocessing.release import Adapter
from keras_dp.preprocessing.schema import Schema
from keras_dp.preprocessing.vocabulary import (
    check_settings,
    keras_layer,
    noised_vocabulary,
    thresholded_sum,
)

# Codes of the dtypes of NumPy that texts may have.
_KINDS = "OSUT"
_STANDARDIZE = ("lower", "lower_and_strip_punctuation", "strip_punctuation")
_SPLIT = ("character", "whitespace")
_MASK, _UNKNOWN = b"", b"[UNK]"


@dataclasses.dataclass(frozen=True, slots=True)
class TextVectorization(Adapter):
    """Adapts a `keras.layers.TextVectorization` to words that many texts hold.

    Texts are standardized, split and joined to n-grams by the Keras layer
    itself. A record is one text.

    Guarantee: as `StringLookup`, with the different words of a text as keys,
    however often it repeats them. With `max_keys` below their number a text
    counts with some of them, chosen at random.

    Attributes:
        noise_multiplier: As in `StringLookup`.
        threshold_delta: As in `StringLookup`.
        max_keys: Different words, or n-grams, of a text that count, at most.
            More of them leave less weight for each, `1 / sqrt(max_keys)`, and
            lower the threshold little: about as many as a usual text has.
        max_tokens: As in `StringLookup`; two indices are those of padding and
            of unknown words.
        standardize: As in the Keras layer, but no function of the caller:
            one that looks at several texts would make them one record.
        split: Likewise.
        ngrams: As in the Keras layer: a number, a tuple of numbers, or None.
        output_mode: As in the Keras layer, but for "tf_idf".
        output_sequence_length: As in the Keras layer.
        pad_to_max_tokens: As in the Keras layer.

    Source: as `StringLookup`.

    >>> from keras_dp.ledger import PrivacyLedger
    >>> texts = ["Free entry!", "free now"] * 300 + ["My name is Ada."]
    >>> ledger = PrivacyLedger.in_memory(dataset="messages")
    >>> adapter = TextVectorization(
    ...     noise_multiplier=8.0, threshold_delta=1e-7, max_keys=4
    ... )
    >>> layer = adapter.adapt(texts, ledger)
    >>> [str(each) for each in sorted(layer.get_vocabulary())]
    ['', '[UNK]', 'entry', 'free', 'now']
    """

    noise_multiplier: float
    threshold_delta: float
    max_keys: int
    max_tokens: int | None = None
    standardize: str | None = "lower_and_strip_punctuation"
    split: str | None = "whitespace"
    ngrams: int | tuple[int, ...] | None = None
    output_mode: str = "int"
    output_sequence_length: int | None = None
    pad_to_max_tokens: bool = False

    def __post_init__(self) -> None:
        if self.standardize is not None:
            _check.one_of(_STANDARDIZE, standardize=self.standardize)
        if self.split is not None:
            _check.one_of(_SPLIT, split=self.split)
        if isinstance(self.ngrams, list):
            object.__setattr__(self, "ngrams", tuple(self.ngrams))
        check_settings(self, self._special_tokens)
        self._layer(["key"])  # Its own checks of the settings.

    @property
    def _special_tokens(self) -> int:
        # Only indices can be padded.
        return 2 if self.output_mode == "int" else 1

    @override
    def events(self, prefix: str = "") -> tuple[SumQueryEvent, ...]:
        return (thresholded_sum(self, prefix),)

    @override
    def check_schema(self, schema: Schema) -> None:
        check_keys(schema, _KINDS, one_each=True)

    @override
    def noised_layer(self, data: Any) -> keras.layers.TextVectorization:
        found = noised_vocabulary(
            self, self._records(data), self._special_tokens
        )
        return self._layer([key.decode() for key in found])

    def _layer(self, vocabulary: list[str]) -> keras.layers.TextVectorization:
        layer: keras.layers.TextVectorization = keras_layer(
            keras.layers.TextVectorization, self, vocabulary
        )
        return layer

    def _records(self, data: Any) -> Iterator[set[bytes]]:
        """Yields the keys of each text."""
        layer = self._layer(["key"])
        for chunk in row_chunks(data, _KINDS, one_each=True):
            texts = [[_text(row)] for row in chunk]
            if not texts:
                continue
            found = keras_internals.tokens_of_texts(layer, tf.constant(texts))
            is_ragged = isinstance(found, tf.RaggedTensor)
            rows = found.to_list() if is_ragged else found.numpy().tolist()
            for tokens in rows:
                yield text_keys({*tokens}, {_MASK, _UNKNOWN})


def _text(entries: list[Any]) -> bytes:
    """Returns the text of a record, empty if it is missing or not one."""
    entry = entries[0] if len(entries) == 1 else None
    if isinstance(entry, str):
        return entry.encode("utf-8", "replace")
    return entry if isinstance(entry, bytes) else b""
