"""What a user's optimizer and `compile` say holds in a private training."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_dp
from keras_dp.errors import GradientCheckError
from keras_dp.noise import reproducible
from tests import private_models
from tests.query_table import assert_equal

RECORDS = 200
optimizers = keras.optimizers


def data():
    x = np.random.default_rng(0).normal(size=(RECORDS, 6)).astype("float32")
    return x, (x[:, :1] > 0).astype("float32")


def network():
    return keras.Sequential([keras.Input((6,)), keras.layers.Dense(1)])


def private_of(model, **changes):
    arguments = {
        "ledger": keras_dp.PrivacyLedger.in_memory(dataset="test"),
        "target_epsilon": 3.0,
        "epochs": 2,
        "batch_size": 50,
        "verbose": False,
    }
    return keras_dp.make_private(model, data(), **(arguments | changes))


def compiled(optimizer, **options):
    model = network()
    model.compile(optimizer, "mse", **options)
    return model


def several():
    return optimizers.MultiOptimizer(
        optimizers.OptimizerMap(
            optimizers.SGD(0.1), {".*kernel": optimizers.Adam(0.01)}
        )
    )


class Own(optimizers.Optimizer):
    """Its constructor takes what `get_config` does not give."""

    def __init__(self, rate, factors):
        super().__init__(learning_rate=rate)
        self.factors = factors

    def update_step(self, gradient, variable, learning_rate):
        rate = learning_rate * self.factors["all"]
        self.assign_sub(variable, rate * gradient)


class Around(optimizers.Optimizer):
    """Applies by another optimizer, past its own base class."""

    def __init__(self, held):
        super().__init__(learning_rate=1.0)
        self.held = held

    def build(self, variables):
        super().build(variables)
        self.held.build(variables)

    def apply(self, gradients, variables=None):
        self.held.apply(gradients, variables)
        self.iterations.assign_add(1)


class Uncounted(Around):
    """Does not count its own steps."""

    def apply(self, gradients, variables=None):
        self.held.apply(gradients, variables)


class RefersToItself(optimizers.SGD):
    """Its rate decays by a function that it made of itself."""

    def __init__(self):
        super().__init__(1.0)
        self.decay = lambda: 0.5 ** keras.ops.cast(self.iterations, "float32")

    def update_step(self, gradient, variable, learning_rate):
        self.assign_sub(variable, self.decay() * gradient)


def chosen_by_function():
    held = {"kernel": optimizers.Adam(0.01), "bias": optimizers.SGD(0.1)}
    return optimizers.MultiOptimizer(lambda variable: held[variable.name])


class OwnSchedule(optimizers.schedules.LearningRateSchedule):
    """Says nothing of itself."""

    def __call__(self, step):
        return 0.05


OPTIMIZERS = {
    "several": several,
    "own": lambda: Own(0.1, {"all": 0.5}),
    "around": lambda: Around(optimizers.Adam(0.01)),
    "uncounted": lambda: Uncounted(optimizers.Adam(0.01)),
    "chosen": chosen_by_function,
    "itself": RefersToItself,
    "function": lambda: optimizers.Adam(lambda: 0.01),
    "schedule": lambda: optimizers.SGD(OwnSchedule()),
    "schedule free": lambda: optimizers.ScheduleFreeAdamW(0.01),
    "averages": lambda: optimizers.SGD(0.1, use_ema=True),
}


class TestTheOptimizer:
    @pytest.mark.full
    @pytest.mark.parametrize("rate", ["auto", "keep"])
    @pytest.mark.parametrize("kind", OPTIMIZERS)
    def test_trains_and_averages(self, kind, rate) -> None:
        """The first averages are the weights, whatever the optimizer."""
        model = compiled(OPTIMIZERS[kind]())
        private = private_of(model, learning_rate=rate)
        before, seen = model.get_weights(), []

        class Notes(keras.callbacks.Callback):
            def on_train_batch_end(self, batch, logs=None):
                averages = private.optimizer._model_variables_moving_average
                seen.append(
                    (model.get_weights(), list(map(np.array, averages)))
                )

        private.fit(verbose=0, callbacks=[Notes()])

        weights, averages = seen[0]
        assert_equal(weights, averages)
        # At the end the averages are in the model.
        assert_equal(model.get_weights(), seen[-1][1])
        assert np.any(before[0] != model.get_weights()[0])

    def test_with_a_function_as_its_apply_is_refused(self) -> None:
        given = optimizers.SGD(0.1)
        given.apply = lambda *arguments: None

        with pytest.raises(
            ValueError, match="`optimizer` must have its `apply`"
        ):
            private_of(compiled(given))

    @pytest.mark.parametrize("rate", ["keep", 0.5])
    def test_keeps_what_it_excludes_from_weight_decay(self, rate) -> None:
        """Control: the bias decays."""
        given = optimizers.SGD(0.1, weight_decay=0.5)
        given.exclude_from_weight_decay(var_names=["kernel"])
        model = compiled(given)
        kernel, bias = model.get_weights()
        model.set_weights([kernel, bias + 1])

        private_of(
            model, learning_rate=rate, average=None, l2_norm_clip=1e-12
        ).fit(verbose=0)

        np.testing.assert_allclose(model.get_weights()[0], kernel, atol=1e-9)
        assert model.get_weights()[1] < 0.9

    def test_averages_meet_the_constraints_of_the_weights(self) -> None:
        model = keras.Sequential(
            [
                keras.Input((6,)),
                keras.layers.Dense(1, kernel_constraint="unit_norm"),
            ]
        )
        model.compile(optimizers.SGD(0.5), "mse")

        private_of(model, learning_rate="keep").fit(verbose=0)

        norm = np.linalg.norm(model.get_weights()[0])
        assert norm == pytest.approx(1.0, abs=1e-5)


class ReadsValues(keras.Model):
    """No graph can be made of it."""

    def __init__(self, couples=False):
        super().__init__()
        self.dense, self.couples = keras.layers.Dense(1), couples

    def call(self, inputs):
        if not np.isfinite(np.asarray(inputs)).all():
            raise ValueError
        if self.couples:
            inputs = inputs - tf.reduce_mean(inputs, axis=0, keepdims=True)
        return self.dense(inputs)


def unbuilt_untraceable(couples=False):
    model = ReadsValues(couples)
    model.dense.build((None, 6))
    model.built = True
    return model


class TestCompile:
    def test_options_are_taken_over(self) -> None:
        taken = private_of(
            compiled("sgd", steps_per_execution=3, jit_compile=True)
        )
        others = private_of(compiled("sgd", run_eagerly=True))

        model = compiled("sgd")
        model.run_eagerly = True
        assert private_of(model).run_eagerly
        assert (taken.steps_per_execution, taken.jit_compile) == (3, True)
        assert others.run_eagerly
        assert not others.jit_compile

    def test_that_scales_no_loss_is_followed(self) -> None:
        keras.config.set_dtype_policy("mixed_float16")
        try:
            scales = [
                private_of(compiled("sgd", auto_scale_loss=scales)).loss_scale
                for scales in (True, False)
            ]
        finally:
            keras.config.set_dtype_policy("float32")

        assert scales == [1024.0, 1.0]

    @pytest.mark.full
    def test_trains_a_model_that_no_graph_is_made_of(self) -> None:
        """One example after another: as the same model in a graph."""
        weights, start = [], network().get_weights()
        with reproducible():
            for model in (unbuilt_untraceable(), network()):
                model.set_weights(start)
                model.compile("sgd", "mse", run_eagerly=True)
                query = keras_dp.GaussianAverageQuery(
                    0.1, noise_multiplier=1.0, denominator=20
                )
                private = private_models.private_of(
                    model, query, rate=0.5, seed=3, checks=2, run_eagerly=True
                )
                private.train_on_batch(*(each[:20] for each in data()))
                weights.append(model.get_weights()[0])

        np.testing.assert_allclose(*weights, rtol=1e-5)
        assert np.any(weights[0] != start[0])

    @pytest.mark.full
    def test_finds_examples_that_interact_in_such_a_model(self) -> None:
        model = unbuilt_untraceable(couples=True)
        model.compile("sgd", "mse", run_eagerly=True)

        with pytest.raises(GradientCheckError):
            private_of(model).fit(verbose=0)
