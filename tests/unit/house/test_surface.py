"""The names that users import, of the package and of its packages."""

import collections
import importlib
import re
import subprocess
import sys

import pytest

import keras_dp
import keras_dp.training
from tests import documents
from tests.imports import ROOT

PACKAGES = sorted(
    path.parent.name for path in (ROOT / "keras_dp").glob("*/__init__.py")
)
# What optimizers are built from.
INTERNAL = {"gradients", "noise"}
# It has no names of its own: users name the part.
PACKAGES.remove("experimental")

# The words of all pages, examples and tutorials.
USED = {
    word
    for path in [
        *documents.documents(),
        *ROOT.glob("examples/**/*.py"),
        *ROOT.glob("tutorials/**/*.py"),
    ]
    if path.parent.name != "api" and path.name != "CHANGELOG.md"
    for word in re.findall(r"\w+", path.read_text("utf-8"))
}


class TestTheSurface:
    def test_lists_every_package_but_internal_ones(self) -> None:
        missing = {*PACKAGES, "errors", "experimental"} - set(keras_dp.__all__)

        assert missing == INTERNAL

    def test_is_small(self) -> None:
        assert len(keras_dp.__all__) <= 40
        assert dir(keras_dp) == keras_dp.__all__

    def test_refuses_another_name(self) -> None:
        with pytest.raises(AttributeError, match="no attribute 'nothing'"):
            _ = keras_dp.nothing

    def test_has_the_classes_of_the_packages(self) -> None:
        for name, home in keras_dp._HOMES.items():
            if home != "keras_dp" and name != "__version__":
                module = importlib.import_module(home)
                assert name in module.__all__
                assert getattr(keras_dp, name) is getattr(module, name)

    @pytest.mark.parametrize("package", PACKAGES)
    def test_of_each_package_resolves(self, package) -> None:
        module = importlib.import_module(f"keras_dp.{package}")

        assert len(set(module.__all__)) == len(module.__all__)
        for name in module.__all__:
            assert hasattr(module, name)

    def test_has_no_name_in_two_packages(self) -> None:
        counted = collections.Counter(
            name
            for package in PACKAGES
            for name in importlib.import_module(f"keras_dp.{package}").__all__
        )

        assert [name for name, count in counted.items() if count > 1] == []

    @pytest.mark.parametrize("package", sorted({*PACKAGES} - INTERNAL))
    def test_has_no_name_that_nothing_uses(self, package) -> None:
        module = importlib.import_module(f"keras_dp.{package}")

        assert {*module.__all__} - USED == set()

    def test_of_training_loads_no_solvers(self) -> None:
        code = (
            "import sys; from keras_dp import optimizers, training; "
            "late = {'scipy.optimize', 'scipy.stats', 'scipy.interpolate'}; "
            "assert not late & set(sys.modules)"
        )

        subprocess.run([sys.executable, "-c", code], check=True)
