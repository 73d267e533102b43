"""Text classification: spam among short messages, by the words they hold.

The vocabulary is learned from the messages. `TextVectorization.adapt` of Keras
publishes every word of theirs; here noise decides on each, and one epsilon
covers the words, the weights and the metrics of the training.

The messages are the SMS Spam Collection where `KERAS_DP_DATA` names a folder
with `sms_spam.csv.gz`, else synthetic: words drawn with a fixed seed.
"""

import csv
import gzip
import os
import tempfile

import keras
import numpy as np
from keras import layers

import keras_dp
from keras_dp import preprocessing

QUICK = "KERAS_DP_QUICK" in os.environ
RECORDS, EPOCHS = (512, 1) if QUICK else (4_500, 20)
SPAM = (
    "free win winner won prize cash claim award urgent guaranteed txt text "
    "stop reply call mobile phone ringtone tone offer customer service code "
    "voucher bonus club chat sexy dating weekly draw selected contact landline "
    "uk www com http 18 16 150p 100 500 1000 2000 5000 new nokia camera video "
    "awarded collect subscription credit valid order apply latest"
)
HAM = (
    "i you me my your he she we they the a to in is it of and ok lol love home "
    "come going go work dinner lunch tomorrow today tonight later morning "
    "night sorry thanks good day time think know want need will can see tell "
    "ask say said what when where how why dear sir wait sleep happy miss "
    "school class friend mum dad still already soon hope feel da lor"
)


def load():
    """Returns messages, and labels `[n, 1]`: 1 for spam."""
    if "KERAS_DP_DATA" not in os.environ:
        generator = np.random.default_rng(0)
        spam, ham = SPAM.split(), HAM.split()
        labels = generator.random(5_500) < 0.13
        texts = [
            " ".join(
                generator.choice(spam if generator.random() < share else ham)
                for _ in range(12)
            )
            for share in np.where(labels, 0.4, 0.1)
        ]
        return np.array(texts), labels[:, np.newaxis].astype("int32")
    path = f"{os.environ['KERAS_DP_DATA']}/sms_spam.csv.gz"
    with gzip.open(path, "rt", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    labels = [[row["label"] == "spam"] for row in rows]
    return np.array([row["text"] for row in rows]), np.array(labels, "int32")


texts, labels = load()
texts, texts_test = texts[:RECORDS], texts[4_500:]
y, y_test = labels[:RECORDS], labels[4_500:]
os.chdir(tempfile.mkdtemp())  # Files are written there.

ledger = keras_dp.PrivacyLedger.open("messages.ledger", dataset="messages")
bag_of_words = preprocessing.TextVectorization(
    noise_multiplier=3.0,
    threshold_delta=1e-6,
    max_keys=20,
    output_mode="multi_hot",
).adapt(texts, ledger)
x, x_test = (
    np.asarray(bag_of_words(each), "float32") for each in (texts, texts_test)
)

model = keras.Sequential([keras.Input((x.shape[1],)), layers.Dense(1)])
model.compile(
    keras.optimizers.Adam(5e-2),
    loss=keras.losses.BinaryCrossentropy(from_logits=True),
    metrics=[keras.metrics.BinaryAccuracy("accuracy", threshold=0.0)],
)
private = keras_dp.make_private(
    model,
    (x, y),
    target_epsilon=3,
    epochs=EPOCHS,
    batch_size=256,
    ledger=ledger,
    private_metrics={
        "accuracy": keras_dp.PrivateMean(
            keras_dp.GaussianAverageQuery(
                1.0, noise_multiplier=10.0, denominator=256
            ),
            lambda y, logit: (logit > 0) == (y > 0),
        )
    },
)
private.fit()

model.save("model.keras")
_, accuracy = model.evaluate(x_test, y_test, verbose=0)
print(f"accuracy {accuracy:.3f}")
