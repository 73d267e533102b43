"""Finds vocabularies, the keys that many records hold, by noised sums.

A record holds a set of keys, such as the words of a text. A key that few
records hold can identify a person. So the set of keys itself must be private.
"""

import abc
import dataclasses
import math
from collections.abc import (
    Collection,
    Hashable,
    Iterable,
    Iterator,
    Sequence,
)
from typing import Any, ClassVar, TypeVar

import keras
import numpy as np

from keras_dp import _check
from keras_dp._override import override
from keras_dp.accountants.normalize.thresholds import least_threshold
from keras_dp.ledger import ThresholdedSum
from keras_dp.preprocessing.entries import check_keys
from keras_dp.preprocessing.release import Adapter, noised
from keras_dp.preprocessing.schema import Schema
from keras_dp.sampling.random_words import from_operating_system

Key = TypeVar("Key", bound=Hashable)

# Weights are whole numbers of `1 / UNITS`, whose sums are exact.
UNITS = 2**32
OUTPUT_MODES = ("int", "one_hot", "multi_hot", "count")
# Fields of an adapter that its layer does not have.
_OF_THE_NOISE = ("noise_multiplier", "threshold_delta", "max_keys")


class VocabularyAdapter(Adapter):
    """Adapts a layer with a vocabulary of keys that many records hold.

    A subclass has the settings of its layer, under the same names, and those of
    the noise. See `StringLookup` for the fields that all of them have.

    Attributes:
        kind: The class of the layer.
        dtypes: The codes of the NumPy dtypes that the data may have.
        one_each: Whether each record must have one entry.
    """

    __slots__ = ()

    kind: ClassVar[type[keras.Layer]]
    dtypes: ClassVar[str]
    one_each: ClassVar[bool] = False
    threshold_delta: float
    max_keys: int
    max_tokens: int | None
    output_mode: str

    @property
    @abc.abstractmethod
    def special_tokens(self) -> int:
        """The number of tokens that the layer adds to its vocabulary."""

    @abc.abstractmethod
    def keys_of_records(self, data: Any) -> Iterator[set[Any]]:
        """Yields the keys of each record, in any order of the records.

        Args:
            data: See `adapt`.
        """

    def check_settings(self) -> None:
        """Raises unless the public settings are valid."""
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

    @override
    def events(self) -> tuple[ThresholdedSum]:
        stddev = float(self.noise_multiplier)
        threshold = least_threshold(
            1.0, stddev, self.max_keys, self.threshold_delta
        )
        name = "preprocessing/vocabulary"
        return (ThresholdedSum(name, 1.0, stddev, self.max_keys, threshold),)

    @override
    def check_schema(self, schema: Schema) -> None:
        check_keys(schema, self.dtypes, one_each=self.one_each)

    @override
    def noised_layer(self, data: Any) -> Any:
        most = self.max_tokens and self.max_tokens - self.special_tokens
        (event,) = self.events()
        return self.layer(noised_keys(self.keys_of_records(data), event, most))

    def layer(self, keys: Sequence[Any]) -> Any:
        """Returns a layer with these settings.

        Args:
            keys: Texts as UTF-8, or integers.
        """
        settings = {
            field.name: getattr(self, field.name)
            for field in dataclasses.fields(self)  # type: ignore[arg-type]
            if field.name not in _OF_THE_NOISE
        }
        vocabulary = [
            key.decode() if isinstance(key, bytes) else key for key in keys
        ]
        return self.kind(vocabulary=vocabulary, **settings)


def special_tokens(mask_token: Any, output_mode: str) -> int:
    """Returns how many tokens a lookup layer adds to its vocabulary."""
    # Only indices can be masked.
    is_masked = mask_token is not None and output_mode == "int"
    return 1 + is_masked


def noised_keys(
    records: Iterable[set[Key]],
    event: ThresholdedSum,
    most: int | None,
) -> list[Key]:
    """Returns the keys that pass the threshold, the largest sums first.

    Guarantee: this is one release of `event`; see `key_sums`.

    Args:
        records: The keys of each record.
        event: An event with bound 1.
        most: The largest number of keys to return. Those with the largest
            noised sums are kept. None keeps all.

    Raises:
        ValueError: No key passes. This follows from noised sums alone.
    """
    sums = key_sums(records, event.max_keys)
    exact = np.array([each / UNITS for each in sums.values()], np.float64)
    noisy = noised(exact, event.noise_stddev)
    order = np.argsort(-noisy)[: np.count_nonzero(noisy > event.threshold)]
    if not order.size:
        raise ValueError(
            "`data` must have a key whose noised sum exceeds the threshold. "
            f"Received: no noised sum above {event.threshold:.6g}. The round "
            "counts. Use less noise, a smaller `max_keys`, a larger "
            "`threshold_delta`, or more records."
        )
    every = list(sums)
    return [every[index] for index in order[:most].tolist()]


def key_sums(records: Iterable[set[Key]], max_keys: int) -> dict[Key, int]:
    """Returns the sums of the weights of each key, in units of `1 / UNITS`.

    A record of `t` keys adds `1 / sqrt(t)` to the sum of each of them. If it
    holds more than `max_keys` keys, it counts with `max_keys` of them, chosen
    at random. The choice depends on this record alone, and on random numbers
    that are independent of all records. The guarantee holds even for someone
    who knows these random numbers.

    Guarantee: a record adds equal weights to at most `max_keys` keys. Weights
    are rounded down to whole numbers, so that their L2 norm is at most `UNITS`.
    Sums of them are exact in any order.

    Args:
        records: The keys of each record.
        max_keys: >= 1.

    >>> [each / UNITS for each in key_sums([{"a"}, {"a"}], 1).values()]
    [2.0]
    """
    sums: dict[Key, int] = {}
    for keys in records:
        held: Collection[Key] = keys
        if len(keys) > max_keys:
            every = list(keys)
            words = from_operating_system(len(every))
            least = np.argpartition(words, max_keys)[:max_keys]
            held = [every[index] for index in least.tolist()]
        if held:
            weight = math.isqrt(UNITS**2 // len(held))
            for key in held:
                sums[key] = sums.get(key, 0) + weight
    return sums
