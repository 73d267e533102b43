"""A search for records that break the proven bound of a sum.

    python benchmarks/finite_precision.py                 # 10^6 tries
    python benchmarks/finite_precision.py --tries 2000    # some minutes

One record is removed from a batch, and the distance between the two sums is
divided by the clip. Sums are float32, or multiples of the grid in float64, so
their difference is exact; its norm is computed in float64, with a relative
error of 1e-15. The search climbs: it changes last bits, signs and records of
the worst batch so far, and starts again every 64 batches, from batches that are
made to be rounded (equal terms, powers of two, terms that cancel, one large
among small ones, denormal numbers). The columns are the largest ratios that
were found. The control is the assumed precision, which must exceed 1.
"""

import argparse
from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

from keras_dp.dp_queries import GaussianSumQuery, JointClipQuery
from keras_dp.dp_queries.summing_query import SumParams
from keras_dp.gradients.records import cost_model
from keras_dp.gradients.records.outer_product_records import (
    Arrangement,
    OuterProductRecords,
)
from keras_dp.gradients.records.records import MaterializedRecords
from keras_dp.gradients.records.table_records import (
    RowRecords,
    TiedTableRecords,
)
from keras_dp.noise import grid

P, Q, ROWS = 3, 4, 5
# Each batch is tried without each of its first records.
REMOVED = 8
RESTART = 64


class Kind(NamedTuple):
    """A kind of records.

    Attributes:
        batch: The number of records.
        terms: The number of positions.
        records: Returns records, from `[batch, 1, terms, P]` and
            `[batch, 1, terms, Q]`.
        gamma: See `GaussianSumQuery`.
        scales: The scales of groups, or `None`.
    """

    batch: int
    terms: int
    records: Callable[[tf.Tensor, tf.Tensor], list[Any]]
    gamma: float | None = None
    scales: tuple[float, ...] | None = None


def kernel(left: tf.Tensor, right: tf.Tensor) -> OuterProductRecords:
    """Returns the records of a kernel."""
    shape = (left.shape[-1], right.shape[-1])
    return OuterProductRecords(
        left, right, Arrangement((1, *shape), (0, 1, 2), shape)
    )


def built(left: tf.Tensor) -> MaterializedRecords:
    """Returns records that were built."""
    return MaterializedRecords(left[:, 0])


def table(left: tf.Tensor) -> RowRecords:
    """Returns updates to rows, of which some share a row."""
    ids = tf.range(left.shape[2]) * 2 % 3
    return RowRecords(
        tf.tile(ids[tf.newaxis], [left.shape[0], 1]), left[:, 0], ROWS
    )


def tied(left: tf.Tensor, right: tf.Tensor) -> TiedTableRecords:
    """Returns records of a table that is looked up and projected."""
    wide = tf.pad(right, [[0, 0], [0, 0], [0, 0], [0, ROWS - Q]])
    return TiedTableRecords(table(left), kernel(wide, left))


KINDS = {
    "tensors": Kind(16, 4, lambda a, b: [a[:, 0]]),
    "built": Kind(16, 4, lambda a, b: [built(a)]),
    "one product": Kind(16, 1, lambda a, b: [kernel(a, b)]),
    "ghost norms": Kind(16, 4, lambda a, b: [kernel(a, b)]),
    "ghost norms, two blocks": Kind(64, 4, lambda a, b: [kernel(a, b)]),
    "rows of a table": Kind(16, 4, lambda a, b: [table(a)]),
    "tied table": Kind(16, 4, lambda a, b: [tied(a, b)]),
    "half precision": Kind(
        16, 4, lambda a, b: [MaterializedRecords(tf.cast(a[:, 0], tf.float16))]
    ),
    "several leaves": Kind(
        16, 4, lambda a, b: [kernel(a, b), built(b), table(a), a[:, 0]]
    ),
    "groups with scales": Kind(
        16, 4, lambda a, b: [kernel(a, b), built(b)], scales=(1e-3, 3e5)
    ),
    "automatic clipping": Kind(16, 4, lambda a, b: [kernel(a, b)], gamma=0.01),
}


def ratio(
    kind: Kind, precision: str, left: tf.Tensor, right: tf.Tensor, clip: Any
) -> tf.Tensor:
    """Returns how far one of the first records moves the sum, over the clip."""
    options = {
        # Without noise, sums are not rounded to the grid.
        "noise_multiplier": 1.0 if precision == "proven" else 0.0,
        "gamma": kind.gamma,
        "precision": precision,
    }
    query = GaussianSumQuery(1.0, **options)
    if kind.scales:
        query = JointClipQuery(list(kind.scales), 1.0, denominator=1, **options)
    spacing = grid.spacing(clip)
    unit = spacing if precision == "proven" else 1.0  # Of the sums.

    def squared(one: tf.Tensor, other: tf.Tensor) -> tf.Tensor:
        moved = tf.cast(one, tf.float64) - tf.cast(other, tf.float64)
        return tf.reduce_sum(tf.square(moved * (unit / clip)))

    records = kind.records(left, right)
    like = [
        tf.zeros((leaf if tf.is_tensor(leaf) else leaf.materialize()).shape[1:])
        for leaf in records
    ]
    empty = query.initial_sample_state(like)
    whole, *others = (
        query.accumulate_records(
            SumParams(clip, spacing),
            empty,
            records,
            tf.range(kind.batch) != row,
        )
        for row in range(-1, REMOVED)
    )
    squares = [
        tf.add_n(list(map(squared, whole, without))) for without in others
    ]
    found = tf.sqrt(tf.reduce_max(squares))
    # What is not finite counts as a violation.
    return tf.where(tf.math.is_finite(found), found, 1e300)


def integers(seed: Any, shape: Any, least: int, most: int) -> tf.Tensor:
    """Returns random integers as float32."""
    drawn = tf.random.stateless_uniform(
        shape, seed, least, most + 1, tf.int32, alg="philox"
    )
    return tf.cast(drawn, tf.float32)


def normals(seed: Any, shape: Any) -> tf.Tensor:
    """Returns normal numbers."""
    return tf.random.stateless_normal(shape, seed, alg="philox")


def fresh(seed: tf.Tensor, shape: tuple[int, ...]) -> tf.Tensor:
    """Returns `[batch, 1, terms, width]`, made to be rounded."""
    seeds = tf.random.split(seed, 8)
    plain = normals(seeds[0], shape)
    sign = tf.sign(plain)
    ulps = 1 + 2.0**-23 * integers(seeds[1], shape, -8, 8)
    alternating = tf.reshape(
        tf.cast(1 - 2 * (tf.range(shape[2]) % 2), tf.float32), [1, 1, -1, 1]
    )
    first = tf.reshape(tf.cast(tf.range(shape[-1]) == 0, tf.float32), [-1])
    ways = [
        plain,
        tf.abs(plain),
        ulps,
        sign * ulps,
        sign * tf.pow(2.0, -integers(seeds[2], shape, 0, 30)),
        (plain[:, :, :1] + tf.zeros(shape)) * ulps * alternating,
        first + plain * 2.0**-24,
        plain * 2.0**-130,
    ]
    way = tf.cast(integers(seeds[3], [], 0, len(ways) - 1), tf.int32)
    chosen = tf.stack(ways)[way]
    spread = tf.gather(
        [0.0, 0.0, 12.0, 40.0],
        tf.cast(integers(seeds[4], [], 0, 3), tf.int32),
    )
    power = tf.round(
        spread
        * tf.random.stateless_uniform(
            [shape[0], 1, 1, 1], seeds[5], -1, 1, alg="philox"
        )
    )
    return chosen * tf.pow(2.0, power)


def changed(seed: tf.Tensor, array: tf.Tensor) -> tf.Tensor:
    """Returns an array with other last bits, signs, or one other record."""
    seeds = tf.random.split(seed, 6)
    shape = array.shape
    some = tf.random.stateless_uniform(shape, seeds[0], alg="philox") < 0.1
    row = integers(seeds[1], [], 0, shape[0] - 1)
    same = tf.reshape(
        tf.range(shape[0], dtype=tf.float32) == row, [-1, 1, 1, 1]
    )
    ulps = 1 + 2.0**-23 * integers(seeds[2], shape, -4, 4)
    ways = [
        tf.where(some, array * ulps, array),
        tf.where(some, -array, array),
        tf.where(same, fresh(seeds[3], tuple(shape)), array),
    ]
    return tf.stack(ways)[tf.cast(integers(seeds[4], [], 0, 2), tf.int32)]


def climbing(kind: Kind, precision: str) -> Callable[..., tf.Tensor]:
    """Returns a function of a number of batches and a seed."""
    shapes = [(kind.batch, 1, kind.terms, width) for width in (P, Q)]

    def search(batches: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        def attempt(
            i: Any, best: Any, now: Any, clip: Any, a: Any, b: Any
        ) -> Any:
            seeds = tf.random.split(tf.stack([seed, i]), 5)
            again = i % RESTART == 0
            other = [fresh(seeds[0], shapes[0]), fresh(seeds[1], shapes[1])]
            near = [changed(seeds[2], a), changed(seeds[3], b)]
            power = 30 * tf.random.stateless_uniform(
                [], seeds[4], -1, 1, tf.float64, alg="philox"
            )
            size = tf.where(
                again, tf.pow(tf.constant(2.0, tf.float64), power), clip
            )
            pair = [
                tf.where(again, o, n) for o, n in zip(other, near, strict=True)
            ]
            found = ratio(kind, precision, *pair, size)
            better = again | (found >= now)
            return (
                i + 1,
                tf.maximum(best, found),
                tf.where(better, found, now),
                size,
                *(
                    tf.where(better, n, o)
                    for n, o in zip(pair, (a, b), strict=True)
                ),
            )

        zero = tf.zeros([], tf.float64)
        return tf.while_loop(
            lambda i, *_: i < batches,
            attempt,
            [
                tf.zeros([], tf.int32),
                zero,
                zero,
                zero + 1,
                *map(tf.zeros, shapes),
            ],
        )[1]

    return search


def largest(
    kind: Kind, precision: str, mode: str, batches: int, seed: int = 1
) -> float:
    """Returns the largest ratio that is found.

    Args:
        kind: The kind of records.
        precision: "proven" or "assumed".
        mode: "XLA", "graph" or "eager".
        batches: The number of batches, with 8 tries each.
        seed: Of the search.
    """
    search = climbing(kind, precision)
    if mode != "eager":
        search = tf.function(search, jit_compile=mode == "XLA", autograph=False)
    return float(search(tf.constant(batches), tf.constant(seed)))


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tries", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kinds", nargs="*", default=list(KINDS))
    given = parser.parse_args()
    # Kernels so small would be built.
    cost_model.instantiates = lambda *_: False
    each = given.tries // (2 * len(given.kinds) * REMOVED)
    shares = {"XLA": 0.95, "graph": 0.045, "eager": 0.005}
    print(
        "| records | mode | tries of each | proven, less 1 | assumed, less 1 |"
    )
    print("| --- | --- | ---: | ---: | ---: |")
    for name in given.kinds:
        for mode, share in shares.items():
            batches = max(round(each * share), 4)
            proven, assumed = (
                largest(KINDS[name], precision, mode, batches, given.seed)
                for precision in ("proven", "assumed")
            )
            print(
                f"| {name} | {mode} | {batches * REMOVED:,} | "
                f"{proven - 1:.1e} | "
                f"{assumed - 1:.1e} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
