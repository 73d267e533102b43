"""The queries under test. To join `QUERIES` is to join their tests."""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from keras_dp.dp_queries import (
    DPQuery,
    GaussianAverageQuery,
    GaussianSumQuery,
    NestedQuery,
    NoPrivacySumQuery,
)
from keras_dp.ledger import GaussianSum, NonPrivateSum

# The relative rounding of one float32 norm and one product.
ULP = 2.0**-23

Sum, Average = GaussianSumQuery, GaussianAverageQuery


class Parts(NamedTuple):
    """A record in two parts."""

    head: Any
    body: Any


@dataclasses.dataclass(frozen=True)
class Case:
    """A query, what its records look like, and what it must report.

    Attributes:
        name: Of the test.
        query: Under test.
        shapes: Nest of `tf.TensorShape`s: one record.
        events: What a release over "r" costs, in order.
        owners: For each leaf of a record, in order, the event it belongs to.
    """

    name: str
    query: DPQuery
    shapes: Any
    events: tuple[Any, ...]
    owners: tuple[int, ...]

    def __str__(self) -> str:
        return self.name

    @property
    def template(self) -> Any:
        return tf.nest.map_structure(tf.zeros, self.shapes)

    @property
    def draws(self) -> bool:
        """Whether a release adds noise."""
        return any(getattr(e, "noise_stddev", 0) for e in self.events)

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

    def sizes(self, batch: int) -> Any:
        """Returns the sum of the absolute contributions of `records`."""
        query, state = self.query, self.query.initial_global_state()
        records = tf.nest.map_structure(tf.abs, self.records(batch))
        return accumulated(query, state, self.template, records)


def without_noise(query: DPQuery) -> DPQuery:
    """Returns the query with all noise removed."""
    if isinstance(query, Sum):
        return dataclasses.replace(query, stddev=0.0)
    if isinstance(query, Average):
        return dataclasses.replace(query, sum_stddev=0.0)
    if isinstance(query, NestedQuery):
        return NestedQuery(tf.nest.map_structure(without_noise, query.queries))
    return query


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


_S = tf.TensorShape

QUERIES = [
    Case("sum", Sum(1.5, 2.0), _S([4]), (GaussianSum("r", 1.5, 2),), (0,)),
    Case(
        "sum-of-nest",
        Sum(1.5, 2.0),
        {"w": _S([2, 3]), "b": [_S([3]), (_S([]),)]},
        (GaussianSum("r", 1.5, 2),),
        (0, 0, 0),
    ),
    Case(
        "average",
        Average(0.5, sum_stddev=3, denominator=7),
        (_S([5]), _S([1, 1])),
        (GaussianSum("r", 0.5, 3),),
        (0, 0),
    ),
    Case("bare-sum", Sum(2, 0), _S([3]), (GaussianSum("r", 2, 0),), (0,)),
    Case("no-clip", Sum(0, 1), _S([3]), (GaussianSum("r", 0, 1),), (0,)),
    Case(
        "no-privacy",
        NoPrivacySumQuery(),
        [_S([2]), _S([])],
        (NonPrivateSum("r"),),
        (0, 0),
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
        "nested-3-namedtuple",
        NestedQuery(Parts(Sum(1.0, 2.0), {"c": Parts(Sum(2, 3), Sum(4, 5))})),
        Parts(_S([2]), {"c": Parts(_S([3]), [_S([1]), _S([2])])}),
        (
            GaussianSum("r/0", 1, 2),
            GaussianSum("r/1/c/0", 2, 3),
            GaussianSum("r/1/c/1", 4, 5),
        ),
        (0, 1, 2, 2),
    ),
    Case(
        "nested-4-nested-queries",
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
        "nested-5",
        NestedQuery({"a": [({"b": (Sum(1.0, 1.0), Sum(0.1, 9.0))},)]}),
        {"a": [({"b": (_S([2]), (_S([3]), _S([])))},)]},
        (
            GaussianSum("r/a/0/0/b/0", 1, 1),
            GaussianSum("r/a/0/0/b/1", 0.1, 9),
        ),
        (0, 1, 1),
    ),
]
