"""Settings that lose accuracy, or privacy, are warned of once, in words."""

from types import SimpleNamespace

import keras
import numpy as np
import pytest

import keras_dp
from keras_dp.planning.calibration import default_delta
from keras_dp.sampling import PoissonBatches, RandomMicrobatches
from keras_dp.training.advice.condition import judge
from keras_dp.training.advice.of_trainings import PREPARED, VALIDATION
from tests.private_models import private_of


def training(
    query,
    *,
    size=1000,
    probability=0.2,
    fits=2,
    weight=None,
    microbatches=None,
    **options,
):
    """Runs a tiny private training."""
    x = np.zeros([size, 3], "float32")
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    private = private_of(model, query, run_eagerly=True)
    records = (x, x[:, :1])
    if weight is not None:
        records = (*records, np.full(len(x), weight, "float32"))
    samples = keras_dp.PoissonBatches(
        records, sampling_probability=probability, microbatches=microbatches
    )
    for _ in range(fits):
        private.fit(samples, steps_per_epoch=1, verbose=0, **options)


def average(noise_multiplier=1.0, denominator=200):
    return keras_dp.GaussianAverageQuery(
        1.0, noise_multiplier=noise_multiplier, denominator=denominator
    )


def test_lost_records_are_told_where_a_relu_hides_them(caplog) -> None:
    x = np.ones([64, 3], "float32")
    x[::3] = np.nan
    layers = [keras.layers.Dense(4, "relu"), keras.layers.Dense(1)]
    model = keras.Sequential([keras.Input((3,)), *layers])
    private = private_of(model, average())

    private.fit(x, np.ones([64, 1]), batch_size=64, verbose=0)

    assert "Records of the first batch have a NaN" in caplog.text


WEIGHTS = "Examples have weights"
FAR = "`class_weight` has weights far from 1"
NOT_FINITE = "The loss that is shown is not finite"
# The denominator counts microbatches, of four records each.
BY_FOUR = {"size": 4000, "fits": 1}


@pytest.mark.full
@pytest.mark.parametrize(
    ("query", "options", "words"),
    [
        (average(), {}, ()),
        (average(0.0), {}, ("is only 0 times its clip",)),
        (average(0.2), {}, ("is only 0.2 times its clip",)),
        (
            average(denominator=100),
            {},
            ("The denominator is 100, where samples",),
        ),
        (average(denominator=20), {"probability": 0.02}, ("noise hides",)),
        (average(), {"delta": 0.001}, ("is at least 1/N for 1000 records",)),
        # Weights of examples are not looked at; the loss is no secret.
        (average(), {"weight": 1e-4}, (WEIGHTS,)),
        (average(), {"weight": 1.5}, (WEIGHTS,)),
        (average(), {"weight": np.nan}, (WEIGHTS, NOT_FINITE)),
        (average(), {"class_weight": {0: 1e-4}}, (FAR,)),
        (average(), {"class_weight": {0: 1.5}}, ()),
        *(
            (average(denominator=denominator), options, words)
            for options in [{**BY_FOUR, "microbatches": RandomMicrobatches(4)}]
            for denominator, words in (
                (200, ()),
                (800, ("The denominator is 800, where samples have 200",)),
            )
        ),
    ],
)
def test_each_is_warned_of_once(query, options, words, caplog) -> None:
    training(query, **options)

    said = [x.message for x in caplog.records if x.name == "absl"]
    assert len(said) == 1 + len(words)  # And that metrics are not private.
    for each in ("metrics shown", *words):
        assert sum(each in message for message in said) == 1


@pytest.mark.parametrize(
    ("rows", "is_said"),
    [
        (slice(0, 50), True),
        (slice(40, 60), True),
        (slice(49, 0, -5), True),
        (slice(50, 100), False),
    ],
    ids=["same", "some", "in steps", "others"],
)
def test_records_that_are_trained_on_do_not_validate(
    rows, is_said, caplog
) -> None:
    x, y = np.zeros([100, 3], "float32"), np.zeros([100, 1], "float32")
    samples = PoissonBatches((x[:50], y[:50]), sampling_probability=0.1)

    for data in (samples, x[:50]):
        judge(VALIDATION, data, (x[rows], y[rows]))

    count = caplog.text.count("records that are trained on")
    assert count == (2 if is_said else 0)


@pytest.mark.parametrize(
    ("delta", "records", "rows_per_unit", "words"),
    [
        # 1,000 records, of which one unit has at most 5.
        (0.0049, 1000, 5, "is large"),
        (0.0051, 1000, 5, "at least 1/N for 200 units of 5 records each"),
        (default_delta(300), 300, 1, "is large"),
        (default_delta(3000), 3000, 1, ""),
        (0.5, None, 1, ""),
    ],
)
def test_delta_is_compared_with_the_number_of_units(
    delta, records, rows_per_unit, words, caplog
) -> None:
    ready = SimpleNamespace(
        delta=delta,
        adapter=SimpleNamespace(population_size=records),
        ledger=SimpleNamespace(
            header=SimpleNamespace(rows_per_unit=rows_per_unit)
        ),
    )

    judge(PREPARED[-2:], ready)

    assert bool(caplog.text) == bool(words)
    assert words in caplog.text
