"""Scales that follow answers: their definition, and what they bound."""

import itertools

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from keras_dp.auditing import sensitivity
from keras_dp.dp_queries import (
    AdaptiveScaleQuery,
    CorrelatedSumQuery,
    GaussianSumQuery,
    KSDenoisedQuery,
    NestedQuery,
)
from keras_dp.ledger import BinaryTree
from keras_dp.noise import reproducible
from tests.query_table import ULP, accumulated

SHAPES = [(4, 3), (3,), (2, 2, 3, 1), ()]


def specs(shapes):
    return [tf.TensorSpec(shape) for shape in shapes]


def zeros(shapes):
    return [tf.zeros(shape) for shape in shapes]


def query(inner, shapes=SHAPES, **options):
    return AdaptiveScaleQuery(inner, specs(shapes), **options)


def product(vectors):
    scale = np.ones([])
    for vector in vectors:
        scale = scale[..., None] * np.asarray(vector)
    return scale


def scales_of(asked, state):
    assert len(asked.record_specs) == len(state.scales)
    return [product(own) for own in state.scales]


def round_of(asked, state, records):
    sample = accumulated(asked, state, zeros(SHAPES), records)
    return asked.get_noised_result(sample, state)


def drawn_records(generator, batch=5):
    sizes = [1.0, 30.0, 0.1, 2.0]
    return [
        size
        * generator.normal(size=[batch, *shape])
        * np.exp(generator.normal(size=shape))
        for size, shape in zip(sizes, SHAPES, strict=True)
    ]


class ByDefinition:
    """The scales, by loops over the coordinates, from all answers so far."""

    def __init__(self, asked, variances):
        self.asked, self.variances = asked, variances
        self.history = []

    def scales(self):
        asked = self.asked
        if len(self.history) < asked.first_rounds:
            return [np.ones(shape) for shape in SHAPES]
        decays = [
            (1 - asked.decay) * asked.decay**age
            for age in range(len(self.history))
        ][::-1]
        sizes = [np.prod(s) if s else 0 for s in SHAPES]
        variance = np.dot(sizes, self.variances) / np.sum(sizes)
        floor = asked.floor * sum(decays) * variance

        def limited(ratio):
            ratio = ratio ** (asked.power / 2)
            return np.clip(ratio, 1 / asked.scale_range, asked.scale_range)

        levels, parts = [], []
        for leaf, shape in enumerate(SHAPES):
            # The squares of the answers less the noise, averaged over rounds.
            moment = sum(
                decay * (answers[leaf] ** 2 - noise[leaf])
                for decay, (answers, noise) in zip(
                    decays, self.history, strict=True
                )
            )
            levels.append(max(np.mean(moment), 0) + floor)
            part = np.ones(shape)
            for axis, size in enumerate(shape):
                along = [
                    max(np.mean(np.take(moment, place, axis)), 0) + floor
                    for place in range(size)
                ]
                mean = np.mean(along)
                for index in itertools.product(*map(range, shape)):
                    part[index] *= limited(along[index[axis]] / mean)
            parts.append(part)
        typical = np.dot(levels, sizes) / np.sum(sizes)
        scales = [
            limited(level / typical) * part if part.shape else part
            for level, part in zip(levels, parts, strict=True)
        ]
        flat = np.concatenate([s.ravel() for s in scales if s.shape])
        unit = np.sqrt(np.mean(flat**2))
        return [s / unit if s.shape else s for s in scales]

    def answer(self, records, clip):
        scales = self.scales()
        total = [np.zeros(shape) for shape in SHAPES]
        for record in zip(*records, strict=True):
            scaled = [r / s for r, s in zip(record, scales, strict=True)]
            norm = np.sqrt(sum(np.sum(part**2) for part in scaled))
            for leaf, part in enumerate(scaled):
                total[leaf] += min(1, clip / norm) * part
        return [t * s for t, s in zip(total, scales, strict=True)]

    def observe(self, answers):
        noise = [
            variance * scale**2
            for variance, scale in zip(
                self.variances, self.scales(), strict=True
            )
        ]
        self.history.append((answers, noise))


class TestTheDefinition:
    @pytest.mark.parametrize(
        "options",
        [
            {},
            {"power": 0.5, "decay": 0.5, "first_rounds": 2},
            {"floor": 0.1, "scale_range": 1.5, "first_rounds": 1},
        ],
    )
    @pytest.mark.parametrize("stddev", [0.0, 0.5])
    def test_is_followed_round_by_round(self, options, stddev) -> None:
        clip = 3.0
        asked = query(
            GaussianSumQuery(clip, stddev), **({"first_rounds": 3} | options)
        )
        definition = ByDefinition(asked, [stddev**2] * 4)
        state = asked.initial_global_state(2)
        generator = np.random.default_rng(0)

        for _ in range(6):
            records = drawn_records(generator)
            for got, want in zip(
                scales_of(asked, state), definition.scales(), strict=True
            ):
                np.testing.assert_allclose(got, want, rtol=1e-4)
            tensors = [tf.constant(r, tf.float32) for r in records]
            # Nearly none: a sum in steps of a grid needs noise.
            silent = state.query._replace(
                stddev=tf.constant(1e-6 if stddev else 0.0, tf.float64)
            )
            quiet = state._replace(query=silent)
            nearly_bare = round_of(asked, quiet, tensors).value
            for got, want in zip(
                nearly_bare, definition.answer(records, clip), strict=True
            ):
                size = np.abs(want).max()
                np.testing.assert_allclose(got / size, want / size, atol=1e-3)
            result = round_of(asked, state, tensors)
            definition.observe([np.asarray(v, "float64") for v in result.value])
            state = result.global_state

    def test_first_rounds_are_those_of_the_query_inside(self) -> None:
        inner = GaussianSumQuery(3.0, 1.0)
        asked = query(inner, first_rounds=2)
        generator = np.random.default_rng(1)
        records = [tf.constant(r, tf.float32) for r in drawn_records(generator)]
        with reproducible():
            state, own = (
                each.initial_global_state(4) for each in (asked, inner)
            )
            for number in range(3):
                outer = round_of(asked, state, records)
                plain = inner.get_noised_result(
                    accumulated(inner, own, zeros(SHAPES), records), own
                )
                state, own = outer.global_state, plain.global_state
                same = [
                    np.array_equal(one, two)
                    for one, two in zip(outer.value, plain.value, strict=True)
                ]
                assert same == [number < 2] * 3 + [same[3]]


class TestTheBound:
    """The sum inside moves by at most the clip, whatever the state says."""

    def state_of(self, asked, scales):
        state = asked.initial_global_state(0)
        return state._replace(scales=(tuple(map(tf.constant, scales)),))

    def norm_of(self, asked, sample, state):
        (mechanism,) = asked.mechanisms(sample, state)
        return sensitivity.norm(sensitivity.sum_of(mechanism))

    @settings(max_examples=150, deadline=None)
    @given(
        record=hnp.arrays(
            np.float32,
            (1, 3, 2),
            elements=st.floats(width=32, allow_subnormal=True),
        ),
        scales=st.tuples(
            *(
                hnp.arrays(np.float64, n, elements=st.floats(1e-30, 1e30))
                for n in (3, 2)
            )
        ),
    )
    def test_holds_for_every_record_and_state(self, record, scales):
        asked = query(GaussianSumQuery(1.0, 0.5), [(3, 2)])
        state = self.state_of(asked, scales)

        sample = accumulated(asked, state, zeros([(3, 2)]), [record])

        assert self.norm_of(asked, sample, state) <= 1 + 8 * ULP

    @pytest.mark.parametrize("bad", [np.nan, np.inf, -1.0, 0.0])
    def test_holds_for_a_state_that_was_tampered_with(self, bad) -> None:
        asked = query(GaussianSumQuery(1.0, 0.5), [(3, 2)])
        state = self.state_of(asked, [np.ones(3), np.array([1.0, bad])])
        records = [tf.random.stateless_normal([5, 3, 2], (1, 2))]

        sample = accumulated(asked, state, zeros([(3, 2)]), records)

        assert self.norm_of(asked, sample, state) <= 5 * (1 + 8 * ULP)


class TestRefusals:
    @pytest.mark.parametrize(
        "inner",
        [
            KSDenoisedQuery(GaussianSumQuery(1.0, 1.0)),
            CorrelatedSumQuery(BinaryTree(), 1.0, 1.0, 9, specs(SHAPES)),
            NestedQuery([KSDenoisedQuery(GaussianSumQuery(1.0, 1.0))]),
        ],
        ids=lambda each: type(each).__name__,
    )
    def test_of_noise_that_is_not_known(self, inner) -> None:
        with pytest.raises(TypeError, match=r"`query` must.*Received.*Take"):
            query(
                inner, SHAPES[:1] if isinstance(inner, NestedQuery) else SHAPES
            ).initial_global_state()

    def test_of_records_of_another_shape(self) -> None:
        asked = query(GaussianSumQuery(1.0, 1.0), [(3, 2)])
        with pytest.raises(ValueError, match="template"):
            asked.initial_sample_state([tf.zeros([3, 1])])
        state = asked.initial_global_state()
        with pytest.raises(ValueError, match="`records` must"):
            accumulated(asked, state, zeros([(3, 2)]), [tf.ones([5, 3, 1])])
        with pytest.raises(ValueError, match="`records` must"):
            accumulated(asked, state, zeros([(3, 2)]), [tf.ones([5, 3, 2])] * 2)
