"""The names of TensorFlow's operations stand in one file, and are known."""

import ast

import tensorflow as tf

from keras_dp.gradients import operations
from tests import imports

FOLDER = imports.ROOT / "keras_dp" / "gradients"


def is_operation(text):
    """Whether the installed TensorFlow has an operation of this name."""
    try:
        tf.Graph().op_def_for_type(text)
    except RuntimeError:
        return False
    return True


def names_in(text):
    """Returns the texts of a file that look like names of operations."""
    return {
        node.value
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and node.value.isalnum()
        and node.value[0].isupper()
    }


def test_other_files_name_no_operation() -> None:
    found = {
        path.name: names
        for path in FOLDER.rglob("*.py")
        if path.name != "operations.py"
        and (names := set(filter(is_operation, names_in(path.read_text()))))
    }

    assert found == {}


def texts_in(value):
    """Returns the names in a table of operations."""
    if isinstance(value, str):
        return set(value.split())
    return set().union(*map(texts_in, value))


def test_all_names_are_those_of_operations() -> None:
    """Where one is missing, TensorFlow has renamed or dropped it."""
    tables = [
        value
        for name, value in vars(operations).items()
        if name.isupper()
        and not name.startswith("_")
        and not isinstance(value, int)
    ]
    names = texts_in(tables)

    assert len(names) > 200
    assert set(filter(is_operation, names)) == names
