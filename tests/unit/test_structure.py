"""The house stands as `docs/design.md` says."""

import ast
import importlib.metadata
import re
import subprocess
import sys

import pytest

import keras_dp
from tests import imports

ROOT = imports.ROOT
PACKAGE = ROOT / "keras_dp"
FILES = sorted(PACKAGE.rglob("*.py"))
# What each package may import. Root modules: everyone may import those of
# `FOR_ALL`, and only the surface imports the packages.
ALLOWED = {
    "ledger": set(),
    "accountants": {"ledger"},
    "planning": {"accountants", "ledger", "sampling"},
    "reporting": {"accountants", "ledger", "planning"},
    "noise": {"keras_internals", "ledger"},
    "dp_queries": {"ledger", "noise"},
    "sampling": {"ledger"},
    "gradients": {"keras_internals"},
    "optimizers": {"dp_queries", "keras_internals", "ledger", "noise"},
    "training": {
        "dp_queries",
        "gradients",
        "keras_internals",
        "ledger",
        "optimizers",
        "sampling",
    },
}
# They hand names on that stand above them, when these are first used.
SURFACES = {PACKAGE / "__init__.py", PACKAGE / "accountants" / "__init__.py"}
FOR_ALL = {"_check", "_nests", "_reproducible", "_version", "errors"}


def name_of(path):
    return path.relative_to(ROOT).as_posix()


def parsed(path):
    return ast.parse(path.read_text("utf-8"))


def forbidden(tree, package):
    """Returns the imports in `tree` that a module of `package` may not have.

    `package` is "" for the root modules other than `__init__`.
    """
    fine = FOR_ALL | ALLOWED.get(package, set()) | ({package} - {""})
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level:
            names = ["keras_dp.relative"]  # Absolute imports only.
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            top, _, rest = name.partition(".")
            part = rest.partition(".")[0]
            # `importlib` could hide an edge.
            if top == "importlib" or (top == "keras_dp" and part not in fine):
                found.append(name)
    return found


def package_of(path):
    parts = path.relative_to(PACKAGE).parts
    return parts[0] if len(parts) > 1 else ""


class TestImportsGoOneWay:
    def test_in_every_file(self) -> None:
        found = {
            name_of(path): forbidden(parsed(path), package_of(path))
            for path in FILES
            if path not in SURFACES
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
            ("", "from keras_dp.ledger import Round"),
        ],
    )
    def test_and_any_other_edge_is_found(self, package, source) -> None:
        assert len(forbidden(ast.parse(source), package)) == 1

    @pytest.mark.parametrize("package", ["", *ALLOWED])
    def test_and_the_edges_of_the_design_are_not(self, package) -> None:
        for other in FOR_ALL | ALLOWED.get(package, set()):
            tree = ast.parse(f"from keras_dp import {other}, _check")
            assert forbidden(tree, package) == []


def modules_after(source, *arguments):
    """Returns the top-level modules a new process has after `source`."""
    script = (
        f"import sys\n{source}\nsys.stderr.write(chr(10).join(sys.modules))"
    )
    process = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        check=True,
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    return {line.partition(".")[0] for line in process.stderr.splitlines()}


STATEMENTS = [
    "import keras_dp",
    "import keras_dp.ledger, keras_dp.accountants",
    "import keras_dp.sampling",
    "import keras_dp.reporting",
    "keras_dp.PrivacyLedger, keras_dp.accountants.RDP",
    "dir(keras_dp), keras_dp.__version__",
    "keras_dp.sampling.PoissonBatches",
    "keras_dp.reporting.make_report",
]


class TestWhatIsLoaded:
    def test_needs_no_tensorflow(self) -> None:
        modules = modules_after("\n".join(STATEMENTS))

        assert "keras_dp" in modules
        assert not modules & imports.FRAMEWORKS

    @pytest.mark.parametrize(
        "command", [["report", "--delta", "1e-5"], ["verify"]], ids=" ".join
    )
    def test_by_the_command_line_is_no_tensorflow(
        self, command, tmp_path
    ) -> None:
        path = tmp_path / "a.ledger"
        with keras_dp.PrivacyLedger.open(path, dataset="d") as ledger:
            ledger.record(
                keras_dp.ledger.PoissonSampling(0.01),
                [keras_dp.ledger.GaussianSum("sum", 1.0, 4.0)],
            )

        modules = modules_after(
            "from keras_dp.reporting.cli import main\nmain(sys.argv[1:])",
            *command,
            str(path),
        )

        assert "scipy" in modules  # It did run.
        assert not modules & imports.FRAMEWORKS

    @pytest.mark.standard
    def test_by_everything_is_no_tensorflow_probability(self) -> None:
        every = ", ".join(
            ".".join(path.relative_to(ROOT).with_suffix("").parts)
            for path in FILES
            if path.name != "__init__.py"
        )

        modules = modules_after(f"import {every}")

        assert "tensorflow" in modules  # Control: the question can be yes.
        assert "tensorflow_probability" not in modules


def test_one_tensorflow_is_installed() -> None:
    """Both would overwrite each other's files."""
    names = [
        re.sub(r"[-_.]+", "-", each.metadata["Name"]).lower()
        for each in importlib.metadata.distributions()
    ]

    assert sum(n in ("tensorflow", "tensorflow-cpu") for n in names) == 1


def asserts_and_prints(tree):
    return [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Assert)
        or (isinstance(node, ast.Name) and node.id in ("print", "pprint"))
    ]


def _chain(node):
    """Returns `a.b.c` as text, "" for anything else than dotted names."""
    if isinstance(node, ast.Attribute):
        start = _chain(node.value)
        return f"{start}.{node.attr}" if start else ""
    return node.id if isinstance(node, ast.Name) else ""


RANDOM_MODULES = r"(tf|tensorflow|keras|np|numpy)\.random\.\w+"
SEEDED = (
    r"(tf|tensorflow)\.random\.(stateless_\w+|split|fold_in|Algorithm)"
    r"|np\.random\.(SeedSequence|Philox)"
)
DRAW = r"(tf|tensorflow)\.random\.(stateless_\w+|split|fold_in)"


def unsafe_draws(tree):
    """Returns draws with hidden state, or by a generator not named."""
    found = []
    docstrings = {
        id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and id(node) not in docstrings:
            if node.value == "auto_select":
                found.append("auto_select")
        elif isinstance(node, ast.Import | ast.ImportFrom):
            prefix = f"{node.module}." if hasattr(node, "module") else ""
            found += [
                prefix + alias.name
                for alias in node.names
                if re.search(r"(^|\.)random(\.|$)", prefix + alias.name)
            ]
        elif isinstance(node, ast.Attribute):
            name = _chain(node)
            if re.fullmatch(RANDOM_MODULES, name) and not re.fullmatch(
                SEEDED, name
            ):
                found.append(name)
        elif isinstance(node, ast.Call):
            name = _chain(node.func)
            named = any(each.arg == "alg" for each in node.keywords)
            if re.fullmatch(DRAW, name) and not named:
                found.append(f"{name} without alg")  # `auto_select`, then.
    return found


def exception_classes(tree):
    return [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        and any(
            ast.unparse(base).endswith(("Error", "Exception"))
            for base in node.bases
        )
    ]


def offenders(find, files=FILES):
    """Returns what `find` finds in the files, by name of the file."""
    found = {name_of(path): find(parsed(path)) for path in files}
    return {name: each for name, each in found.items() if each}


class TestTheSources:
    def test_have_no_assert_and_no_print(self) -> None:
        assert offenders(asserts_and_prints) == {}

    @pytest.mark.parametrize(
        "source", ["assert x", "def f():\n  print(1)", "log = print"]
    )
    def test_and_either_would_be_found(self, source) -> None:
        assert asserts_and_prints(ast.parse(source))

    def test_draw_from_explicit_seeds_by_a_named_generator(self) -> None:
        assert offenders(unsafe_draws) == {}

    @pytest.mark.parametrize(
        "source",
        [
            "tf.random.normal([2])",
            "tf.random.set_seed(1)",
            "tf.random.Generator.from_seed(1)",
            "tf.random.experimental.Generator",
            "keras.random.normal([2])",
            "np.random.default_rng()",
            "from tensorflow.random import normal",
            "from tensorflow import random",
            "import random",
            "from random import random",
            "tf.random.stateless_normal([2], seed)",
            "tf.random.split(seed)",
            "tf.random.split(seed, alg='auto_select')",
        ],
    )
    def test_and_any_other_draw_would_be_found(self, source) -> None:
        assert unsafe_draws(ast.parse(source))

    def test_begin_with_a_docstring(self) -> None:
        assert offenders(lambda tree: not ast.get_docstring(tree)) == {}

    def test_have_every_exception_class_in_errors(self) -> None:
        found = offenders(exception_classes)

        assert found.keys() == {"keras_dp/errors.py"}
