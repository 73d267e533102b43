"""What the package replaces of Keras and TensorFlow stands in one table."""

import ast
import re

import pytest

from tests import imports

PACKAGE = imports.ROOT / "keras_dp"
DESIGN = imports.ROOT / "docs" / "design.md"
# They change a mode of TensorFlow, or an option of the process.
_MODES = {
    "_push_per_thread_mode",
    "add_op_callback",
    "enable_tensor_float_32_execution",
    "set_caching_device",
    "set_experimental_options",
    "set_global_attribute",
    "set_jit",
}
_FRAMEWORKS = re.compile(r"^(import|from) (keras|tensorflow)\b", re.MULTILINE)


# Stands for a name that is not written out.
COMPUTED = "..."


def _name(node):
    return node.value if isinstance(node, ast.Constant) else COMPUTED


def _is_own(node):
    """Whether an attribute is set on the object itself, or on its class."""
    return isinstance(node, ast.Name) and node.id in {"self", "cls"}


def _is_vars(node):
    return isinstance(node, ast.Call) and ast.unparse(node.func) == "vars"


def replaced_in(text):
    """Returns the names of what a file replaces of other objects."""
    found = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Subscript) and _is_vars(node.value):
            if not isinstance(node.ctx, ast.Load):
                found.add(_name(node.slice))
        elif isinstance(node, ast.Attribute):
            is_private = node.attr.startswith("_")
            is_read = isinstance(node.ctx, ast.Load)
            if is_private and not is_read and not _is_own(node.value):
                found.add(node.attr)
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Subscript) and (
                    ast.unparse(target.slice) == ":"
                ):
                    found.add(ast.unparse(target.value))
        elif isinstance(node, ast.Call):
            function = ast.unparse(node.func).split(".")[-1]
            if function == "replaced_call":
                found.add("call")
            elif function == "replaced_attribute" or (
                function in {"delattr", "setattr"} and not _is_own(node.args[0])
            ):
                found.add(_name(node.args[1]))
            elif function == "setdefault" and _is_vars(node.func.value):
                found.add(_name(node.args[0]))
            elif function in _MODES:
                found.add(function)
    return found


def _of_package():
    """Returns pairs of a file and a name, for all that the package replaces."""
    pairs = set()
    for path in PACKAGE.rglob("*.py"):
        text = path.read_text("utf-8")
        if _FRAMEWORKS.search(text):
            place = path.relative_to(PACKAGE).as_posix()
            pairs |= {(place, name) for name in replaced_in(text)}
    return pairs


def _of_table():
    """Returns the same pairs, as the table of the document has them."""
    text = DESIGN.read_text("utf-8")
    table = text.split("| Replaced | Where | Why |")[1].split("\n\n")[0]
    pairs = set()
    for row in table.strip().splitlines()[1:]:
        _, names, places, _, _ = row.split("|")
        for place in re.findall(r"`([^`]+)`", places):
            written = [COMPUTED, *re.findall(r"`([^`]+)`", names)]
            pairs |= {(place, name) for name in written}
    return pairs


def test_the_table_has_all_that_is_replaced() -> None:
    table, package = _of_table(), _of_package()

    assert {place for place, _ in package} == {place for place, _ in table}
    assert {each for each in package if each[1] != COMPUTED} <= table


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("vars(layer)['call'] = f", "call"),
        ("vars(inner).setdefault('apply', f)", "apply"),
        ("tensor._keras_mask = mask", "_keras_mask"),
        ("replaced_call(layer, f)", "call"),
        ("replaced_attribute(layer, name, f)", COMPUTED),
        ("tf.config.optimizer.set_jit(True)", "set_jit"),
    ],
)
def test_each_way_to_replace_is_found(line, name) -> None:
    """Control: without it, the table could stay as it is."""
    assert replaced_in(line) == {name}


@pytest.mark.parametrize(
    "line", ["self._call = f", "vars(layer)['call']", "setattr(self, name, 1)"]
)
def test_what_an_object_does_with_itself_is_not_found(line) -> None:
    assert replaced_in(line) == set()
