"""Programs become private for as many changed lines as is said."""

import re
import runpy
from pathlib import Path

import pytest

from tests import documents

ROOT = Path(__file__).resolve().parents[3]
EXAMPLES = ROOT / "examples"
COMPARE = runpy.run_path(str(EXAMPLES / "compare.py"))

PLAIN_FIT = """\
model.compile(
    optimizer=keras.optimizers.Adam(1e-2),
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
)
model.fit(x, y, batch_size=1000, epochs=1)
"""
# The first line of each program of the documents that trains, that program
# without privacy, and the most lines that may change.
PLAIN = {
    "import keras": (
        """\
import keras
import numpy as np

x = np.random.default_rng(0).normal(size=(20_000, 20)).astype("float32")
y = (x[:, 0] + x[:, 1] > 0).astype("int32")
model = keras.Sequential([keras.Input((20,)), keras.layers.Dense(2)])
model.compile(
    keras.optimizers.Adam(0.03),
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
)
model.fit(x, y, batch_size=512, epochs=10)
model.save("model.keras")  # The user's own model, trained.
""",
        4,
    ),
    "private = keras_dp.make_private(": (
        """\
model.fit(x, y, batch_size=512, epochs=10, validation_data=(x_test, y_test))
model.save("private.keras")
""",
        9,
    ),
    "query = keras_dp.GaussianAverageQuery(": (PLAIN_FIT, 15),
    "from keras_dp import budgets": (PLAIN_FIT, 16),
    "private = keras_dp.PrivateModel(model)": (PLAIN_FIT, 15),
    "discriminator = keras.Sequential([keras.Input((20,)), keras.layers.Dense"
    "(1)])": (
        """\
discriminator = keras.Sequential([keras.Input((20,)), keras.layers.Dense(1)])
real = tf.data.Dataset.from_tensor_slices((x, np.ones([len(x), 1], "float32")))
adam = keras.optimizers.Adam(1e-3)
for x, y in real.batch(1000).take(10):
    with tf.GradientTape() as tape:
        loss = keras.losses.mse(y, discriminator(x, training=True))
    answer = tape.gradient(loss, discriminator.trainable_variables)
    # Add gradients of generated points here, and train the generator.
    adam.apply(answer, discriminator.trainable_variables)
""",
        7,
    ),
    "from keras_dp.auditing import PhantomCanaries": (
        """\
private_model.fit(samples, epochs=10)
""",
        5,
    ),
    "from keras_dp import preprocessing": (
        """\
normalize = keras.layers.Normalization()
normalize.adapt(x)
together = keras.Sequential(
    [keras.Input((20,)), normalize, keras.layers.Dense(2)]
)
together.compile(
    "adam", loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True)
)
together.fit(x, y, batch_size=1000, epochs=1)
""",
        18,
    ),
    "users = keras_dp.UserBatches(": (
        """\
phones = keras.Sequential([keras.Input((20,)), keras.layers.Dense(2)])
phones.compile("adam", loss=loss)
phones.fit(x, y, batch_size=100, epochs=1)
""",
        15,
    ),
    "patients = np.random.default_rng(1).integers(4_000, size=20_000)": (
        """\
visits = keras.Sequential([keras.Input((20,)), keras.layers.Dense(2)])
visits.compile("adam", loss=loss)
visits.fit(x, y, batch_size=1000, epochs=1)
""",
        12,
    ),
    "backbone.enable_lora(rank=4)": (
        """\
backbone.enable_lora(rank=4)
model.compile(
    keras.optimizers.Adam(5e-3),
    loss=keras.losses.BinaryCrossentropy(from_logits=True),
)
model.fit(tokens, labels.astype("float32"), batch_size=500, epochs=2)
""",
        9,
    ),
    "strategy = tf.distribute.MirroredStrategy()": (
        """\
strategy = tf.distribute.MirroredStrategy()
with strategy.scope():
    model = build_model()
    model.compile(
        keras.optimizers.Adam(1e-3), loss=loss
    )
model.fit(batches, epochs=10)
""",
        4,
    ),
    "strategy = tf.distribute.MultiWorkerMirroredStrategy()": (
        """\
strategy = tf.distribute.MultiWorkerMirroredStrategy()
with strategy.scope():
    ...  # as above
model.fit(batches, epochs=10)
""",
        3,
    ),
}


def programs():
    """Yields the programs of the documents that train."""
    docs = ROOT / "docs"
    for path in [
        ROOT / "README.md",
        *sorted(docs.glob("*.md")),
        *sorted((docs / "guides").glob("*.md")),
    ]:
        # One asks, and changes nothing. One has a function of its own. One
        # shows what has no plain form.
        if path.stem in ("troubleshooting", "keras_features", "experimental"):
            continue
        for code in documents.blocks(path):
            if re.search(r"\.fit\(|\.over\(", code):
                yield code


def test_programs_of_the_documents_stay_near_their_plain_form() -> None:
    changed = {
        (first := code.splitlines()[0]): COMPARE["changed_lines"](
            PLAIN[first][0], code
        )
        for code in programs()
    }

    assert changed.keys() == PLAIN.keys()
    for first, (_, most) in PLAIN.items():
        assert 0 < changed[first] <= most, first


@pytest.mark.parametrize("name", COMPARE["NAMES"])
def test_the_table_says_how_many_lines_of_an_example_change(name) -> None:
    table = (EXAMPLES / "README.md").read_text("utf-8")
    stated = re.search(
        rf"^\| \[{name}\]\({name}/private.py\) \| (\d+) \|", table, re.M
    )
    programs = COMPARE["programs"](name)
    # Private metrics and layers have a noise that the program says.
    most = 36 if name in COMPARE["IN_ONE_LEDGER"] else 4

    assert COMPARE["changed_lines"](*programs) == int(stated[1]) <= most


@pytest.mark.parametrize("name", COMPARE["NAMES"])
def test_examples_that_adapt_do_so_in_their_ledger(name) -> None:
    plain, private = COMPARE["programs"](name)
    in_one_ledger = name in COMPARE["IN_ONE_LEDGER"]

    assert (".adapt(" in plain) == (".adapt(" in private) == in_one_ledger
    assert (", ledger)" in private) == in_one_ledger
    assert ("private_metrics=" in private) == in_one_ledger


@pytest.mark.parametrize(
    ("plain", "private", "lines"),
    [
        ("a\nb", "a\nb", 0),
        ("a\nb", "a\n\nc", 1),
        ("a\nb", "c\na\nb\nd", 2),
        ("a\nb\nc", "a", 2),
    ],
    ids=["equal", "one other", "two more", "two fewer"],
)
def test_lines_that_differ_are_counted(plain, private, lines) -> None:
    assert COMPARE["changed_lines"](plain, private) == lines
