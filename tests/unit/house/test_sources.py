"""Sources draw from seeds, and have their exceptions in one file."""

import ast
import re

import pytest

from tests.imports import ROOT

FILES = sorted((ROOT / "keras_dp").rglob("*.py"))


def _chain(node):
    """Returns `a.b.c` as text, "" for anything else than dotted names."""
    if isinstance(node, ast.Attribute):
        start = _chain(node.value)
        return f"{start}.{node.attr}" if start else ""
    return node.id if isinstance(node, ast.Name) else ""


RANDOM_MODULES = r"(tf|tensorflow|keras|np|numpy)\.random\.\w+"
SEEDED = (
    r"(tf|tensorflow)\.random\.(stateless_\w+|split|fold_in|Algorithm)"
    r"|np\.random\.(Generator|SeedSequence|Philox)"
)
# They draw a seed of their own if they are given none.
# The generators of a process that a search leaves as they were.
KEPT = {
    "random",
    "np.random.get_state",
    "np.random.seed",
    "np.random.set_state",
    "tf.random.set_seed",
}
SEEDS = r"np\.random\.(SeedSequence|Philox)"
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
            if re.fullmatch(SEEDS, name) and not node.args:
                found.append(f"{name} without a seed")
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


@pytest.fixture(scope="module")
def offenders():
    """What each check finds in the sources, by name of the file."""
    checks = (unsafe_draws, exception_classes)
    found = {check: {} for check in checks}
    for path in FILES:
        tree = ast.parse(path.read_text("utf-8"))
        for check in checks:
            if of_file := check(tree):
                found[check][path.relative_to(ROOT).as_posix()] = of_file
    return found


class TestTheSources:
    def test_draw_from_seeds_by_a_named_generator(self, offenders) -> None:
        found = dict(offenders[unsafe_draws])

        # It draws nothing: it keeps generators of the program, and puts them
        # back.
        assert set(found.pop("keras_dp/tuning/best_of.py")) == KEPT
        assert found == {}

    @pytest.mark.parametrize(
        "source",
        [
            "tf.random.normal([2])",
            "tf.random.set_seed(1)",
            "tf.random.experimental.Generator",
            "np.random.default_rng()",
            "np.random.Generator(np.random.PCG64(0))",
            "from tensorflow.random import normal",
            "import random",
            "tf.random.stateless_normal([2], seed)",
            "tf.random.split(seed, alg='auto_select')",
        ],
    )
    def test_and_any_other_draw_would_be_found(self, source) -> None:
        assert unsafe_draws(ast.parse(source))

    def test_have_every_exception_class_in_errors(self, offenders) -> None:
        assert offenders[exception_classes].keys() == {"keras_dp/errors.py"}
