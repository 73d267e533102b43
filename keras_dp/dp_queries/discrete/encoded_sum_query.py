"""Sums of records clipped to preselected vectors, with noise of any family."""

import dataclasses
import functools
import hashlib
from typing import NamedTuple

import keras
import numpy as np
import tensorflow as tf

from keras_dp import _check, ledger
from keras_dp._override import override
from keras_dp.dp_queries.discrete import chunked_sums
from keras_dp.dp_queries.discrete.preselected_vectors import PreselectedVectors
from keras_dp.dp_queries.dp_query import (
    LeafNoise,
    Nest,
    QueryResult,
)
from keras_dp.dp_queries.saving import register
from keras_dp.dp_queries.summing_query import SummingQuery, empty_sum
from keras_dp.noise import grid, samplers, seeds

# Noise is at least a million times the smallest float32.
_SMALLEST_SCALE = 1e-30


class EncodedGlobalState(NamedTuple):
    """The secret seed of the noise, which is never saved."""

    seed: tf.Tensor


@register
@dataclasses.dataclass(frozen=True, slots=True)
class EncodedSumQuery(SummingQuery):
    """Sums records clipped to preselected vectors, and adds noise of a family.

    The *magnitudes* of a vector are the absolute values of its coordinates. The
    query sorts the magnitudes of a record, and those of each preselected
    vector, in decreasing order. It chooses the vector with the largest cosine
    similarity. Then it clips the largest magnitude of the record to the
    largest of the vector, the second to the second, and so on. Coordinates keep
    their signs and places.

    Guarantee: the contribution of a record to the sum before noise is bounded,
    coordinate by coordinate, by the magnitudes of one of the vectors in
    `bounds`, in some order. This is exact in the floats that are added up.
    Which vector, and which order, depends on the record. Adding, removing or
    zeroing out one record moves the sum by one such contribution, up to the
    rounding of sums. The event says so. Accountants bound the cost of
    `EncodedSum` events under the conditions below; the caller is responsible
    for the last three:

    * the noise is independent per coordinate, symmetric and unimodal;
    * the noise is drawn after, and independently of, the choice of the vector
      and the sorting, and each coordinate is released at its own place;
    * neighbours differ by adding, removing or zeroing out one record.
      *Replacing* a record moves the sum by the difference of two vectors in two
      orders, which no bound on these events covers;
    * a record is the privacy unit. One example in a record of several, or a
      user with several records, is not covered;
    * the vectors were fixed before the private data was seen, and independently
      of it;
    * samples are Poisson samples or all records, and the divisor of the sum is
      a public constant.

    For noise other than Gaussian, the cost depends on the shapes of the
    vectors, not only on their norms. A record that is not finite counts as
    zero.

    Attributes:
        vectors: `PreselectedVectors`, which is a recipe for vectors; or
            `CoordinateBounds`, whose levels are in decreasing order, as
            `CoordinateBounds.from_vectors` makes them.
        noise: Distribution of the noise on each coordinate of the sum, with a
            scale in the unit of the records, >= 1e-30.
        chunk_bytes: How many bytes of records to build at a time, at least one
            record. Sorting them needs about 9 times as much
            (`benchmarks/chunked_queries.py`).

    Source: Nasr, Shokri, Houmansadr (2020), arXiv:2007.11524v1, Algorithms 1
    and 2. We differ in two places. The text of the paper asks for the smallest
    cosine distance, that is the largest similarity; its Algorithm 2 prints the
    smallest similarity. We follow the text. And Algorithm 2 clips to
    `min(psi, max(g, -psi))`, which is psi for every record if psi is negative;
    our vectors are magnitudes, and so not negative.

    >>> from keras_dp.ledger import CoordinateBounds, GaussianNoise
    >>> vectors = CoordinateBounds.from_vectors([[3, 3, 3], [5, 1, 0]])
    >>> query = EncodedSumQuery(vectors, GaussianNoise(1.0))
    >>> params = query.derive_sample_params(query.initial_global_state())
    >>> record = tf.constant([-2., 9., 2.])
    >>> sample = query.initial_sample_state(record)
    >>> query.accumulate_record(params, sample, record).numpy()
    array([-1.,  5.,  0.], dtype=float32)
    """

    vectors: PreselectedVectors | ledger.CoordinateBounds
    noise: ledger.NoiseDistribution
    chunk_bytes: int = 2**26

    def __post_init__(self) -> None:
        if not isinstance(
            self.vectors, (PreselectedVectors, ledger.CoordinateBounds)
        ):
            raise TypeError(
                "`vectors` must be PreselectedVectors or CoordinateBounds. "
                f"Received: vectors={self.vectors!r}."
            )
        _check.kind(ledger.NoiseDistribution, noise=self.noise)
        if self.noise.scale < _SMALLEST_SCALE:
            raise ValueError(
                f"`noise` must have a scale >= {_SMALLEST_SCALE}. "
                f"Received: noise={self.noise!r}."
            )
        _check.integer_at_least(1, chunk_bytes=self.chunk_bytes)
        object.__setattr__(self, "chunk_bytes", int(self.chunk_bytes))
        if isinstance(self.vectors, ledger.CoordinateBounds):
            levels = self.vectors.level_array()
            if (levels[:, 1:] > levels[:, :-1]).any():
                raise ValueError(
                    "`vectors` must have levels in decreasing order. "
                    f"Received: vectors={self.vectors!r}. Use "
                    "CoordinateBounds.from_vectors."
                )

    @property
    def bounds(self) -> ledger.CoordinateBounds:
        """The magnitudes of the vectors, which the ledger event holds."""
        if isinstance(self.vectors, PreselectedVectors):
            return self.vectors.bounds()
        return self.vectors

    @override
    def initial_global_state(
        self, seed: int | None = None
    ) -> EncodedGlobalState:
        return EncodedGlobalState(seeds.fresh(seed))

    @override
    def derive_sample_params(
        self, global_state: EncodedGlobalState
    ) -> tuple[()]:
        return ()

    @override
    def initial_sample_state(self, template: Nest) -> Nest:
        empty = empty_sum(template)
        leaves = keras.tree.flatten(empty)
        size = sum(leaf.shape.num_elements() for leaf in leaves)
        if size != self.bounds.dimension:
            raise ValueError(
                "`template` must have as many coordinates as `vectors`, "
                f"{self.bounds.dimension}. Received: {size}, in shapes "
                f"{[tuple(leaf.shape) for leaf in leaves]!r}."
            )
        return empty

    @override
    def planned_event(self, global_state: EncodedGlobalState) -> tf.Tensor:
        return tf.constant(self._digest(), tf.int64)

    def _digest(self) -> int:
        """Returns a number that stands for the bounds and the noise."""
        text = repr((self.noise, dataclasses.astuple(self.bounds)))
        digest = hashlib.sha256(text.encode()).digest()[:8]
        return int.from_bytes(digest, signed=True)

    @override
    def get_noised_result(
        self, sample_state: Nest, global_state: EncodedGlobalState
    ) -> QueryResult:
        leaves = keras.tree.flatten(sample_state)
        if isinstance(self.noise, ledger.GaussianNoise):
            noised, following = grid.noised(
                leaves, self.noise.scale, global_state.seed
            )
        else:
            following, *own = seeds.split(global_state.seed, len(leaves) + 1)
            noised = [
                leaf + samplers.sample(self.noise, leaf, seed)
                for leaf, seed in zip(leaves, own, strict=True)
            ]
        return QueryResult(
            value=keras.tree.pack_sequence_as(sample_state, noised),
            global_state=EncodedGlobalState(following),
            event=self.planned_event(global_state),
        )

    @override
    def ledger_events(
        self, event: tf.Tensor, name: str = "records"
    ) -> tuple[ledger.SumQueryEvent, ...]:
        if int(event) != self._digest():
            raise ValueError(
                "`event` must be an event of this query, with its vectors and "
                "its noise. Received: the event of another EncodedSumQuery. "
                "Ask the query that made the event."
            )
        return (ledger.EncodedSum(name, self.bounds, self.noise),)

    @override
    def result_noise(
        self, global_state: EncodedGlobalState, value: Nest
    ) -> list[LeafNoise]:
        noise = LeafNoise(
            dataclasses.replace(self.noise, scale=1.0),
            tf.constant(self.noise.scale, tf.float64),
        )
        return [noise for _ in keras.tree.flatten(value)]

    @override
    def bounded_sum(
        self,
        params: tuple[()],
        like: Nest,
        records: Nest,
        mask: tf.Tensor | None,
    ) -> Nest:
        return chunked_sums.chunked_sum(
            like,
            records,
            mask,
            self.chunk_bytes,
            functools.partial(_encoded, bounds=self.bounds),
        )


def _encoded(rows: tf.Tensor, bounds: ledger.CoordinateBounds) -> tf.Tensor:
    """Returns finite records `[chunk, size]`, each clipped to its vector."""
    counts = bounds.count_array()
    ends = tf.constant(np.cumsum(counts))
    places = tf.range(bounds.dimension, dtype=tf.int64)
    block_of_rank = tf.searchsorted(ends, places, side="right")
    # A permutation: each coordinate has one rank, and so one bound.
    falling, order = tf.math.top_k(tf.abs(rows), k=bounds.dimension)
    vector = _most_similar(falling, block_of_rank, bounds)
    levels = tf.gather(tf.constant(bounds.level_array()), vector)
    clipped = tf.minimum(
        falling,
        tf.cast(tf.gather(levels, block_of_rank, axis=1), rows.dtype),
    )
    starts = tf.range(tf.shape(rows)[0]) * bounds.dimension
    flat = tf.reshape(order + starts[:, tf.newaxis], [-1, 1])
    unsorted = tf.scatter_nd(
        flat, tf.reshape(clipped, [-1]), tf.reshape(tf.size(rows), [1])
    )
    return tf.sign(rows) * tf.reshape(unsorted, tf.shape(rows))


def _most_similar(
    falling: tf.Tensor,
    block_of_rank: tf.Tensor,
    bounds: ledger.CoordinateBounds,
) -> tf.Tensor:
    """Returns the index of each record's most similar vector, `[chunk]`."""
    counts = bounds.count_array()
    # Neither tiny nor huge records leave the range of floats.
    largest = falling[:, :1]
    unit = falling / tf.where(largest > 0, largest, tf.ones_like(largest))
    blocks = tf.math.unsorted_segment_sum(
        tf.transpose(unit), block_of_rank, counts.size
    )
    levels = bounds.level_array().astype(np.float64)
    scaled = levels / np.maximum(
        levels.max(axis=1, keepdims=True), np.finfo(np.float64).tiny
    )
    norms = np.sqrt(np.square(scaled) @ counts)[:, np.newaxis]
    directions = scaled / np.where(norms > 0, norms, 1.0)
    similarities = tf.matmul(
        tf.cast(blocks, tf.float64),
        tf.constant(directions),
        transpose_a=True,
        transpose_b=True,
    )
    return tf.argmax(similarities, axis=1)
