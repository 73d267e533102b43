"""One ledger and one target for a vocabulary and the training on its words."""

import keras
import numpy as np

import keras_dp
from keras_dp.accountants.replay import Replay
from keras_dp.ledger import PrivacyLedger, ThresholdedSum
from keras_dp.preprocessing import TextVectorization

SPAM, HAM = ["free", "win", "cash", "now"], ["hi", "mum", "home", "soon"]


def messages():
    random = np.random.default_rng(0)
    labels = random.integers(0, 2, [2000, 1])
    words = [random.choice(SPAM if each else HAM, 4) for (each,) in labels]
    return [" ".join(each) for each in words], labels.astype("float32")


def test_both_stay_below_the_target(tmp_path) -> None:
    texts, labels = messages()
    adapter = TextVectorization(10.0, 1e-6, 4, output_mode="multi_hot")
    with PrivacyLedger.open(tmp_path / "a.ledger", dataset="sms") as ledger:
        layer = adapter.adapt(texts, ledger)
        words = np.asarray(layer(texts), np.float32)
        model = keras.Sequential(
            [keras.Input(words.shape[1:]), keras.layers.Dense(1)]
        )
        model.compile(
            keras.optimizers.SGD(5.0),
            keras.losses.BinaryCrossentropy(from_logits=True),
        )

        private = keras_dp.make_private(
            model,
            (words, labels),
            batch_size=200,
            epochs=3,
            target_epsilon=2.0,
            delta=1e-5,
            ledger=ledger,
            verbose=False,
        )
        history = private.fit(verbose=0)
        kinds = [type(each.queries[0]) for each, _ in ledger.rounds]
        spent = Replay(ledger).claim(delta=1e-5).epsilon

    assert kinds[0] is ThresholdedSum
    assert len(kinds) == 2
    assert 1.99 < history.history["epsilon"][-1] == spent <= 2.0
    assert {*layer.get_vocabulary()[1:]} == {*SPAM, *HAM}
    right = (model.predict(words, verbose=0) > 0) == (labels > 0.5)
    assert right.mean() > 0.95
