"""Imports go one way, between the packages and inside of each."""

import ast
import functools
import graphlib
import re

import pytest

from tests import imports

ROOT = imports.ROOT
PACKAGE = ROOT / "keras_dp"
FILES = sorted(PACKAGE.rglob("*.py"))
# What each package may import. Root modules: everyone may import those of
# `FOR_ALL`, and only the surface imports the packages.
ALLOWED = {
    "ledger": set(),
    "accountants": {"ledger"},
    "auditing": {
        "accountants",
        "dp_queries",
        "ledger",
        "optimizers",
        "gradients",
        "sampling",
        "spending",
        "training",
    },
    "planning": {"accountants", "ledger", "sampling"},
    "budgets": {"accountants", "ledger", "planning"},
    "interchange": {"accountants", "budgets", "ledger"},
    "reporting": {
        "accountants",
        "budgets",
        "interchange",
        "ledger",
        "planning",
    },
    "noise": {"keras_internals", "ledger"},
    "dp_queries": {"ledger", "noise"},
    "sampling": {"ledger"},
    "layers": set(),
    "gradients": {"keras_internals", "layers"},
    "optimizers": {"dp_queries", "keras_internals", "ledger", "noise"},
    "spending": {"accountants", "budgets", "ledger", "planning"},
    "training": {
        "accountants",
        "budgets",
        "dp_queries",
        "gradients",
        "keras_internals",
        "ledger",
        "optimizers",
        "planning",
        "sampling",
        "spending",
    },
    "preprocessing": {
        "accountants",
        "keras_internals",
        "ledger",
        "noise",
        "sampling",
        "spending",
    },
    "recipes": {
        "accountants",
        "budgets",
        "dp_queries",
        "keras_internals",
        "ledger",
        "optimizers",
        "planning",
        "sampling",
        "spending",
        "training",
    },
}
ALLOWED["tuning"] = {*ALLOWED["recipes"], "preprocessing", "recipes"}
# The annex stands on top of all of them, and none imports it.
ALLOWED["experimental"] = {*ALLOWED, "keras_internals"}
# It hands names on that stand above it, when these are first used.
SURFACE = PACKAGE / "__init__.py"
FOR_ALL = {
    "_check",
    "_counted",
    "_devices",
    "_nests",
    "_override",
    "_reproducible",
    "_rounding",
    "_system",
    "_training_extra",
    "_version",
    "errors",
}


def name_of(path):
    return path.relative_to(ROOT).as_posix()


def place_of(path, package_folder=PACKAGE):
    """Returns the package and the unit of a file, "" where it is in none."""
    parts = path.relative_to(package_folder).with_suffix("").parts
    return (parts[0], parts[1]) if len(parts) > 1 else ("", parts[0])


def imported(tree):
    """Returns the full names of all imports, those for types included."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level:
            found.append("keras_dp.relative")  # Absolute imports only.
        elif isinstance(node, ast.ImportFrom):
            found += [f"{node.module}.{alias.name}" for alias in node.names]
    return found


@functools.cache
def imported_by(path):
    return imported(ast.parse(path.read_text("utf-8")))


def forbidden(names, package):
    """Returns those imports that a module of `package` may not have.

    `package` is "" for the root modules other than `__init__`.
    """
    fine = FOR_ALL | ALLOWED.get(package, set()) | ({package} - {""})
    found = []
    for name in names:
        top, _, rest = name.partition(".")
        part = rest.partition(".")[0]
        # `importlib` could hide an edge.
        if top == "importlib" or (top == "keras_dp" and part not in fine):
            found.append(name)
    return found


def circle(graph):
    """Returns the nodes of one circle of imports, [] where there is none."""
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        return error.args[1]
    return []


def graph_of(files, root=ROOT):
    """Returns which of the files each of them imports."""
    return {
        path: {imports.file_of(name, root) for name in imported_by(path)}
        & {*files}
        for path in files
    }


class TestImportsGoOneWay:
    def test_in_every_file(self) -> None:
        found = {
            name_of(path): forbidden(imported_by(path), place_of(path)[0])
            for path in FILES
            if path != SURFACE
        }

        assert {name: each for name, each in found.items() if each} == {}

    def test_the_table_has_every_package(self) -> None:
        folders = {p.parent.name for p in PACKAGE.glob("*/__init__.py")}

        assert ALLOWED.keys() == folders

    @pytest.mark.parametrize(
        ("package", "source"),
        [
            ("ledger", "from keras_dp.accountants import RDP"),
            ("ledger", "import keras_dp"),
            ("ledger", "from .. import accountants"),
            ("ledger", "import importlib"),
            ("accountants", "from keras_dp.dp_queries import records"),
            ("dp_queries", "from keras_dp import _check, accountants"),
            ("gradients", "def f():\n    from keras_dp import optimizers"),
            ("optimizers", "from keras_dp.accountants import RDP"),
            ("", "from keras_dp.ledger import Round"),
        ],
    )
    def test_and_any_other_edge_is_found(self, package, source) -> None:
        assert len(forbidden(imported(ast.parse(source)), package)) == 1


class TestNoFilesImportEachOther:
    @pytest.mark.parametrize("package", ["", *ALLOWED])
    def test_in_a_circle(self, package) -> None:
        files = [path for path in FILES if place_of(path)[0] == package]
        files_behind = graph_of(files)
        # A folder stands above or below what it stands beside, too.
        units_behind = {}
        for path, others in files_behind.items():
            if path.name != "__init__.py":
                unit = place_of(path)
                behind = units_behind.setdefault(unit, set())
                behind |= {place_of(other) for other in others} - {unit}

        assert [name_of(path) for path in circle(files_behind)] == []
        assert circle(units_behind) == []

    @pytest.mark.parametrize(
        ("sources", "length"),
        [
            (["", "from keras_dp.p import a", "from keras_dp.p.b import x"], 0),
            (["from keras_dp.p.c import x", "", "import keras_dp.p.a"], 2),
            (
                [
                    "def f():\n    from keras_dp.p.b import x",
                    "import keras_dp.p.c",
                    "from keras_dp.p import a",
                ],
                3,
            ),
        ],
    )
    def test_and_a_circle_is_found(self, sources, length, tmp_path) -> None:
        folder = tmp_path / "keras_dp" / "p"
        folder.mkdir(parents=True)
        files = [folder / f"{name}.py" for name in "abc"]
        for path, source in zip(files, sources, strict=True):
            path.write_text(source)

        assert len({*circle(graph_of(files, tmp_path))}) == length


def test_one_function_reads_json() -> None:
    """It refuses a field that occurs twice, which `json.loads` does not."""
    readers = {
        path.relative_to(PACKAGE).as_posix()
        for path in FILES
        if re.search(r"json\.load|JSONDecoder", path.read_text("utf-8"))
    }
    assert readers == {"ledger/rows/codec.py"}
