"""The queries under test. To join `QUERIES` is to join their tests."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from keras_dp import _nests
from keras_dp.dp_queries import (
    AdaptiveClipSumQuery,
    AdaptiveScaleQuery,
    CorrelatedSumQuery,
    DiscretizedSumQuery,
    DPQuery,
    EncodedSumQuery,
    ErrorCorrectedQuery,
    GaussianAverageQuery,
    GaussianSumQuery,
    JointClipQuery,
    KSDenoisedQuery,
    NestedQuery,
    NoPrivacySumQuery,
    NormalizedQuery,
    PreselectedVectors,
    QuantileAdaptiveClipSumQuery,
    QuantileEstimatorQuery,
)
from keras_dp.ledger import (
    BandedToeplitz,
    BinaryTree,
    CoordinateBounds,
    CorrelatedSum,
    EncodedSum,
    GaussianSum,
    NonPrivateSum,
    ProvenGaussianSum,
)
from keras_dp.ledger.events.noise_families import LaplaceNoise, StudentTNoise

# The relative rounding of one float32 norm and one product.
ULP = 2.0**-23

Sum, Average = GaussianSumQuery, GaussianAverageQuery


@dataclasses.dataclass(frozen=True)
class Case:
    """A query, what its records look like, and what it must report.

    Attributes:
        name: Of the test.
        query: Under test.
        shapes: Nest of `tf.TensorShape`s: one record.
        events: What a release over "r" costs, in order.
        owners: For each leaf of an answer, in order, the event it belongs to;
            by default the first one.
        materializes: Whether it asks for the records themselves.
    """

    name: str
    query: DPQuery
    shapes: Any
    events: tuple[Any, ...]
    owners: tuple[int, ...] = ()
    materializes: bool = False

    def __post_init__(self) -> None:
        first = (0,) * len(tf.nest.flatten(self.shapes))
        object.__setattr__(self, "owners", self.owners or first)

    def __str__(self) -> str:
        return self.name

    @property
    def template(self) -> Any:
        return tf.nest.map_structure(lambda shape: tf.zeros(shape), self.shapes)

    @property
    def draws(self) -> bool:
        """Whether a release adds noise."""
        return any(map(is_noisy, self.events))

    @property
    def noiseless(self) -> DPQuery:
        """The query with the same clips, and no noise."""
        return without_noise(self.query)

    def records(self, batch: int, seed: int = 0) -> Any:
        """Returns a batch, with norms on both sides of the clips."""
        generator = np.random.default_rng(seed)

        def leaf(shape: tf.TensorShape) -> tf.Tensor:
            sizes = 10 ** generator.uniform(-2, 2, [batch] + [1] * len(shape))
            values = sizes * generator.standard_normal([batch, *shape])
            return tf.constant(values, tf.float32)

        return tf.nest.map_structure(leaf, self.shapes)

    def sizes(self, batch: int, query: DPQuery | None = None) -> Any:
        """Returns the sum of the absolute contributions of `records`."""
        query = query or self.query
        state = query.initial_global_state()
        records = tf.nest.map_structure(tf.abs, self.records(batch))
        return tf.nest.map_structure(
            tf.abs, accumulated(query, state, self.template, records)
        )


def answer_sizes(case: Case, batch: int) -> Any:
    """Returns the answer to the absolute contributions of `records`."""
    query, state = case.noiseless, case.noiseless.initial_global_state()
    value = query.get_noised_result(case.sizes(batch, query), state).value
    return tf.nest.map_structure(tf.abs, value)


def is_noisy(event: Any) -> bool:
    """Returns whether a release with this event adds noise."""
    if isinstance(event, EncodedSum):
        return True
    return bool(getattr(event, "noise_stddev", 0))


class BareEncodedSum(EncodedSumQuery):
    """Releases the sum itself: noise has no scale 0."""

    def get_noised_result(self, sample_state, global_state):
        result = super().get_noised_result(sample_state, global_state)
        return result._replace(value=sample_state)


def without_noise(query: DPQuery) -> DPQuery:
    """Returns the query with the same bounds and no noise, also inside."""
    if isinstance(query, NestedQuery):
        bare = map(without_noise, _nests.leaves(query.queries))
        return NestedQuery(_nests.join(query.queries, bare))
    if isinstance(query, EncodedSumQuery):
        return BareEncodedSum(query.vectors, query.noise, query.chunk_bytes)
    changes = {}
    for field in dataclasses.fields(query):
        if "stddev" in field.name or "noise_multiplier" in field.name:
            changes[field.name] = 0.0
        elif field.name == "precision":
            changes[field.name] = "assumed"
        elif isinstance(own := getattr(query, field.name), DPQuery):
            changes[field.name] = without_noise(own)
    return dataclasses.replace(query, **changes)


def accumulated(
    query: DPQuery, state: Any, template: Any, records: Any, mask: Any = None
) -> Any:
    """Returns the sample state of one batch of records."""
    return query.accumulate_records(
        query.derive_sample_params(state),
        query.initial_sample_state(template),
        records,
        mask,
    )


def contribution(query: DPQuery, record: Any) -> Any:
    """Returns what one record adds to an empty sample."""
    state = query.initial_global_state(seed=0)
    return query.accumulate_record(
        query.derive_sample_params(state),
        query.initial_sample_state(record),
        record,
    )


def answer(
    query: DPQuery, template: Any, records: Any, mask: Any = None
) -> Any:
    """Returns the value of one release over one batch."""
    state = query.initial_global_state(seed=0)
    sample = accumulated(query, state, template, records, mask)
    return query.get_noised_result(sample, state).value


def total(query, records, template=None):
    """Returns the answer for one batch, with a template from its records."""
    if template is None:
        template = tf.nest.map_structure(lambda leaf: leaf[0], records)
    return answer(query, template, records)


def map_numpy(function: Callable[..., Any], *nests: Any) -> None:
    """Applies `function` to the numpy values of leaves, in step."""
    for leaves in zip(*map(tf.nest.flatten, nests), strict=True):
        function(*(np.asarray(leaf) for leaf in leaves))


def assert_equal(*nests: Any) -> None:
    """Bit by bit."""
    tf.nest.assert_same_structure(*nests)
    map_numpy(np.testing.assert_array_equal, *nests)


def assert_close(one: Any, two: Any, sizes: Any) -> None:
    """Up to 16 ulp of `sizes`: the rounding of sums of a dozen records."""

    def close(one: Any, two: Any, sizes: Any) -> None:
        excess = np.abs(one - two) - 16 * 2**-23 * sizes
        assert (excess <= 0).all(), (one, two)

    tf.nest.assert_same_structure(one, two)
    map_numpy(close, one, two, sizes)


def assert_same_state(one: Any, two: Any) -> None:
    """Integers, such as seeds, bit by bit; floats to rounding."""

    def same(one: Any, two: Any) -> None:
        if one.dtype.kind == "f":
            # Relative to what sums of a dozen records of up to 100 can be.
            np.testing.assert_allclose(one, two, rtol=16 * ULP, atol=1e-3)
        else:
            np.testing.assert_array_equal(one, two)

    tf.nest.assert_same_structure(one, two)
    map_numpy(same, one, two)


_S = tf.TensorShape


class AnyText(str):
    """Equal to all text: the id of a mechanism is random."""

    __slots__ = ()
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        return isinstance(other, str)

    def __ne__(self, other: object) -> bool:
        return not self == other


def correlated_step(name, bound, stddev, strategy, rounds=100) -> CorrelatedSum:
    """Returns the event of a mechanism, whatever its id."""
    step = CorrelatedSum(name, bound, stddev, strategy, rounds, "any")
    object.__setattr__(step, "mechanism_id", AnyText("any"))
    return step


def correlated():
    """Returns a nest of queries with correlated noise, of four clips."""
    spec = tf.TensorSpec

    def summed(strategy, clip, like, *clips, **options):
        return CorrelatedSumQuery(
            strategy, clip, 2.0, 100, like, *clips, **options
        )

    return NestedQuery(
        {
            "a": summed(
                BandedToeplitz((1.0, 0.5, 0.25)),
                1.5,
                {"w": spec([2, 3], tf.float64), "b": [spec([])]},
                {"w": 0.5, "b": 4.0},
            ),
            "b": [
                NormalizedQuery(
                    summed(BandedToeplitz((1.0, 0.9)), 3.0, spec([4])), 7
                ),
                summed(BandedToeplitz.square_root(3), 1.0, (spec([2]),)),
                summed(BinaryTree(), 2.0, spec([]), restart_after=2),
            ],
        }
    )


_SHAPES = CoordinateBounds.from_vectors(
    [[8, 4, 2, 1, 1, 0.5, 0, 0, 0], [2] * 9, [9, 0, 0, 0, 0, 0, 0, 0, 0]]
)
_RECIPE = PreselectedVectors(
    (LaplaceNoise(1.0), StudentTNoise(2.0, 3.0)), 2, 5, 1.5, levels=3
)

QUERIES = [
    Case("sum", Sum(1.5, 2.0), _S([4]), (GaussianSum("r", 1.5, 2),)),
    Case(
        "sum-of-nest",
        Sum(1.5, 2.0),
        {"w": _S([2, 3]), "b": [_S([3]), (_S([]),)]},
        (GaussianSum("r", 1.5, 2),),
    ),
    Case(
        "average",
        Average(0.5, sum_stddev=3, denominator=7),
        (_S([5]), _S([1, 1])),
        (GaussianSum("r", 0.5, 3),),
    ),
    Case(
        "automatic",
        Sum(1.5, 2.0, gamma=0.5, rescale=True),
        {"w": _S([2, 3]), "b": _S([])},
        (GaussianSum("r", 1.5, 2),),
    ),
    Case("bare-sum", Sum(2, 0), _S([3]), (GaussianSum("r", 2, 0),)),
    Case("no-clip", Sum(0, 1), _S([3]), (GaussianSum("r", 0, 1),)),
    Case(
        "no-privacy",
        NoPrivacySumQuery(),
        [_S([2]), _S([])],
        (NonPrivateSum("r"),),
    ),
    Case(
        "nested-1-dict",
        NestedQuery({"b": Sum(1.0, 2.0), "a": Average(3.0, 4.0, 5.0)}),
        {"b": _S([2]), "a": {"x": _S([2]), "y": _S([3])}},
        (GaussianSum("r/a", 3, 4), GaussianSum("r/b", 1, 2)),
        (0, 0, 1),
    ),
    Case(
        "nested-2-tuple-list",
        NestedQuery((Sum(1.0, 2.0), [NoPrivacySumQuery(), Sum(2.0, 1.0)])),
        (_S([2]), [_S([2]), _S([])]),
        (
            GaussianSum("r/0", 1, 2),
            NonPrivateSum("r/1/0"),
            GaussianSum("r/1/1", 2, 1),
        ),
        (0, 1, 2),
    ),
    Case(
        "nested-3-nested-queries",
        NestedQuery(
            {
                "x": NestedQuery([NestedQuery((Sum(1, 1),)), Sum(2, 2)]),
                "y": NestedQuery(Sum(3.0, 3.0)),
            }
        ),
        {"x": [(_S([2]),), _S([3])], "y": _S([2])},
        (
            GaussianSum("r/x/0/0", 1, 1),
            GaussianSum("r/x/1", 2, 2),
            GaussianSum("r/y", 3, 3),
        ),
        (0, 1, 2),
    ),
    Case(
        "joint-clip",
        JointClipQuery({"a": 1.0, "b": [100.0, 0.1]}, 1.5, 2.0, 3.0),
        {"a": {"x": _S([2]), "y": _S([1])}, "b": [_S([3]), _S([])]},
        (GaussianSum("r", 1.5, 2),),
    ),
    Case(
        "joint-automatic",
        JointClipQuery([1.0, 9.0], 1.5, 2.0, 3.0, gamma=0.1, rescale=True),
        [_S([2]), _S([3])],
        (GaussianSum("r", 1.5, 2),),
    ),
    Case(
        "proven",
        Average(1.5, 2.0, 3.0, precision="proven"),
        [_S([2]), _S([3])],
        (ProvenGaussianSum("r", 1.5, 2),),
    ),
    Case(
        "joint-proven",
        JointClipQuery([1.0, 9.0], 1.5, 2.0, 3.0, precision="proven"),
        [_S([2]), _S([3])],
        (ProvenGaussianSum("r", 1.5, 2),),
    ),
    Case(
        "quantile-proven",
        QuantileAdaptiveClipSumQuery(
            2.0, 1.5, 0.5, 0.2, 5.0, 100.0, precision="proven"
        ),
        _S([2]),
        (
            ProvenGaussianSum("r", 2.0, 3.0),
            ProvenGaussianSum("r/clipped_count", 0.5, 5.0),
        ),
    ),
    Case(
        "adaptive-clip-proven",
        AdaptiveClipSumQuery(2.0, 0.75, 2.5, 100.0, precision="proven"),
        _S([2]),
        (
            ProvenGaussianSum("r", 2.0, 1.5),
            ProvenGaussianSum("r/norms", 2.0, 10.0),
        ),
    ),
    Case(
        "ks-denoised",
        KSDenoisedQuery(Sum(1.5, 2.0)),
        {"w": _S([2, 3]), "b": _S([3])},
        (GaussianSum("r", 1.5, 2),),
    ),
    Case(
        "ks-denoised-nested",
        KSDenoisedQuery(
            NestedQuery({"a": Average(3.0, 4.0, 5.0), "b": [Sum(1.0, 2.0)]})
        ),
        {"a": {"x": _S([2]), "y": _S([3])}, "b": [_S([2])]},
        (GaussianSum("r/a", 3, 4), GaussianSum("r/b/0", 1, 2)),
        (0, 0, 1),
    ),
    Case(
        "nested-ks-denoised",
        NestedQuery([KSDenoisedQuery(Sum(1.0, 2.0)), Sum(2.0, 1.0)]),
        [(_S([2]), _S([])), _S([3])],
        (GaussianSum("r/0", 1, 2), GaussianSum("r/1", 2, 1)),
        (0, 0, 1),
    ),
    Case(
        "discretized",
        DiscretizedSumQuery(0.5, 1.5, 2.0, chunk_bytes=70),
        {"w": _S([2, 3]), "b": [_S([2]), _S([])]},
        (GaussianSum("r", 1.5, 2),),
        materializes=True,
    ),
    Case(
        "error-corrected",
        ErrorCorrectedQuery(Average(1.5, 6.0, 5.0), 0.1),
        [_S([40]), _S([6, 6])],
        (GaussianSum("r", 1.5, 6),),
    ),
    Case(
        "nested-error-corrected-discretized",
        NestedQuery(
            {
                "a": ErrorCorrectedQuery(
                    DiscretizedSumQuery(1.0, 3.0, 9.0), 2.0
                ),
                "b": DiscretizedSumQuery(1.0, 1.0, 2.0),
            }
        ),
        {"a": (_S([50]),), "b": _S([2])},
        (GaussianSum("r/a", 3, 9), GaussianSum("r/b", 1, 2)),
        (0, 1),
        materializes=True,
    ),
    Case(
        "encoded",
        EncodedSumQuery(_SHAPES, LaplaceNoise(2.0), chunk_bytes=100),
        {"w": _S([2, 3]), "b": [_S([2]), _S([])]},
        (EncodedSum("r", _SHAPES, LaplaceNoise(2.0)),),
        materializes=True,
    ),
    Case(
        "nested-encoded",
        NestedQuery(
            [
                EncodedSumQuery(_RECIPE, StudentTNoise(1.5, 9.0)),
                EncodedSumQuery(_SHAPES, LaplaceNoise(2.0)),
            ]
        ),
        [(_S([2]), _S([3])), _S([9])],
        (
            EncodedSum("r/0", _RECIPE.bounds(), StudentTNoise(1.5, 9.0)),
            EncodedSum("r/1", _SHAPES, LaplaceNoise(2.0)),
        ),
        (0, 0, 1),
        materializes=True,
    ),
    Case(
        "normalized",
        NormalizedQuery(NestedQuery([Sum(1.5, 2.0), Sum(1.0, 3.0)]), 4.0),
        [{"x": _S([2]), "y": _S([])}, _S([3])],
        (GaussianSum("r/0", 1.5, 2), GaussianSum("r/1", 1, 3)),
        (0, 0, 1),
    ),
    Case(
        "quantile-estimator",
        QuantileEstimatorQuery(0.0, 0.5, 2.0, 3.0, 11),
        _S([]),
        (GaussianSum("r", 0.5, 3),),
        materializes=True,
    ),
    Case(
        "quantile-adaptive-clip",
        QuantileAdaptiveClipSumQuery(1.5, 2.0, 0.5, 0.2, 4.0, 11),
        {"w": _S([2, 3]), "b": [_S([3]), _S([])]},
        (GaussianSum("r", 1.5, 3), GaussianSum("r/clipped_count", 0.5, 4)),
    ),
    Case(
        "adaptive-scale",
        AdaptiveScaleQuery(
            Average(1.5, 2.0, 3.0),
            {"w": tf.TensorSpec([2, 3]), "b": [tf.TensorSpec([])]},
            first_rounds=1,
        ),
        {"w": _S([2, 3]), "b": [_S([])]},
        (GaussianSum("r", 1.5, 2),),
    ),
    Case(
        "nested-adaptive-scale-nested",
        NestedQuery(
            [
                AdaptiveScaleQuery(
                    NestedQuery((Sum(1.0, 2.0), Average(2.0, 1.0, 5.0))),
                    (tf.TensorSpec([2, 1, 2]), tf.TensorSpec([3])),
                    power=0.5,
                ),
                Sum(2.0, 1.0),
            ]
        ),
        [(_S([2, 1, 2]), _S([3])), _S([3])],
        (
            GaussianSum("r/0/0", 1, 2),
            GaussianSum("r/0/1", 2, 1),
            GaussianSum("r/1", 2, 1),
        ),
        (0, 1, 2),
    ),
    Case(
        "adaptive-clip",
        AdaptiveClipSumQuery(1.5, 2.0, 3.0, 11),
        {"w": _S([2, 3]), "b": [_S([3]), _S([])]},
        (GaussianSum("r", 1.5, 3), GaussianSum("r/norms", 1.5, 9)),
    ),
    Case(
        "nested-adaptive-clips",
        NestedQuery(
            {
                "a": NormalizedQuery(
                    AdaptiveClipSumQuery(1.0, 2.0, 3.0, 11), 11
                ),
                "b": QuantileAdaptiveClipSumQuery(
                    0.0, 2.0, 0.5, 0.2, 4.0, 11, geometric_update=False
                ),
            }
        ),
        {"a": _S([4]), "b": (_S([2]), _S([]))},
        (
            GaussianSum("r/a", 1, 2),
            GaussianSum("r/a/norms", 1, 6),
            GaussianSum("r/b", 0, 0),
            GaussianSum("r/b/clipped_count", 0.5, 4),
        ),
        (0, 3, 3),
    ),
    Case(
        "correlated",
        correlated(),
        {
            "a": {"w": _S([2, 3]), "b": [_S([])]},
            "b": [_S([4]), (_S([2]),), _S([])],
        },
        (
            correlated_step("r/a", 1.5, 3, BandedToeplitz((1.0, 0.5, 0.25))),
            correlated_step("r/b/0", 3, 6, BandedToeplitz((1.0, 0.9))),
            correlated_step("r/b/1", 1, 2, BandedToeplitz.square_root(3)),
            correlated_step("r/b/2", 2, 4, BinaryTree(), 2),
        ),
        (0, 0, 1, 2, 3),
    ),
]
