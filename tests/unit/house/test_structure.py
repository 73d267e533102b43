"""Imports go one way, between the packages and inside of each."""

import ast
import functools
import graphlib
import math
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
    "bridges": {"ledger", "planning", "spending"},
    "reporting": {
        "accountants",
        "auditing",
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
# The picture of the house inside of its packages, from the ground up: each
# unit, a file or a folder, stands on one floor and imports only from below.
FLOORS = {
    "accountants": [
        "arrays roots",
        "loss normalize",
        "claim coverage slack",
        "compose groups renyi",
        "searches",
        "accountant",
        "analytic_gaussian gdp moments rdp strong_composition",
        "fourier",
        "available",
        "replay",
        "attacks",
    ],
    "auditing": [
        "coins observed_round phantom_round scores",
        "correlated_phantoms lower_bound rehearsal",
        "estimators replay verdicts",
        "claim phantom_canaries",
    ],
    "bridges": [
        "other_rounds",
        "jax_privacy opacus",
    ],
    "budgets": [
        "budget",
        "division filters fixed_plan",
        "accounts",
        "ledger_guarantee",
    ],
    "dp_queries": [
        "records saving",
        "dp_query preselected_vectors",
        "chunked_sums nested_query record_specs summing_query wrapping_query",
        "proven_sum",
        (
            "encoded_sum_query "
            "error_corrected_query gaussian_sum_query ks_denoised_query "
            "no_privacy_sum_query normalized_query"
        ),
        (
            "adaptive_scale_query adaptive_sum_query discretized_sum_query "
            "gaussian_average_query joint_clip_query"
        ),
        (
            "adaptive_clip_sum_query correlated_sum_query "
            "quantile_estimator_query scheduled_query"
        ),
        "quantile_adaptive_clip_sum_query",
    ],
    "experimental": [
        "federation memorization random_allocation",
    ],
    "gradients": [
        "layer_calls operations records",
        "registry unsupported",
        "capture rules",
        "engine",
        "checks",
    ],
    "interchange": [
        "dp_events",
    ],
    "layers": [
        "morlet_wavelets standardized_conv2d",
        "scattering2d",
    ],
    "ledger": [
        "events",
        "rows",
        "places",
        "privacy_ledger",
    ],
    "noise": [
        "xla",
        "box_muller refinement chacha20",
        "streams",
        "seeds",
        "grid",
        "filtered_noise samplers",
    ],
    "optimizers": [
        "groups inner_optimizer kept_answers ledger_of_chief record_batch",
        "group_plan private_round wrapping_optimizer",
        "drawn_state",
        "dp_optimizer",
        "answer_sizes keras_optimizers",
    ],
    "planning": [
        "solve strategies",
        "calibration",
        "correlated_noise plan rounds_left",
    ],
    "preprocessing": [
        "ranges schema units",
        "entries release rows",
        "discretization normalization pca vocabulary",
        "integer_lookup string_lookup text_vectorization",
    ],
    "recipes": [
        "averaging batch_normalization clip held_rounds",
        "advice learning_rate noise_for_account training_data",
        "correlation",
        "noise_for_target",
        "assembly",
        "private_training",
    ],
    "reporting": [
        "limits run_costs wording",
        "attack_words",
        "account_state cautions contradictions explanation",
        "certificate pictures tables",
        "html_page report",
        "report_page",
        "model_card",
        "commands",
        "cli",
    ],
    "sampling": [
        (
            "aligned columns kinds nests pipelines prefetch random_words "
            "record_files"
        ),
        (
            "array_shards bernoulli_draw random_rows random_subset "
            "record_source tfrecord_shards units"
        ),
        "datasets layouts",
        "microbatches sampler",
        (
            "cyclic_batches fixed_size_batches poisson_batches "
            "shuffled_batches user_batches"
        ),
    ],
    "spending": [
        "epsilon_limit",
        "run",
        "recording",
    ],
    "training": [
        "checkpoints data metrics",
        "advice devices",
        "held_model preparation step",
        "loop",
        "private_model",
        "private_gradients",
    ],
    "tuning": [
        "priors private_score secrecy",
        "best_of trials",
        "rehearsal",
        "private_search",
    ],
}
# It hands names on that stand above it, when these are first used.
SURFACE = PACKAGE / "__init__.py"
FOR_ALL = {
    "_check",
    "_nests",
    "_override",
    "_reproducible",
    "_rounding",
    "_schedules",
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


def floors_of(package):
    """Returns the floor on which each unit of a package stands."""
    return {
        unit: number
        for number, floor in enumerate(FLOORS[package])
        for unit in floor.split()
    }


def upwards(names, package, unit):
    """Returns the imports of units that do not stand below `unit`.

    The surface of a package, its `__init__`, may import all of its units. They
    may not import the surface.
    """
    if not package or unit == "__init__":
        return []
    floors = floors_of(package)
    return [
        name
        for name in names
        if name.split(".")[:2] == ["keras_dp", package]
        and name.split(".")[2] != unit
        and not floors.get(name.split(".")[2], math.inf) < floors[unit]
    ]


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
            ("ledger", "import keras_dp.accountants.rdp"),
            ("ledger", "from keras_dp import accountants"),
            ("ledger", "import keras_dp"),
            ("ledger", "from .. import accountants"),
            ("ledger", "import importlib"),
            ("ledger", "from importlib import import_module"),
            ("accountants", "from keras_dp.dp_queries import records"),
            ("accountants", "from keras_dp import reporting"),
            ("dp_queries", "from keras_dp import _check, accountants"),
            ("dp_queries", "from keras_dp.gradients import rules"),
            ("sampling", "from keras_dp.optimizers import feed"),
            ("gradients", "from keras_dp.ledger import events"),
            ("gradients", "def f():\n    from keras_dp import optimizers"),
            ("accountants", "from keras_dp.planning import plan"),
            ("optimizers", "from keras_dp.training import loop"),
            ("reporting", "import keras_dp.optimizers"),
            ("optimizers", "from keras_dp.accountants import RDP"),
            ("optimizers", "from keras_dp import PrivacyLedger"),
            ("training", "from keras_dp.preprocessing import release"),
            ("recipes", "from keras_dp.experimental import federation"),
            ("", "from keras_dp.ledger import Round"),
        ],
    )
    def test_and_any_other_edge_is_found(self, package, source) -> None:
        assert len(forbidden(imported(ast.parse(source)), package)) == 1

    @pytest.mark.parametrize("package", ["", *ALLOWED])
    def test_and_the_edges_of_the_design_are_not(self, package) -> None:
        for other in FOR_ALL | ALLOWED.get(package, set()):
            tree = ast.parse(f"from keras_dp import {other}, _check")
            assert forbidden(imported(tree), package) == []


class TestFloorsStandOnEachOther:
    def test_in_every_file(self) -> None:
        found = {
            name_of(path): upwards(imported_by(path), *place_of(path))
            for path in FILES
            if path != SURFACE
        }

        assert {name: each for name, each in found.items() if each} == {}

    def test_the_table_covers_every_file(self) -> None:
        units = sorted(
            {place_of(path) for path in FILES if path.stem != "__init__"}
            | {place_of(path.parent) for path in PACKAGE.glob("*/*/*.py")}
        )

        assert sorted(
            (package, unit)
            for package, floors in FLOORS.items()
            for floor in floors
            for unit in floor.split()
        ) == [(package, unit) for package, unit in units if package]

    @pytest.mark.parametrize(
        ("package", "unit", "source"),
        [
            ("accountants", "arrays", "import keras_dp.accountants.rdp"),
            ("accountants", "loss", "from keras_dp.accountants import compose"),
            ("accountants", "normalize", "import keras_dp.accountants.renyi.x"),
            ("accountants", "compose", "from keras_dp.accountants import RDP"),
            ("gradients", "records", "from keras_dp.gradients.rules import x"),
            ("gradients", "rules", "import keras_dp.gradients.capture.hooks"),
            ("gradients", "rules", "from keras_dp.gradients import register"),
            ("noise", "xla", "def f():\n    import keras_dp.noise.seeds"),
            (
                "training",
                "devices",
                "if TYPE_CHECKING:\n    import keras_dp.training.step",
            ),
        ],
    )
    def test_and_an_edge_upwards_is_found(self, package, unit, source) -> None:
        assert len(upwards(imported(ast.parse(source)), package, unit)) == 1

    @pytest.mark.parametrize("package", FLOORS)
    def test_and_the_edges_of_the_table_are_not(self, package) -> None:
        floors = floors_of(package)
        for unit, number in floors.items():
            below = {other for other in floors if floors[other] < number}
            for other in {unit, *below}:
                tree = ast.parse(f"from keras_dp.{package}.{other} import x")
                assert upwards(imported(tree), package, unit) == []


class TestNoFilesImportEachOther:
    @pytest.mark.parametrize("package", ["", *ALLOWED])
    def test_in_a_circle(self, package) -> None:
        files = [path for path in FILES if place_of(path)[0] == package]

        assert [name_of(path) for path in circle(graph_of(files))] == []

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
    assert readers == {"ledger/rows/canonical.py"}
