"""Puts the releases of one round's queries together."""

import functools
import math
from typing import NamedTuple

from keras_dp.accountants.normalize.mechanisms import UNREACHED, Encoding
from keras_dp.accountants.normalize.thresholds import Threshold
from keras_dp.errors import UnsupportedEventError
from keras_dp.ledger import (
    CorrelatedSum,
    EncodedSum,
    GaussianNoise,
    GaussianSum,
    NonPrivateSum,
    Selection,
    SumQueryEvent,
    ThresholdedSum,
)


class Release(NamedTuple):
    """The release of a round over its sample; no order of the queries matters.

    Attributes:
        sensitivity: Root of the sum of `(S / sigma)^2` of all Gaussian sums:
            how far one record moves them, in noise stddevs. 0 if there is none,
            `inf` if a sum is bare.
        encodings: Sums with other noise that are not free.
        spans: Rounds of mechanisms with correlated noise, each of another one.
        thresholds: The ones of thresholded sums.
        search: The search that the round is, and nothing else.
    """

    sensitivity: float = 0.0
    encodings: tuple[Encoding, ...] = ()
    spans: tuple[CorrelatedSum, ...] = ()
    thresholds: tuple[Threshold, ...] = ()
    search: Selection | None = None

    @property
    def is_free(self) -> bool:
        """Whether nothing of the data was released by the round itself."""
        return self.sensitivity == 0 and not self.encodings


def ratio(bound: float, noise: float) -> float:
    """Returns `bound / noise`, 0 only if `bound` is, `inf` if too large."""
    if bound == 0:
        return 0.0
    if noise == 0 or bound / noise > UNREACHED:
        return math.inf
    return max(bound / noise, 1 / UNREACHED)


def released(queries: tuple[SumQueryEvent, ...]) -> Release:
    """Returns what `queries`, all of one round, released together."""
    if len(queries) == 1 and type(queries[0]) is GaussianSum:
        return _of_gaussian(queries[0])  # Sooner made than looked up.
    return _released(queries)


@functools.lru_cache(maxsize=1024)
def _released(queries: tuple[SumQueryEvent, ...]) -> Release:
    if isinstance(queries[0], Selection):
        return Release(search=queries[0])
    parts = [_part(query) for query in queries]
    encodings = [each for part in parts for each in part.encodings]
    spans = tuple(each for part in parts for each in part.spans)
    ids = [each.span_id for each in spans]
    if len({*ids}) < len(ids):
        raise UnsupportedEventError(
            "`queries` must be of different mechanisms: a round is one row of "
            f"a mechanism. Received: the ids {ids!r}."
        )
    return Release(
        math.hypot(*(part.sensitivity for part in parts)),
        tuple(sorted(encodings, key=_text)),
        spans,
        tuple(sorted(each for part in parts for each in part.thresholds)),
    )


def _text(encoding: Encoding) -> tuple[str, str, str]:
    bounds, noise = encoding
    return repr(noise), bounds.levels, bounds.counts


@functools.singledispatch
def _part(query: SumQueryEvent) -> Release:
    raise UnsupportedEventError(
        "`queries` must be of a class that the accountants know. "
        f"Received: query={query!r}. Replay the ledger with a version of the "
        "library that knows it."
    )


@_part.register
def _of_gaussian(query: GaussianSum) -> Release:
    return Release(ratio(query.l2_norm_bound, query.noise_stddev))


@_part.register
def _(query: NonPrivateSum) -> Release:
    return Release(math.inf)


@_part.register
def _(query: CorrelatedSum) -> Release:
    return Release(spans=(query,))


@_part.register
def _(query: EncodedSum) -> Release:
    norm, noise = query.bounds.largest_l2_norm, query.noise
    if norm == 0:
        return Release()
    if type(noise) is GaussianNoise:
        # The moments multiply to those of the vector's norm.
        return Release(ratio(norm, noise.scale))
    return Release(encodings=(Encoding(query.bounds, noise),))


@_part.register
def _(query: ThresholdedSum) -> Release:
    threshold = Threshold(
        query.l2_norm_bound, query.noise_stddev, query.max_keys, query.threshold
    )
    sensitivity = ratio(query.l2_norm_bound, query.noise_stddev)
    return Release(sensitivity, thresholds=(threshold,))
