"""The board of accuracies: its page is rendered from results that are kept."""

import json
from pathlib import Path

import keras
import numpy as np
import pytest

ROOT = Path(__file__).parents[3]
RESULTS = ROOT / "benchmarks" / "accuracy_results"


@pytest.fixture
def accuracy(monkeypatch):
    """Returns the script."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return __import__("accuracy")


def small(accuracy, **options):
    """Returns a training on 120 rows, of which the label is one column."""
    x = np.random.default_rng(0).normal(size=(120, 3)).astype("float32")
    y = (x[:, :1] > 0).astype("float32")
    return accuracy.Training(
        lambda: keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)]),
        (x, y),
        (x, y),
        {"epochs": 2, "batch_size": None, "optimizer": "sgd"},
        **options,
    )


class TestPage:
    def test_is_what_the_results_render(self, accuracy):
        page = accuracy.PAGE.read_text()

        assert accuracy.rendered(page, RESULTS) == page

    def test_has_five_trainings_within_the_target_for_each_row(self, accuracy):
        for file in RESULTS.glob("*.jsonl"):
            found = accuracy.lines_of(file)
            name = found[0]["name"]
            row = accuracy.ROWS[name.partition(":")[0]]
            assert accuracy.file_of(name, RESULTS) == file
            assert [each["training"] for each in found] == [*range(len(found))]
            if ":" not in name:
                assert len(found) == 5
            if not name.endswith(":plain"):
                assert all(each["epsilon"] <= row.epsilon for each in found)


class TestScript:
    @pytest.mark.nightly
    def test_an_interrupted_row_goes_on(self, accuracy, monkeypatch, tmp_path):
        row = accuracy.Row("task", 3.0, "", lambda: small(accuracy), "", 0)
        monkeypatch.setitem(accuracy.ROWS, "small", row)

        accuracy.run("small", 1, tmp_path, is_choice=False)
        first = (tmp_path / "small.jsonl").read_text()
        accuracy.run("small", 2, tmp_path, is_choice=False)

        both = (tmp_path / "small.jsonl").read_text()
        assert both.startswith(first)
        one, two = map(json.loads, both.splitlines())
        assert (one["training"], two["training"]) == (0, 1)
        assert 2.9 < one["epsilon"] <= 3
        assert one["seal"] != two["seal"]
