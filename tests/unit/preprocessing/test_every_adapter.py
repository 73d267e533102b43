"""Laws of all adapters: their events, their layers and their refusals."""

import json
import subprocess
import sys

import keras
import numpy as np
import pytest

from keras_dp.ledger import FullDataset
from keras_dp.preprocessing import (
    PCA,
    Discretization,
    IntegerLookup,
    Normalization,
    StringLookup,
    TextVectorization,
)
from tests.adapters import adapted
from tests.waiting import HUNG_SECONDS

X = np.random.default_rng(1).uniform(0, 9, (100, 6)).astype(np.float32)
# A threshold of 1.5 to 1.6 without noise: a key must be held by two records.
LITTLE = {"noise_multiplier": 0.1, "threshold_delta": 1e-6}
NAMES = np.array([["b"], ["a"]] * 20, object)
# Each adapter, its data, and the name of its one event.
ADAPTERS = {
    "scales": (Normalization((0, 9), 3.0), X, "normalization"),
    "bins": (Discretization((0, 9), 5, 3.0), X, "discretization"),
    "hot bins": (
        Discretization((0, 9), 5, 3.0, output_mode="multi_hot"),
        X,
        "discretization",
    ),
    "directions": (PCA(2, 3.0), X, "pca"),
    "names": (StringLookup(**LITTLE), NAMES, "vocabulary"),
    "codes": (
        IntegerLookup(**LITTLE),
        np.array([[3], [4]] * 20),
        "vocabulary",
    ),
    "words": (
        TextVectorization(**LITTLE, max_keys=3),
        np.array(["a b", "b"] * 20, object),
        "vocabulary",
    ),
}


@pytest.mark.parametrize("kind", ADAPTERS)
def test_the_round_is_known_before(kind) -> None:
    adapter, data, name = ADAPTERS[kind]

    planned = adapter.planned_round()

    (event,) = planned.queries
    assert event.name == f"preprocessing/{name}"
    assert event.l2_norm_bound == 1.0
    assert event.noise_stddev == adapter.noise_multiplier
    assert planned.sampling == FullDataset(drawn_by_library=True)
    adapted(adapter, data)  # It looks at what the ledger holds.


@pytest.mark.full
def test_layers_are_saved_and_need_keras_alone(tmp_path) -> None:
    expected = {}
    for kind, (adapter, data, _) in ADAPTERS.items():
        layer = adapted(adapter, data)
        dtype = "string" if data.dtype == object else data.dtype.name
        shown = keras.ops.convert_to_tensor(data[:4].tolist(), dtype)
        model = keras.Sequential([keras.Input(shown.shape[1:], dtype=dtype)])
        model.add(layer)
        model.save(tmp_path / f"{kind}.keras")
        answers = keras.ops.convert_to_numpy(model(shown))
        expected[kind] = data[:4].tolist(), dtype, answers.tolist()
    (tmp_path / "expected.json").write_text(json.dumps(expected))
    program = (
        "import sys, json, keras, numpy as np\n"
        "for kind, (x, dtype, y) in json.load(open('expected.json')).items():\n"
        "    model = keras.models.load_model(f'{kind}.keras')\n"
        "    found = model(keras.ops.convert_to_tensor(x, dtype))\n"
        "    found = keras.ops.convert_to_numpy(found)\n"
        "    np.testing.assert_allclose(found, y, rtol=1e-5, atol=1e-6)\n"
        "assert 'keras_dp' not in sys.modules\n"
    )

    subprocess.run(
        [sys.executable, "-c", program],
        check=True,
        cwd=tmp_path,
        timeout=HUNG_SECONDS,
    )


SCALES = {"bounds": (0, 1), "noise_multiplier": 1.0}
BINS = {**SCALES, "num_bins": 4}
DIRECTIONS = {"components": 1, "noise_multiplier": 1.0}
WORDS = {**LITTLE, "max_keys": 1}
REFUSED = [
    *(
        (Normalization, SCALES, {"bounds": bounds})
        for bounds in (
            *((1, 1), (2, 1), (0, np.inf), (-1.7e308, 1.7e308), (0, 1e-320)),
            *((np.nan, 1), 3, ("a", "b")),
        )
    ),
    (Normalization, SCALES, {"noise_multiplier": 0.0}),
    (Normalization, SCALES, {"noise_multiplier": np.inf}),
    (Normalization, SCALES, {"axis": 0}),
    (Normalization, SCALES, {"axis": (0, 1)}),
    (Normalization, SCALES, {"denominator": 0}),
    (Discretization, BINS, {"bounds": ([0, 1], [2, 3])}),
    (Discretization, BINS, {"bounds": (1, 0)}),
    (Discretization, BINS, {"num_bins": 1}),
    (Discretization, BINS, {"cells": 1}),
    (Discretization, BINS, {"cells": 2**20 + 1}),
    (Discretization, BINS, {"noise_multiplier": 0.0}),
    (Discretization, BINS, {"output_mode": "all"}),
    (PCA, DIRECTIONS, {"components": 0}),
    (PCA, DIRECTIONS, {"noise_multiplier": -1.0}),
    (PCA, DIRECTIONS, {"l2_norm_clip": 0.0}),
    *(
        (kind, WORDS, change)
        for kind in (StringLookup, IntegerLookup, TextVectorization)
        for change in (
            {"max_keys": 0},
            {"noise_multiplier": 0.0},
            {"threshold_delta": 0.0},
            {"threshold_delta": 0.6},
            {"max_tokens": 1},
            {"output_mode": "tf_idf"},
        )
    ),
    # Functions could look at several texts together.
    (TextVectorization, WORDS, {"standardize": str.lower}),
    (TextVectorization, WORDS, {"split": str.split}),
]


@pytest.mark.parametrize(("kind", "settings", "change"), REFUSED)
def test_impossible_settings_are_refused(kind, settings, change) -> None:
    kind(**settings)
    with pytest.raises(ValueError, match=f"`{next(iter(change))}` must"):
        kind(**{**settings, **change})
