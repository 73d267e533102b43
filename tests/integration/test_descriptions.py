"""What models, optimizers and samplers say of themselves."""

import keras
import numpy as np
import pytest

from keras_dp import (
    DPAdam,
    GaussianAverageQuery,
    PoissonBatches,
    PrivacyLedger,
    PrivateModel,
)
from keras_dp.recipes import Settings
from keras_dp.recipes.held_rounds import HeldRounds
from keras_dp.spending import PrivacyTarget

DATA = np.zeros([1000, 3], "float32"), np.zeros([1000, 1], "float32")


def query(clip=0.5):
    return GaussianAverageQuery(clip, noise_multiplier=1.25, denominator=50)


def optimizer(**changes):
    own = PrivacyLedger.in_memory(dataset="clinic")
    return DPAdam(1e-3, **({"query": query(), "ledger": own} | changes))


class OwnWeights(keras.layers.Layer):
    def build(self, shape):
        self.scale = self.add_weight(shape=shape[1:])

    def call(self, inputs):
        return inputs * self.scale


def private(*layers):
    model = keras.Sequential(
        [keras.Input((3,)), *layers, keras.layers.Dense(1)], name="net"
    )
    return PrivateModel(model)


def summary_of(model) -> list[str]:
    lines: list[str] = []
    model.summary(print_fn=lines.append)
    return lines


class TestSummary:
    def test_ends_with_the_privacy(self) -> None:
        model = private()
        model.compile(optimizer(), loss="mse")
        target = PrivacyTarget(3.0, 1e-5)
        held = HeldRounds.of(model.optimizer.ledger, target)
        model.settings = Settings(model.model, {}, held=held)

        table, *lines = summary_of(model)

        assert 'Model: "net"' in table
        assert lines == [
            f"Query of the gradients: {query()!r}",
            "Noise multiplier: 1.25",
            f"Ledger: {model.optimizer.ledger!r}",
            "Target: epsilon 3 at delta = 1e-05",
        ]

    def test_says_how_gradients_follow_after_training(self) -> None:
        model = private(OwnWeights(name="own"), OwnWeights(name="other"))
        model.compile(optimizer(), loss="mse")
        model.fit(*DATA, batch_size=50, steps_per_epoch=1, verbose=0)

        assert (
            "Gradients of OwnWeights own and 1 more, without a rule: from its "
            "graph"
        ) in summary_of(model)


class TestCompiling:
    @pytest.mark.full
    def test_is_announced_once(self, capsys) -> None:
        model = private()
        model.compile(optimizer(), loss="mse")
        batches = PoissonBatches(DATA, sampling_probability=0.05)

        model.fit(batches, steps_per_epoch=1, verbose=0)
        assert "Compiling" not in capsys.readouterr().out
        model.compile(optimizer(), loss="mse")
        model.fit(batches, steps_per_epoch=1, verbose=2)
        assert capsys.readouterr().out.count("Compiling the private step") == 1
        model.fit(batches, steps_per_epoch=1, verbose=2)
        assert "Compiling" not in capsys.readouterr().out
