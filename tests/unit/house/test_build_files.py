"""The BUILD files say what the code says."""

import pytest

from tests import build_files


def test_every_build_file_is_what_the_sources_say() -> None:
    written = build_files.build_files()
    stale = [
        path.relative_to(build_files.ROOT).as_posix()
        for path, text in written.items()
        if not path.exists() or path.read_text("utf-8") != text
    ]

    assert stale == [], "Run `python -m tests.build_files`."


def test_there_are_no_other_build_files() -> None:
    found = {*build_files.ROOT.glob("BUILD"), *_below("keras_dp")}

    assert found == build_files.build_files().keys()


def _below(name):
    return (build_files.ROOT / name).rglob("BUILD")


def test_the_libraries_have_no_cycle() -> None:
    left = {
        folder.parent.name: {
            label.rpartition("/")[2]
            for label in build_files.dependencies(folder.parent)
            if label.startswith("//keras_dp/")
        }
        for folder in (build_files.ROOT / "keras_dp").glob("*/__init__.py")
    }
    while left:
        free = [name for name in left if not left[name] & left.keys()]
        assert free, f"cycle among {sorted(left)}"
        for name in free:
            del left[name]


class TestTheDependencies:
    """Controls: they follow the imports, wherever these stand."""

    @pytest.fixture
    def root(self, tmp_path):
        for name in ("ledger", "accountants"):
            (tmp_path / "keras_dp" / name / "wing").mkdir(parents=True)
        return tmp_path

    @pytest.mark.parametrize(
        ("source", "labels"),
        [
            ("import json", set()),
            ("import numpy as np", {"@pypi//numpy"}),
            ("from absl import logging", {"@pypi//absl_py"}),
            ("from keras_dp import ledger", {"//keras_dp/ledger"}),
            ("from keras_dp import errors", {"//keras_dp:core"}),
            (
                "from keras_dp import keras_internals",
                {"//keras_dp:keras_internals"},
            ),
            ("from keras_dp.ledger.x import y", {"//keras_dp/ledger"}),
            ("from keras_dp.accountants import rdp", set()),
            ("def f():\n    import scipy.stats", {"@pypi//scipy"}),
            ("if TYPE_CHECKING:\n    import scipy", set()),
        ],
    )
    @pytest.mark.parametrize("wing", ["", "wing"])
    def test_are_those_of_every_source(
        self, root, wing, source, labels
    ) -> None:
        folder = root / "keras_dp" / "accountants"
        (folder / wing / "a.py").write_text(source)

        assert build_files.dependencies(folder, root) == labels
