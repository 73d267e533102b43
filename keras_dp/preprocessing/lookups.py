"""Layers with a vocabulary: `StringLookup`, `IntegerLookup`, and of words."""

import abc
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import keras
import tensorflow as tf

from keras_dp import _check, keras_internals
from keras_dp._override import override
from keras_dp.accountants.normalize.thresholds import least_threshold
from keras_dp.ledger import ThresholdedSum
from keras_dp.preprocessing.columns import ColumnSchema
from keras_dp.preprocessing.release import Adapter
from keras_dp.preprocessing.vocabulary import (
    check_keys,
    integer_key,
    noised_keys,
    row_chunks,
    text_key,
)

OUTPUT_MODES = ("int", "one_hot", "multi_hot", "count")
# Fields of an adapter that its layer does not have.
_OF_THE_NOISE = ("noise_multiplier", "threshold_delta", "max_keys")
_STANDARDIZE = ("lower", "lower_and_strip_punctuation", "strip_punctuation")
_SPLIT = ("character", "whitespace")


@dataclasses.dataclass(frozen=True, slots=True)
class VocabularyAdapter(Adapter, abc.ABC):
    """Adapts a layer with a vocabulary of keys that many records hold.

    A subclass has the other settings of its layer, under the same names. See
    `StringLookup` for the fields that all of them have.

    Attributes:
        kind: The class of the layer.
        dtypes: The codes of the NumPy dtypes that the data may have.
        one_each: Whether each record must have one entry.
        unknown: The token for unknown keys.
    """

    kind: ClassVar[type[keras.Layer]]
    dtypes: ClassVar[str] = "OSUT"
    one_each: ClassVar[bool] = False
    unknown: ClassVar[Any] = "[UNK]"

    noise_multiplier: float
    threshold_delta: float
    max_keys: int = 1
    max_tokens: int | None = None
    output_mode: str = "int"

    def __post_init__(self) -> None:
        _check.integer_at_least(1, max_keys=self.max_keys)
        _check.finite_positive(
            noise_multiplier=self.noise_multiplier,
            threshold_delta=self.threshold_delta,
        )
        if self.threshold_delta > 0.5:
            raise ValueError(
                "`threshold_delta` must be at most 0.5. Received: "
                f"threshold_delta={self.threshold_delta!r}. Use at most a "
                "tenth of the target delta."
            )
        _check.one_of(OUTPUT_MODES, output_mode=self.output_mode)
        if self.max_tokens is not None:
            _check.integer_at_least(1, max_tokens=self.max_tokens)
            if self.max_tokens <= self.special_tokens:
                raise ValueError(
                    f"`max_tokens` must be more than {self.special_tokens}, "
                    "the number of tokens for masked and unknown keys. "
                    f"Received: max_tokens={self.max_tokens!r}. Use a larger "
                    "number, or None."
                )

    @property
    @abc.abstractmethod
    def mask_token(self) -> Any:
        """The token for no key, `None` without one."""

    @property
    def special_tokens(self) -> int:
        """The number of tokens that the layer adds to its vocabulary."""
        # Only indices can be masked.
        return 1 + (self.mask_token is not None and self.output_mode == "int")

    @override
    def events(self) -> tuple[ThresholdedSum]:
        stddev = float(self.noise_multiplier)
        threshold = least_threshold(
            1.0, stddev, self.max_keys, self.threshold_delta
        )
        name = "preprocessing/vocabulary"
        return (ThresholdedSum(name, 1.0, stddev, self.max_keys, threshold),)

    @override
    def check_schema(self, schema: ColumnSchema) -> None:
        check_keys(schema, self.dtypes, one_each=self.one_each)

    @override
    def noised_layer(self, data: Any) -> Any:
        most = self.max_tokens and self.max_tokens - self.special_tokens
        (event,) = self.events()
        return self.layer(noised_keys(self.keys_of_records(data), event, most))

    def keys_of_records(self, data: Any) -> Iterator[set[Any]]:
        """Yields the keys of each record.

        Whether an entry is a key depends on the entry alone. Special tokens are
        not keys.
        """
        tokens = self.unknown, self.mask_token
        reserved = {None, *map(self.key_of, tokens)}
        for chunk in row_chunks(data, self.dtypes, one_each=self.one_each):
            for row in self.entries(chunk):
                yield {*map(self.key_of, row)} - reserved

    def entries(self, chunk: list[list[Any]]) -> list[list[Any]]:
        """Returns what may be keys of some records."""
        return chunk

    def key_of(self, entry: Any) -> Any:
        """Returns the key that an entry is, `None` if it is not one."""
        return text_key(entry)

    def layer(self, keys: Sequence[Any]) -> Any:
        """Returns a layer with these settings; texts of keys are UTF-8."""
        settings = {
            field.name: getattr(self, field.name)
            for field in dataclasses.fields(self)
            if field.name not in _OF_THE_NOISE
        }
        vocabulary = [
            key.decode() if isinstance(key, bytes) else key for key in keys
        ]
        return self.kind(vocabulary=vocabulary, **settings)


@dataclasses.dataclass(frozen=True, slots=True)
class StringLookup(VocabularyAdapter):
    """Adapts a `keras.layers.StringLookup` to the texts that many records hold.

    Guarantee: the release is one `ThresholdedSum`. A record counts with at most
    `max_keys` different texts. If these are t texts, it adds 1 / sqrt(t) to the
    sum of each, so that it moves the sums by an L2 norm of at most 1. A text is
    in the vocabulary if its noised sum exceeds the threshold. The vocabulary is
    in decreasing order of the noised sums.

    With `max_keys=1` and a `threshold_delta` of 1e-7, the threshold is
    1 + 5.2 times `noise_multiplier` records. A text that as many records hold
    is in the vocabulary with a probability of 1/2.

    Attributes:
        max_keys: The largest number of different texts of a record that count.
            Use 1 for a column with one text for each record.
        noise_multiplier: The standard deviation of the noise, divided by the
            bound on one record, > 0.
        threshold_delta: For each record, an upper bound on the probability
            that the vocabulary has a text that no other record holds, in
            (0, 1/2]. The ledger's delta includes it at every epsilon. Use at
            most a tenth of the target delta.
        max_tokens: As in the Keras layer: the largest number of indices,
            including those of the mask and of unknown texts, "[UNK]". The texts
            with the largest noised sums are kept.
        mask_token: As in the Keras layer. It is not a key. With "", records
            with fewer texts can be padded with "".
        output_mode: As in the Keras layer, except "tf_idf", which needs other
            sums.

    Source: Gopi et al. (2020), arXiv:2002.09745, the weighted Gaussian
    mechanism. Our weights do not depend on other records.

    >>> from keras_dp.ledger import PrivacyLedger
    >>> towns = ["Kiel", "Bonn"] * 300 + ["Ulm"]
    >>> ledger = PrivacyLedger.in_memory(dataset="people")
    >>> adapter = StringLookup(noise_multiplier=8.0, threshold_delta=1e-7)
    >>> layer = adapter.adapt(towns, ledger)
    >>> [str(each) for each in sorted(layer.get_vocabulary())]
    ['Bonn', 'Kiel', '[UNK]']
    """

    kind: ClassVar[type[keras.Layer]] = keras.layers.StringLookup
    mask_token: str | None = None


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
    unknown: ClassVar[Any] = -1
    mask_token: int | None = None

    @override
    def key_of(self, entry: Any) -> int | None:
        return integer_key(entry)


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
    one_each: ClassVar[bool] = True
    mask_token: ClassVar[Any] = ""

    max_keys: int
    standardize: str | None = "lower_and_strip_punctuation"
    split: str | None = "whitespace"
    ngrams: int | tuple[int, ...] | None = None
    output_sequence_length: int | None = None

    def __post_init__(self) -> None:
        if self.standardize is not None:
            _check.one_of(_STANDARDIZE, standardize=self.standardize)
        if self.split is not None:
            _check.one_of(_SPLIT, split=self.split)
        if isinstance(self.ngrams, list):
            object.__setattr__(self, "ngrams", tuple(self.ngrams))
        VocabularyAdapter.__post_init__(self)
        self.layer(["key"])  # Its own checks of the settings.

    @override
    def entries(self, chunk: list[list[Any]]) -> list[list[Any]]:
        texts = [[_text(row)] for row in chunk]
        if not texts:
            return []
        found = keras_internals.tokens_of_texts(
            self.layer(["key"]), tf.constant(texts)
        )
        rows: list[list[Any]] = (
            found.to_list()
            if isinstance(found, tf.RaggedTensor)
            else found.numpy().tolist()
        )
        return rows


def _text(entries: list[Any]) -> bytes:
    """Returns the text of a record, or an empty one if there is none."""
    entry = entries[0] if len(entries) == 1 else None
    if isinstance(entry, str):
        return entry.encode("utf-8", "replace")
    return entry if isinstance(entry, bytes) else b""
