"""Finds vocabularies, the keys that many records hold, by noised sums.

A record holds a set of keys, such as the words of a text. A key that few
records hold can identify a person. So the set of keys itself must be private.
"""

import dataclasses
import math
from collections.abc import Collection, Hashable, Iterable
from typing import Any, TypeVar

import keras
import numpy as np

from keras_dp import _check
from keras_dp.accountants.normalize.thresholds import least_threshold
from keras_dp.ledger import ThresholdedSum
from keras_dp.preprocessing.release import gaussian_noise
from keras_dp.sampling.random_words import from_operating_system

Key = TypeVar("Key", bound=Hashable)

# Weights are whole numbers of `1 / UNITS`, whose sums are exact.
UNITS = 2**32
OUTPUT_MODES = ("int", "one_hot", "multi_hot", "count")
# Fields of an adapter that its layer does not have.
_OF_THE_NOISE = ("noise_multiplier", "threshold_delta", "max_keys")


def check_settings(adapter: Any, special_tokens: int) -> None:
    """Raises unless the public settings of an adapter are valid.

    Args:
        adapter: Has the fields of `StringLookup`.
        special_tokens: The number of tokens that its layer adds to the
            vocabulary.
    """
    _check.integer_at_least(1, max_keys=adapter.max_keys)
    _check.finite_positive(
        noise_multiplier=adapter.noise_multiplier,
        threshold_delta=adapter.threshold_delta,
    )
    if adapter.threshold_delta > 0.5:
        raise ValueError(
            "`threshold_delta` must be at most 0.5. Received: threshold_delta="
            f"{adapter.threshold_delta!r}. Use at most a tenth of the target "
            "delta."
        )
    _check.one_of(OUTPUT_MODES, output_mode=adapter.output_mode)
    _check.boolean(pad_to_max_tokens=adapter.pad_to_max_tokens)
    if adapter.max_tokens is not None:
        _check.integer_at_least(1, max_tokens=adapter.max_tokens)
        if adapter.max_tokens <= special_tokens:
            raise ValueError(
                f"`max_tokens` must be more than {special_tokens}, the number "
                "of tokens for masked and unknown keys. Received: max_tokens="
                f"{adapter.max_tokens!r}. Use a larger number, or None."
            )


def lookup_tokens(lookup: Any) -> int:
    """Returns how many tokens a lookup layer adds to its vocabulary.

    Args:
        lookup: A `StringLookup` or an `IntegerLookup`.
    """
    # Only indices can be masked.
    is_masked = lookup.mask_token is not None and lookup.output_mode == "int"
    return int(lookup.num_oov_indices) + is_masked


def check_lookup(lookup: Any) -> None:
    """Raises unless the settings of a lookup are valid.

    Args:
        lookup: A `StringLookup` or an `IntegerLookup`.
    """
    _check.integer_at_least(1, num_oov_indices=lookup.num_oov_indices)
    check_settings(lookup, lookup_tokens(lookup))


def keras_layer(
    kind: type[keras.Layer], adapter: Any, vocabulary: list[Any]
) -> Any:
    """Returns a layer with the settings of its adapter.

    Args:
        kind: A layer that takes all fields of the adapter except those of the
            noise.
        adapter: A frozen dataclass with the fields of `StringLookup`.
        vocabulary: The keys, in the form that the layer takes.
    """
    settings = {
        field.name: getattr(adapter, field.name)
        for field in dataclasses.fields(adapter)
        if field.name not in _OF_THE_NOISE
    }
    return kind(vocabulary=vocabulary, **settings)


def thresholded_sum(adapter: Any, prefix: str) -> ThresholdedSum:
    """Returns the event of an adapter of a vocabulary, from its settings.

    Args:
        adapter: Has the fields of `StringLookup`.
        prefix: The beginning of the name of the event.
    """
    stddev = float(adapter.noise_multiplier)
    threshold = least_threshold(
        1.0, stddev, adapter.max_keys, adapter.threshold_delta
    )
    return ThresholdedSum(
        f"{prefix}vocabulary", 1.0, stddev, adapter.max_keys, threshold
    )


def noised_vocabulary(
    adapter: Any, records: Iterable[set[Key]], special_tokens: int
) -> list[Key]:
    """Returns the keys of an adapter's release; see `noised_keys`.

    Args:
        adapter: Has the fields of `StringLookup`.
        records: The keys of each record.
        special_tokens: The number of tokens that its layer adds to the
            vocabulary.
    """
    most = adapter.max_tokens and adapter.max_tokens - special_tokens
    return noised_keys(records, thresholded_sum(adapter, ""), most)


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
    noised = exact + gaussian_noise(exact.shape, event.noise_stddev)
    order = np.argsort(-noised)[: np.count_nonzero(noised > event.threshold)]
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
