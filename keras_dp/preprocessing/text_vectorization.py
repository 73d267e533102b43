"""Vocabularies of words, for `keras.layers.TextVectorization`."""

import dataclasses
from collections.abc import Iterator
from typing import Any, ClassVar

import keras
import tensorflow as tf

from keras_dp import _check, keras_internals
from keras_dp._override import override
from keras_dp.preprocessing.entries import row_chunks, text_keys
from keras_dp.preprocessing.vocabulary import VocabularyAdapter

_STANDARDIZE = ("lower", "lower_and_strip_punctuation", "strip_punctuation")
_SPLIT = ("character", "whitespace")
_MASK, _UNKNOWN = b"", b"[UNK]"


@dataclasses.dataclass(frozen=True, slots=True)
class TextVectorization(VocabularyAdapter):
    """Adapts a `keras.layers.TextVectorization` to words that many texts hold.

    The Keras layer itself standardizes texts, splits them and makes n-grams. A
    record is one text.

    Guarantee: as for `StringLookup`. The keys of a text are its different words
    or n-grams; repetitions do not count. A text with more than `max_keys` keys
    counts with `max_keys` of them, chosen at random.

    Attributes:
        noise_multiplier: As in `StringLookup`.
        threshold_delta: As in `StringLookup`.
        max_keys: The largest number of different words or n-grams of a text
            that count. A text with t of them gives each the weight
            `1 / sqrt(t)`. A larger number can raise the threshold a little.
            Use about the number that a typical text has.
        max_tokens: As in `StringLookup`. Unknown words take one index. With
            `output_mode="int"`, padding takes another.
        standardize: As in the Keras layer, but not a function: a function could
            compute on several texts together, and a record is one text.
        split: As in the Keras layer, but not a function.
        ngrams: As in the Keras layer: a number, a tuple of numbers, or None.
        output_mode: As in the Keras layer, except "tf_idf".
        output_sequence_length: As in the Keras layer.

    Source: as for `StringLookup`.

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

    kind: ClassVar[type[keras.Layer]] = keras.layers.TextVectorization
    dtypes: ClassVar[str] = "OSUT"
    one_each: ClassVar[bool] = True
    noise_multiplier: float
    threshold_delta: float
    max_keys: int
    max_tokens: int | None = None
    standardize: str | None = "lower_and_strip_punctuation"
    split: str | None = "whitespace"
    ngrams: int | tuple[int, ...] | None = None
    output_mode: str = "int"
    output_sequence_length: int | None = None

    def __post_init__(self) -> None:
        if self.standardize is not None:
            _check.one_of(_STANDARDIZE, standardize=self.standardize)
        if self.split is not None:
            _check.one_of(_SPLIT, split=self.split)
        if isinstance(self.ngrams, list):
            object.__setattr__(self, "ngrams", tuple(self.ngrams))
        self.check_settings()
        self.layer(["key"])  # Its own checks of the settings.

    @property
    @override
    def special_tokens(self) -> int:
        # Only indices can be padded.
        return 2 if self.output_mode == "int" else 1

    @override
    def keys_of_records(self, data: Any) -> Iterator[set[bytes]]:
        layer = self.layer(["key"])
        for chunk in row_chunks(data, self.dtypes, one_each=True):
            texts = [[_text(row)] for row in chunk]
            if not texts:
                continue
            found = keras_internals.tokens_of_texts(layer, tf.constant(texts))
            is_ragged = isinstance(found, tf.RaggedTensor)
            rows = found.to_list() if is_ragged else found.numpy().tolist()
            for tokens in rows:
                yield text_keys({*tokens}, {_MASK, _UNKNOWN})


def _text(entries: list[Any]) -> bytes:
    """Returns the text of a record, or an empty one if there is none."""
    entry = entries[0] if len(entries) == 1 else None
    if isinstance(entry, str):
        return entry.encode("utf-8", "replace")
    return entry if isinstance(entry, bytes) else b""
