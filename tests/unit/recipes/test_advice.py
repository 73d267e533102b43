"""What would serve a training better is said before its first round."""

import re

import keras
import numpy as np
import pytest

import keras_dp
from keras_dp import planning
from keras_dp.spending.epsilon_limit import default_delta


def said(capsys, *, records=10_000, width=2, **options):
    """Returns the lines that `make_private` prints."""
    x = np.zeros([records, 8], "float32")
    model = keras.Sequential(
        [
            keras.Input((8,)),
            keras.layers.Dense(width, "tanh"),
            keras.layers.Dense(1, "sigmoid"),
        ]
    )
    given = {
        "loss": "binary_crossentropy",
        "target_epsilon": 3.0,
        "epochs": 40,
        "batch_size": 512,
        "ledger": keras_dp.PrivacyLedger.in_memory(dataset="d"),
        **options,
    }
    private = keras_dp.make_private(model, (x, x[:, :1]), **given)
    assert len(private.optimizer.required_ledger()) == 0
    return capsys.readouterr().out


class TestGoodSettings:
    def test_are_silent(self, capsys) -> None:
        lines = said(capsys).strip().splitlines()

        assert [line.split()[0] for line in lines] == [
            "Private",
            "The",  # learning rate
            "Weights",
        ]


class TestEpochs:
    def test_that_are_too_few_are_named_with_what_more_would_give(
        self, capsys
    ) -> None:
        """The numbers are those of plans with these epochs, and with more."""
        text = said(capsys, target_epsilon=8.0, epochs=3)

        for epochs in (3, 80):
            table = planning.plan(
                10_000,
                target_epsilon=8.0,
                delta=default_delta(10_000),
                epochs=epochs,
                batch_sizes=[512],
            )
            assert f"{table.rows[0].signal:,.0f} times" in text
        assert "In 80 epochs" in text

    @pytest.mark.parametrize(
        ("epsilon", "batch_size", "epochs"),
        [(3.0, None, 40), (8.0, None, 80), (8.0, 100, 80), (8.0, 10_000, 100)],
    )
    def test_are_chosen_for_the_signal_that_most_give(
        self, epsilon, batch_size, epochs, capsys
    ) -> None:
        """More for more epsilon and small samples, and 100 rounds at least."""
        text = said(
            capsys,
            epochs=None,
            target_epsilon=epsilon,
            batch_size=batch_size,
            average=None,
        )

        assert f"in {epochs} epochs" in text
        assert "would be" not in text

    def test_that_no_noise_allows_are_not_named(self, capsys) -> None:
        """The ledger holds so much that longer trainings find no noise."""
        text = said(capsys, target_epsilon=0.05, records=1000, epochs=1)

        assert "Private training" in text


class TestRecords:
    def test_that_are_too_few_are_named_with_how_many_are_needed(
        self, capsys
    ) -> None:
        """With the number that is named, rounded to two digits, it is silent.

        Samples and epochs stay in proportion, so that the signal grows as the
        number of records does.
        """
        few = {"target_epsilon": 0.2, "delta": 1e-5, "average": None}
        text = said(capsys, records=400, batch_size=40, **few)
        (needed,) = re.findall(r"about ([\d,]+) records are needed", text)
        needed = int(needed.replace(",", ""))
        assert needed > 400

        for factor, is_said in ((1.1, False), (0.9, True)):
            records = round(needed * factor)
            again = said(
                capsys, records=records, batch_size=records // 10, **few
            )
            assert ("Hardly anything" in again) == is_said


@pytest.mark.parametrize(
    ("activation", "trainable", "is_said"),
    [("relu", True, True), ("tanh", True, False), ("relu", False, False)],
)
def test_layers_without_bounds_are_named(
    activation, trainable, is_said, capsys
) -> None:
    x = np.zeros([5000, 8, 8, 1], "float32")
    model = keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            keras.layers.Conv2D(
                2, 3, activation=activation, name="stem", trainable=trainable
            ),
            keras.layers.Flatten(),
            keras.layers.Dense(1, "sigmoid"),
        ]
    )

    keras_dp.make_private(
        model,
        (x, x[:, 0, 0]),
        loss="binary_crossentropy",
        target_epsilon=3.0,
        epochs=20,
        batch_size=512,
        ledger=keras_dp.PrivacyLedger.in_memory(dataset="d"),
    )

    assert ("stem: for layers" in capsys.readouterr().out) == is_said
