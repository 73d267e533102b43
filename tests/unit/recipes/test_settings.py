"""What was chosen is one line each, and so is what would serve better."""

import re

import keras
import numpy as np
import pytest

import keras_dp
from keras_dp import planning
from keras_dp.planning.calibration import default_delta
from keras_dp.recipes import private_training
from keras_dp.recipes.noise_for_target import with_noise
from keras_dp.recipes.settings import Settings
from keras_dp.sampling import PoissonBatches, RandomMicrobatches


def made(*, records=10_000, width=2, **options):
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
    return keras_dp.make_private(model, (x, x[:, :1]), **given)


def said(**options):
    """Returns the lines of what `make_private` chooses."""
    private = made(**options)
    assert len(private.optimizer.required_ledger()) == 0
    return {each.name: str(each) for each in private.settings.choices}


@pytest.mark.parametrize(
    ("scale", "clip"), [(2.14223, 3.3), (0.7, 0.1), (1.3, 0.7), (0.81951, 3.3)]
)
@pytest.mark.parametrize("microbatches", [None, RandomMicrobatches(4)])
def test_noise_is_not_below_its_scale_whatever_the_clip(
    scale, clip, microbatches
) -> None:
    """The product of the first three is rounded down."""
    samples = PoissonBatches(
        np.zeros([64, 1]), sampling_probability=0.5, microbatches=microbatches
    )
    asked = Settings(None, {}, epochs=1, samples=samples, l2_norm_clip=clip)

    (query,) = with_noise(asked, scale).queries.round.queries

    assert query.l2_norm_bound / query.noise_stddev <= 1 / scale
    assert query.noise_stddev == pytest.approx(scale * query.l2_norm_bound)


class TestEpochs:
    def test_others_are_priced_when_they_are_printed(self, monkeypatch) -> None:
        """It takes longer than to find the settings that were asked for."""
        priced = []
        monkeypatch.setattr(
            private_training,
            "_about_other_epochs",
            lambda *settings: priced.append(1) or "",
        )
        private = made()
        assert not priced

        str(private.settings)

        assert priced == [1]

    def test_that_are_too_few_are_named_with_what_more_would_give(self) -> None:
        """The numbers are those of plans with these epochs, and with more."""
        text = said(target_epsilon=8.0, epochs=3)["signal"]

        signals = []
        for epochs in (3, 80):
            table = planning.plan(
                10_000,
                target_epsilon=8.0,
                delta=default_delta(10_000),
                epochs=epochs,
                batch_sizes=[512],
            )
            signals.append(table.rows[0].signal)
        few, many = signals
        assert f"{few:,.0f} times" in text
        assert "80 epochs, which" in text
        assert f"would have {many / few:.3g} times as much" in text

    def test_that_are_fewer_are_named_with_what_they_would_give(self) -> None:
        """The samples stay as they are."""
        whole, quarter = (
            planning.plan(
                10_000,
                target_epsilon=3.0,
                delta=default_delta(10_000),
                epochs=epochs,
                batch_sizes=[1024],
            )
            .rows[0]
            .signal
            for epochs in (40, 10)
        )

        text = said(epochs=None, batch_size=1024)["signal"]

        assert f"10 epochs would have {quarter / whole:.0%} of it" in text

    @pytest.mark.parametrize(
        ("epsilon", "batch_size", "epochs"),
        [(3.0, None, 40), (8.0, None, 80), (8.0, 100, 80), (8.0, 10_000, 100)],
    )
    def test_are_chosen_for_the_signal_that_most_give(
        self, epsilon, batch_size, epochs
    ) -> None:
        """More for more epsilon and small samples, and 100 rounds at least."""
        lines = said(epochs=None, target_epsilon=epsilon, batch_size=batch_size)

        assert lines["epochs"].startswith(f"{epochs}:")
        assert "times as much" not in lines["signal"]


class TestRecords:
    def test_that_are_too_few_are_named_with_how_many_are_needed(self) -> None:
        """With the number that is named, rounded to two digits, it is silent.

        Samples and epochs stay in proportion, so that the signal grows as the
        number of records does.
        """
        few = {"target_epsilon": 0.2, "delta": 1e-5, "average": None}
        text = said(records=400, batch_size=40, **few)["signal"]
        (needed,) = re.findall(r"about ([\d,]+) records are needed", text)
        needed = int(needed.replace(",", ""))
        assert needed > 400

        for factor, is_said in ((1.1, False), (0.9, True)):
            records = round(needed * factor)
            again = said(records=records, batch_size=records // 10, **few)
            assert ("hardly anything" in again["signal"]) == is_said


def test_a_target_that_protects_hardly_anyone_is_named(caplog) -> None:
    made(target_epsilon=1000.0)

    assert "protects hardly anyone" in caplog.text
