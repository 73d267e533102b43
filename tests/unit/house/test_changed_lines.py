"""Programs become private for as many changed lines as is said."""

import re
import runpy
from pathlib import Path

import pytest

from tests import documents

ROOT = Path(__file__).resolve().parents[3]
EXAMPLES = ROOT / "examples"
COMPARE = runpy.run_path(str(EXAMPLES / "compare.py"))

# The first program of the README, without privacy.
PLAIN = """\
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
"""


def test_the_program_of_the_readme_stays_near_its_plain_form() -> None:
    private = documents.blocks(ROOT / "README.md")[0]

    assert 0 < COMPARE["changed_lines"](PLAIN, private) <= 4


@pytest.mark.parametrize("name", COMPARE["NAMES"])
def test_the_table_says_how_many_lines_of_an_example_change(name) -> None:
    table = (EXAMPLES / "README.md").read_text("utf-8")
    stated = re.search(
        rf"^\| \[{name}\]\({name}/private.py\) \| (\d+) \|", table, re.M
    )
    programs = COMPARE["programs"](name)
    # Private metrics and layers have a noise that the program says.
    most = 28 if name in COMPARE["IN_ONE_LEDGER"] else 4

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
