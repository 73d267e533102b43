"""The rate at which noise alone moves a weight by a good distance."""

import math
import operator

import keras
import numpy as np
import pytest

from keras_dp import GaussianAverageQuery
from keras_dp.keras_internals import fresh_copy_of
from keras_dp.recipes.learning_rate import (
    ChosenRate,
    ScaledSchedule,
    Weights,
    chosen_rate,
    ending_with,
    trained_weights,
    walk,
)
from keras_dp.recipes.training_data import build_for_records
from keras_dp.sampling import PoissonBatches

ROUNDS = 200
WEIGHTS = Weights(in_tables=0, others=9_000)
# 4,096 weights: the root of their mean square has a standard error of
# 1 / sqrt(2 * 4096) = 1.1 %.
WITHIN = 5 * 0.011
optimizers = keras.optimizers
schedules = optimizers.schedules


def query(noise_multiplier=1.0, clip=1.0, denominator=512.0):
    return GaussianAverageQuery(
        clip, noise_multiplier=noise_multiplier, denominator=denominator
    )


class TestAWalk:
    @pytest.mark.parametrize("momentum", [0.0, 0.9])
    def test_of_sgd_is_that_of_the_formula(self, momentum) -> None:
        """A step counts in all later ones: rate (1 - m^k) / (1 - m) of it."""
        optimizer = optimizers.SGD(0.2, momentum=momentum)
        counts = (1 - momentum ** np.arange(1, ROUNDS + 1)) / (1 - momentum)

        found = walk(optimizer, 0.03, ROUNDS)

        expected = 0.2 * 0.03 * math.sqrt(np.square(counts).sum())
        assert abs(found / expected - 1) < WITHIN

    @pytest.mark.parametrize("stddev", [1e-4, 1e-2, 1.0])
    def test_of_adam_has_steps_of_the_rate(self, stddev) -> None:
        found = walk(optimizers.Adam(1e-3), stddev, ROUNDS)

        # A share of 0.1 or so for the first steps, in which Adam knows little.
        assert abs(found / (1e-3 * math.sqrt(ROUNDS)) - 1) < 0.1

    def test_follows_a_schedule(self) -> None:
        def rate(step):
            return 0.1 * (1 - step / ROUNDS)

        schedule = optimizers.schedules.PolynomialDecay(0.1, ROUNDS, 0.0)
        squares = sum(rate(step) ** 2 for step in range(ROUNDS))

        found = walk(optimizers.SGD(schedule), 1.0, ROUNDS)

        assert abs(found / math.sqrt(squares) - 1) < WITHIN


class TestTheRate:
    @pytest.mark.parametrize(
        ("positions", "times"), [(1, 1), (5, 5**0.25), (16, 2), (1000, 2)]
    )
    def test_is_longer_for_labels_at_many_positions(
        self, positions, times
    ) -> None:
        def chosen(count):
            return chosen_rate(
                optimizers.Adam(), query(), ROUNDS, WEIGHTS, positions=count
            )

        found, one = chosen(positions), chosen(1)

        assert found.walk == pytest.approx(times * one.walk)
        assert found.rate == pytest.approx(times * one.rate, rel=0.1)

    @pytest.mark.nightly
    @pytest.mark.parametrize(
        "kind",
        [
            name
            for name, kind in vars(optimizers).items()
            if isinstance(kind, type)
            and issubclass(kind, optimizers.Optimizer)
            and name
            not in {"Optimizer", "LossScaleOptimizer", "MultiOptimizer"}
        ],
    )
    def test_makes_every_optimizer_walk_as_far(self, kind) -> None:
        scripts = getattr(optimizers, kind)()

        chosen = chosen_rate(scripts, query(4.0), ROUNDS, Weights(0, 50_000))

        found = walk(scripts, 4.0 / 512, ROUNDS, chosen.rate)
        assert chosen.walk == pytest.approx(2 / 50_000**0.25)
        # It comes within a tenth for the noise and a small gradient together.
        assert 0.75 < found / chosen.walk < 1.15

    def test_is_in_units_of_the_clip(self) -> None:
        """SGD with ten times the clip takes a tenth of the rate."""
        one, ten = (
            chosen_rate(
                optimizers.SGD(), query(clip=clip), ROUNDS, WEIGHTS
            ).rate
            for clip in (1.0, 10.0)
        )

        assert ten == pytest.approx(one / 10, rel=0.06)

    def test_of_few_weights_allows_a_classifier_steps_of_length_1(self) -> None:
        """A mean of errors may diverge so, where inputs are large."""
        errors, hinge = (
            chosen_rate(
                optimizers.SGD(), query(1e-3), ROUNDS, Weights(0, 109), loss
            ).rate
            for loss in ("mse", "hinge")
        )

        assert hinge == pytest.approx(1.0, rel=0.1)
        assert errors < 0.5

    def test_keeps_the_shape_of_a_schedule_that_ends_with_it(self) -> None:
        schedule = schedules.CosineDecay(0.1, ROUNDS / 4)

        chosen = chosen_rate(optimizers.SGD(schedule), query(), ROUNDS, WEIGHTS)

        private = fresh_copy_of(optimizers.SGD(schedule), chosen.rate)
        for step in (0, 60, 199):
            assert float(chosen.rate(step)) == pytest.approx(
                chosen.factor * float(schedule(step / 4)), rel=1e-5
            )
        squares = sum(float(chosen.rate(step)) ** 2 for step in range(ROUNDS))
        # The walk is within a tenth, by noise and a gradient of half the clip.
        stddev = math.hypot(1 / 512, 0.5 / math.sqrt(WEIGHTS.others))
        walked = stddev * math.sqrt(squares)
        assert walked == pytest.approx(chosen.walk, rel=0.1 + WITHIN)
        assert "ends with the training, in 4 times its steps" in chosen.reason
        again = optimizers.deserialize(optimizers.serialize(private))
        assert isinstance(again._learning_rate, ScaledSchedule)
        assert float(again.learning_rate) == float(chosen.rate(0))

    @pytest.mark.parametrize(
        ("own", "ending"),
        [
            (
                schedules.CosineDecay(
                    0.0, 30, warmup_target=0.5, warmup_steps=20
                ),
                schedules.CosineDecay(
                    0.0, 120, warmup_target=0.5, warmup_steps=80
                ),
            ),
            (
                schedules.CosineDecay(0.5, 800, warmup_steps=20),
                schedules.CosineDecay(0.5, 200),
            ),
            (
                schedules.PolynomialDecay(0.5, 50, 0.1, power=2),
                schedules.PolynomialDecay(0.5, 200, 0.1, power=2),
            ),
            (
                schedules.PiecewiseConstantDecay([20, 40], [0.5, 0.1, 0.2]),
                schedules.PiecewiseConstantDecay([66, 133], [0.5, 0.1, 0.2]),
            ),
            *[
                (endless, endless)
                for endless in (
                    schedules.PolynomialDecay(0.5, 50, 0.1, cycle=True),
                    schedules.PiecewiseConstantDecay([0], [0.5, 0.1]),
                    schedules.ExponentialDecay(0.5, 50, 0.9),
                    ScaledSchedule(schedules.CosineDecay(0.5, 50), 2.0),
                )
            ],
        ],
        ids=lambda schedule: type(schedule).__name__,
    )
    def test_ends_with_the_training(self, own, ending) -> None:
        found, _ = ending_with(own, ROUNDS)

        for step in (0, 30, 66, 67, 134, 199):
            assert float(found(step)) == pytest.approx(float(ending(step)))

    def test_says_that_a_schedule_trains_nothing_at_the_end(self) -> None:
        said = [
            "in the last quarter"
            in ChosenRate(ScaledSchedule(own, 2.0), 2.0, 0.2, ROUNDS).reason
            for own in (
                schedules.ExponentialDecay(0.5, 10, 0.5),
                schedules.ExponentialDecay(0.5, 50, 0.5),
            )
        ]

        assert said == [True, False]

    @pytest.mark.parametrize(
        ("weights", "walk_"),
        [
            (Weights(0, 10_000), 0.2),
            (Weights(0, 300), 0.3),
            (Weights(80_000, 300), 0.48),
            (Weights(200, 300, averages=True), 0.48),
            (Weights(0, 300, averages=True), 0.3),
            (Weights(80_000, 0), 0.3),
            (Weights(80_000, 10_000), 0.2),
        ],
        ids=repr,
    )
    def test_is_for_the_size_of_the_network(self, weights, walk_) -> None:
        chosen = chosen_rate(optimizers.SGD(), query(), ROUNDS, weights)

        assert chosen.walk == pytest.approx(walk_, abs=0.005)

    @pytest.mark.parametrize(
        ("signal", "walk_"), [(2_000, 0.96), (5_000, 0.68), (math.inf, 0.48)]
    )
    def test_is_larger_where_rows_are_averaged(self, signal, walk_) -> None:
        noise = math.sqrt(ROUNDS) * 512 / signal
        weights = Weights(80_000, 300, averages=True)

        chosen = chosen_rate(optimizers.SGD(), query(noise), ROUNDS, weights)

        assert chosen.walk == pytest.approx(walk_, abs=0.006)


class TestWeights:
    def test_of_tables_do_not_count(self) -> None:
        model = keras.Sequential(
            [
                keras.Input((5,), dtype="int32"),
                keras.layers.Embedding(1000, 4),
                keras.layers.GlobalAveragePooling1D(),
                keras.layers.Dense(2),
            ]
        )

        assert trained_weights(model) == Weights(4000, 4 * 2 + 2, averages=True)

    @pytest.mark.parametrize(
        ("x", "first"),
        [
            (np.zeros([64, 5], "float32"), keras.layers.Identity()),
            (
                np.array([["a b"]] * 64),
                keras.layers.TextVectorization(
                    vocabulary=["a", "b", "c", "d"], output_mode="multi_hot"
                ),
            ),
            ({"a": np.zeros([64, 5], "float32")}, operator.itemgetter("a")),
        ],
        ids=["numbers", "text", "nest"],
    )
    def test_of_a_model_that_is_not_built_are_made(self, x, first) -> None:
        class Model(keras.Model):
            def __init__(self):
                super().__init__()
                self.first, self.dense = first, keras.layers.Dense(2)

            def call(self, inputs):
                return self.dense(self.first(inputs))

        model, data = Model(), (x, np.zeros([64, 1]))
        samples = PoissonBatches(data, sampling_probability=0.1)

        build_for_records(model, samples)

        assert trained_weights(model) == Weights(0, 5 * 2 + 2)
