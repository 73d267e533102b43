"""What is packaged is what is tested."""

import ast
import importlib
import importlib.metadata
import re
import sys
import tomllib

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

import keras_dp
from tests import imports

ROOT = imports.ROOT
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
PINS = sorted((ROOT / "requirements").glob("*.txt"))
EXTRAS = PROJECT["project"]["optional-dependencies"]
RANGES = [
    Requirement(text)
    for text in (
        *PROJECT["project"]["dependencies"],
        *(text for extra in EXTRAS.values() for text in extra),
    )
    if not text.startswith("keras_dp[")  # An extra that another one holds.
]


def pinned(path):
    """Returns the requirements of a file."""
    lines = [
        line.partition("#")[0].strip()
        for line in path.read_text("utf-8").splitlines()
    ]
    return [Requirement(line) for line in lines if line]


def pinned_version(requirement):
    (specifier,) = requirement.specifier
    return Version(specifier.version)


def violations(pins, ranges):
    """Returns the pairs of a pin and the range that it is not in."""
    return [
        (str(pin), str(wanted))
        for pin in pins
        for wanted in ranges
        if canonicalize_name(pin.name) == canonicalize_name(wanted.name)
        and pinned_version(pin) not in wanted.specifier
    ]


class TestTheVersion:
    def test_stands_in_one_place(self) -> None:
        tree = ast.parse((ROOT / "keras_dp/_version.py").read_text("utf-8"))
        (version,) = (
            node.value.value
            for node in tree.body
            if isinstance(node, ast.Assign)
        )

        assert version == keras_dp.__version__
        assert "version" not in PROJECT["project"]
        assert PROJECT["project"]["dynamic"] == ["version"]
        assert PROJECT["tool"]["setuptools"]["dynamic"]["version"] == {
            "attr": "keras_dp._version.__version__"
        }
        quoted = re.compile(rf"[\"']{re.escape(version)}[\"']")
        for path in (ROOT / "setup.py", *(ROOT / "keras_dp").rglob("*.py")):
            if path.name != "_version.py":
                assert not quoted.search(path.read_text("utf-8")), path


class TestTheDependencies:
    def test_of_the_core_are_two(self) -> None:
        names = {
            canonicalize_name(Requirement(text).name)
            for text in PROJECT["project"]["dependencies"]
        }

        assert names == {"numpy", "scipy"}

    @pytest.mark.parametrize("extra", ["tensorflow", "cpu", "gpu", "keras_hub"])
    def test_of_training_come_with(self, extra) -> None:
        assert EXTRAS[extra][0] == "keras_dp[training]"

    @pytest.mark.parametrize("extra", EXTRAS)
    def test_of_no_extra_are_two_tensorflows(self, extra) -> None:
        names = [
            canonicalize_name(Requirement(text).name) for text in EXTRAS[extra]
        ]

        assert len({"tensorflow", "tensorflow-cpu"} & {*names}) <= 1

    def test_are_what_the_code_imports(self) -> None:
        tops = {
            name.partition(".")[0]
            for path in (ROOT / "keras_dp").rglob("*.py")
            for name in imports.names_of(path)
        }
        imported = {
            canonicalize_name({"absl": "absl-py"}.get(top, top))
            for top in tops - sys.stdlib_module_names - {"keras_dp"}
        }
        training = {Requirement(text).name for text in EXTRAS["training"]}

        # The others are those of the extras.
        assert imported == {
            *("numpy", "scipy"),
            *(*training, "tensorflow"),
            *("cryptography", "dp-accounting", "flwr", "psycopg"),
            "tensorflow-probability",
        }


class TestThePins:
    @pytest.mark.parametrize("path", PINS, ids=lambda path: path.stem)
    def test_are_exact(self, path) -> None:
        for requirement in pinned(path):
            assert [each.operator for each in requirement.specifier] == ["=="]

    @pytest.mark.parametrize("path", PINS, ids=lambda path: path.stem)
    def test_are_in_the_ranges_of_the_project(self, path) -> None:
        assert violations(pinned(path), RANGES) == []

    def test_outside_a_range_would_be_found(self) -> None:
        """Control, with other spellings of the same name."""
        found = violations(
            [Requirement("TensorFlow==2.22.0"), Requirement("numpy==2.0")],
            RANGES,
        )

        assert {pin for pin, _ in found} == {"TensorFlow==2.22.0"}

    def test_cover_every_dependency(self) -> None:
        names = {
            canonicalize_name(each.name)
            for path in PINS
            for each in pinned(path)
        }

        assert {canonicalize_name(each.name) for each in RANGES} <= names


class TestTheConsoleScript:
    def test_has_a_target(self) -> None:
        ((name, target),) = PROJECT["project"]["scripts"].items()
        module, function = target.split(":")

        assert name == "keras-dp"
        assert callable(getattr(importlib.import_module(module), function))


class TestTheRecipeOfConda:
    TEXT = (ROOT / "recipe/meta.yaml").read_text("utf-8")

    def test_needs_what_the_wheel_needs(self) -> None:
        run = self.TEXT.partition("  run:\n")[2].partition("  run_constr")[0]
        python = f"python {PROJECT['project']['requires-python']}"

        assert {Requirement(line.strip(" -")) for line in run.splitlines()} == {
            Requirement(python.replace(" ", "")),
            *map(Requirement, PROJECT["project"]["dependencies"]),
        }

    def test_limits_what_the_extras_limit(self) -> None:
        _, _, limits = self.TEXT.partition("run_constrained:\n")
        lines = limits.partition("\n\n")[0].splitlines()

        assert {Requirement(line.strip(" -")) for line in lines} == {
            *map(Requirement, EXTRAS["training"]),
            Requirement(EXTRAS["tensorflow"][1]),
        }


@pytest.mark.parametrize(
    "path", sorted((ROOT / ".github/workflows").glob("*.yml")), ids=str
)
def test_a_workflow_names_files_that_exist(path) -> None:
    text = path.read_text("utf-8")
    named = re.findall(
        r"\b(?:tests|requirements|recipe)/[\w/.]+|\.ci/[\w.]+", text
    )

    assert yaml.safe_load(text)["jobs"]
    assert named
    assert [name for name in named if not (ROOT / name).exists()] == []
