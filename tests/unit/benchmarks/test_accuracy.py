"""The board of accuracies: its page is rendered from results that are kept."""

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
RESULTS = ROOT / "benchmarks" / "accuracy_results"
pytestmark = pytest.mark.standard  # The script imports Keras.


@pytest.fixture
def accuracy(monkeypatch):
    """Returns the script."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return __import__("accuracy")


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
