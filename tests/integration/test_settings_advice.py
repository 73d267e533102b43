"""Settings that are seldom meant are warned of once, in words."""

import keras
import numpy as np
import pytest

import keras_dp
from keras_dp.sampling import FixedMicrobatches, RandomMicrobatches
from keras_dp.spending.epsilon_limit import default_delta
from keras_dp.training.advice.settings_advice import advise_delta, advise_target


def training(
    query,
    *,
    size=1000,
    probability=0.2,
    fits=1,
    weight=None,
    microbatches=None,
    **options,
):
    """Runs a tiny private training."""
    x = np.zeros([size, 3], "float32")
    private = keras_dp.PrivateModel(
        keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)]),
        self_check_examples=0,
    )
    fixed = isinstance(microbatches, FixedMicrobatches)
    ledger = keras_dp.PrivacyLedger.in_memory(
        dataset="d", unit="microbatch" if fixed else "example"
    )
    private.compile(
        keras_dp.DPSGD(0.1, query=query, ledger=ledger),
        loss="mse",
        run_eagerly=True,
    )
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


@pytest.mark.full
@pytest.mark.parametrize(
    ("query", "options", "words"),
    [
        (average(0.0), {}, "has no noise: epsilon is infinite"),
        (average(0.2), {}, "is only 0.2 times its clip"),
        (average(denominator=100), {}, "The denominator is 100, where samples"),
        (average(denominator=20), {"probability": 0.02}, "noise hides"),
        (average(), {"delta": 0.001}, "is at least 1/N for 1000 records"),
    ],
    ids=["no noise", "little noise", "denominator", "small sample", "delta"],
)
def test_each_is_warned_of(query, options, words, caplog) -> None:
    training(query, **options)

    assert sum(words in record.message for record in caplog.records) == 1


@pytest.mark.parametrize(("delta", "warned"), [(0.0049, False), (0.0051, True)])
def test_delta_is_compared_with_the_number_of_units(
    delta, warned, caplog
) -> None:
    """1,000 records, of which one unit has at most 5."""
    advise_delta(delta, 1000, 5)

    said = "at least 1/N for 200 units of 5 records each" in caplog.text
    assert said == warned


@pytest.mark.parametrize("weight", [1e-4, 1.5, np.nan])
def test_weights_are_warned_of_without_a_look(weight, caplog) -> None:
    training(average(), weight=weight, fits=2)

    assert caplog.text.count("Examples have weights") == 1
    said = caplog.text.count("The loss that is shown is not finite")
    assert said == np.isnan(weight)  # The loss is no secret.


@pytest.mark.parametrize("weight", [1e-4, 1.5])
def test_class_weights_far_from_one_are_warned_of(weight, caplog) -> None:
    training(average(), class_weight={0: weight})

    assert ("weights far from 1" in caplog.text) == (weight == 1e-4)
    assert "Examples have weights" not in caplog.text


@pytest.mark.parametrize("kind", [RandomMicrobatches, FixedMicrobatches])
def test_denominators_count_microbatches(kind, caplog) -> None:
    options = {"size": 4000, "microbatches": kind(4)}

    training(average(denominator=200), **options)
    assert "The denominator" not in caplog.text

    training(average(denominator=800), **options)
    assert "The denominator is 800, where samples have 200" in caplog.text


def test_inner_denominators_are_found(caplog) -> None:
    nested = keras_dp.dp_queries.KSDenoisedQuery(average(denominator=20))

    training(nested)

    assert "The denominator is 20, where samples have 200" in caplog.text


@pytest.mark.full
def test_they_are_warned_of_once(caplog) -> None:
    training(average(0.2), fits=3)

    assert caplog.text.count("times its clip") == 1


@pytest.mark.full
def test_good_settings_are_not_warned_of(caplog) -> None:
    """But of metrics, which are not private."""
    training(average())

    messages = [record.message for record in caplog.records]
    assert len(messages) == 1
    assert "metrics" in messages[0]


@pytest.mark.parametrize(
    ("epsilon", "words"),
    [
        (1000.0, "protects hardly anyone"),
        (1e-4, "leaves hardly anything to learn"),
        (3.0, ""),
    ],
)
def test_a_target_that_nobody_means(epsilon, words, caplog) -> None:
    advise_target(epsilon)

    assert bool(caplog.text) == bool(words)
    assert words in caplog.text


@pytest.mark.parametrize(("records", "warned"), [(300, True), (3000, False)])
def test_the_delta_of_few_records_is_large(records, warned, caplog) -> None:
    advise_delta(default_delta(records), records)

    assert ("is large" in caplog.text) == warned
