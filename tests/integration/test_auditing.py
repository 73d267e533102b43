"""An audit of a training, from canaries to the report."""

import hashlib

import keras
import numpy as np
import pytest

import keras_dp
from keras_dp import auditing
from keras_dp.ledger import PrivacyLedger
from keras_dp.reporting import make_report

CLASSES, DELTA = 4, 1e-5
LOSS = keras.losses.SparseCategoricalCrossentropy(
    from_logits=True, reduction="none"
)


def network():
    keras.utils.set_random_seed(0)
    return keras.Sequential(
        [
            keras.Input((32,)),
            keras.layers.Dense(128, "tanh"),
            keras.layers.Dense(CLASSES),
        ]
    )


def records(seed):
    """Returns noise with random labels."""
    noise = np.random.Generator(np.random.Philox(seed))
    x = noise.normal(size=(400, 32)).astype(np.float32)
    return x, noise.integers(0, CLASSES, 400).astype(np.int32)


def scores(model, canaries, coins):
    """Minus the loss of each canary."""
    x, y = canaries
    losses = np.asarray(LOSS(y, model.predict(x, verbose=0)))
    return auditing.Scores.from_coins(-losses, coins.values)


def trained(ledger, data):
    """Trains privately, and returns the model and the number of its run."""
    private = keras_dp.make_private(
        network(),
        data,
        ledger=ledger,
        target_epsilon=1.0,
        delta=DELTA,
        epochs=2,
        batch_size=100,
        optimizer=keras.optimizers.Adam(1e-2),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        verbose=False,
    )
    private.fit(verbose=0)
    return private.model, ledger.runs[-1].number


@pytest.mark.full
def test_a_training_beside_the_ledger_is_found() -> None:
    """The ledger says epsilon 1; the weights are of ordinary training."""
    ledger = PrivacyLedger.in_memory(dataset="noise")
    canaries, coins = records(0), auditing.FairCoins.draw(400)
    content = hashlib.sha256(b"".join(x.tobytes() for x in canaries))
    content = content.hexdigest()
    fixed = ledger.write_commitment(coins.commitment(content))
    data = tuple(
        np.concatenate([own, canary[coins.values]])
        for own, canary in zip(records(1), canaries, strict=True)
    )
    private, run = trained(ledger, data)
    ordinary = network()
    ordinary.compile(
        keras.optimizers.Adam(1e-2),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    ordinary.fit(*data, epochs=30, batch_size=100, verbose=0)

    judged = []
    for model in (private, ordinary):
        found = scores(model, canaries, coins)
        judged.append(
            auditing.write_verdict(
                ledger,
                # False alarms of the first are rarer than 1 of 1,000.
                auditing.OneRun().epsilon(found, delta=DELTA, confidence=0.999),
                p_value=auditing.p_value_of_claim(found, ledger.rounds_of(run)),
                runs=[run],
                opening=coins.opening(fixed.number, content),
            )
        )

    assert [each.is_contradiction for each in judged] == [False, True]
    assert judged[1].record.statement.epsilon > 1
    assert judged[1].certified.epsilon == pytest.approx(1.0, rel=0.02)
    report = make_report(ledger, delta=DELTA)
    assert report.contradictions == (judged[1].warning,)
