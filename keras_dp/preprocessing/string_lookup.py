"""Vocabularies of texts, for `keras.layers.StringLookup`."""

import dataclasses
import itertools
from collections.abc import Iterator
from typing import Any, ClassVar

import keras

from keras_dp._override import override
from keras_dp.preprocessing.entries import row_chunks, text_keys
from keras_dp.preprocessing.vocabulary import VocabularyAdapter, special_tokens


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
    dtypes: ClassVar[str] = "OSUT"
    noise_multiplier: float
    threshold_delta: float
    max_keys: int = 1
    max_tokens: int | None = None
    mask_token: str | None = None
    output_mode: str = "int"

    def __post_init__(self) -> None:
        self.check_settings()

    @property
    @override
    def special_tokens(self) -> int:
        return special_tokens(self.mask_token, self.output_mode)

    @override
    def keys_of_records(self, data: Any) -> Iterator[set[bytes]]:
        tokens = {"[UNK]", self.mask_token} - {None}
        reserved = {str(token).encode() for token in tokens}
        rows = itertools.chain.from_iterable(row_chunks(data, self.dtypes))
        return (text_keys(row, reserved) for row in rows)
