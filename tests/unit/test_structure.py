"""The house stands as `docs/design.md` says."""

import ast
import importlib
import importlib.metadata
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import keras_dp

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "keras_dp"
FILES = sorted(PACKAGE.rglob("*.py"))
# What each package may import. Root modules: everyone may import those of
# `FOR_ALL`, and only the surface imports the packages.
ALLOWED = {
    "ledger": set(),
    "accountants": {"ledger"},
    "planning": {"accountants", "ledger"},
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
# Not part of the surface: what optimizers are built from.
INTERNAL = {"gradients", "noise"}


def name_of(path):
    return path.relative_to(ROOT).as_posix()


each_file = pytest.mark.parametrize("path", FILES, ids=name_of)


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


class TestImportsGoOneWay:
    @pytest.mark.parametrize(
        "path",
        [path for path in FILES if path not in SURFACES],
        ids=name_of,
    )
    def test_in_every_file(self, path) -> None:
        parts = path.relative_to(PACKAGE).parts
        package = parts[0] if len(parts) > 1 else ""

        assert forbidden(parsed(path), package) == []

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


class TestWhatIsLoaded:
    @pytest.mark.parametrize(
        "source",
        [
            "import keras_dp",
            "import keras_dp.ledger, keras_dp.accountants",
            "import keras_dp.sampling",
            "import keras_dp.reporting",
            "import keras_dp; keras_dp.PrivacyLedger, keras_dp.accountants.RDP",
            "import keras_dp; dir(keras_dp), keras_dp.__version__",
            "import keras_dp; keras_dp.sampling.PoissonBatches",
            "import keras_dp; keras_dp.reporting.make_report",
        ],
    )
    def test_needs_no_tensorflow(self, source) -> None:
        modules = modules_after(source)

        assert "keras_dp" in modules
        assert not modules & {"tensorflow", "keras", "tensorflow_probability"}

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
        assert not modules & {"tensorflow", "keras", "tensorflow_probability"}

    def test_by_everything_is_no_tensorflow_probability(self) -> None:
        every = ", ".join(
            ".".join(path.relative_to(ROOT).with_suffix("").parts)
            for path in FILES
            if path.name != "__init__.py"
        )

        modules = modules_after(f"import {every}")

        assert "tensorflow" in modules  # Control: the question can be yes.
        assert "tensorflow_probability" not in modules


def subpackages():
    return [
        importlib.import_module(f"keras_dp.{package}") for package in ALLOWED
    ]


class TestTheSurface:
    def test_lists_every_package_but_internal_ones(self) -> None:
        missing = (ALLOWED.keys() | {"errors"}) - set(keras_dp.__all__)

        assert missing == INTERNAL

    def test_lists_what_type_checkers_and_users_are_told(self) -> None:
        tree = parsed(PACKAGE / "__init__.py")
        (block,) = (
            node
            for node in tree.body
            if isinstance(node, ast.If)
            and ast.unparse(node.test) == "TYPE_CHECKING"
        )
        told = {
            alias.asname or alias.name
            for node in block.body
            for alias in node.names
        }

        assert sorted(told | {"__version__"}) == sorted(keras_dp.__all__)
        assert dir(keras_dp) == sorted(keras_dp.__all__)

    @pytest.mark.parametrize("name", keras_dp.__all__)
    def test_has_every_name_it_lists(self, name) -> None:
        assert getattr(keras_dp, name) is not None

    def test_refuses_another_name(self) -> None:
        with pytest.raises(AttributeError, match="no attribute 'nothing'"):
            _ = keras_dp.nothing

    def test_has_the_classes_of_the_packages(self) -> None:
        for name, home in keras_dp._HOMES.items():
            module = importlib.import_module(f"keras_dp.{home}")
            assert name in module.__all__
            assert getattr(keras_dp, name) is getattr(module, name)

    @pytest.mark.parametrize("package", ALLOWED)
    def test_of_each_package_resolves(self, package) -> None:
        module = importlib.import_module(f"keras_dp.{package}")

        assert len(set(module.__all__)) == len(module.__all__)
        for name in module.__all__:
            assert hasattr(module, name)

    def test_has_a_docstring_for_every_class_and_function(self) -> None:
        bare = [
            f"{module.__name__}.{name}"
            for module in subpackages()
            for name in module.__all__
            if not _is_documented(getattr(module, name), name)
        ]

        assert bare == []

    def test_has_every_exception_class_in_errors(self) -> None:
        elsewhere = [
            f"{name_of(path)}: {node.name}"
            for path in FILES
            if path.name != "errors.py"
            for node in ast.walk(parsed(path))
            if isinstance(node, ast.ClassDef)
            and any(
                ast.unparse(b).endswith(("Error", "Exception"))
                for b in node.bases
            )
        ]

        assert elsewhere == []


def _is_documented(value, name):
    if not inspect.isclass(value) and not callable(value):
        return True
    # `dataclass` and `NamedTuple` write a signature if there is nothing.
    text = value.__dict__.get("__doc__") if inspect.isclass(value) else None
    text = text or (None if inspect.isclass(value) else value.__doc__)
    return bool(text) and not text.startswith(f"{name}(")


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


class TestTheSources:
    @each_file
    def test_have_no_assert_and_no_print(self, path) -> None:
        assert asserts_and_prints(parsed(path)) == []

    @pytest.mark.parametrize(
        "source", ["assert x", "def f():\n  print(1)", "log = print"]
    )
    def test_and_either_would_be_found(self, source) -> None:
        assert asserts_and_prints(ast.parse(source))

    @each_file
    def test_draw_from_explicit_seeds_by_a_named_generator(self, path) -> None:
        assert unsafe_draws(parsed(path)) == []

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

    @each_file
    def test_begin_with_a_docstring(self, path) -> None:
        assert ast.get_docstring(parsed(path))
