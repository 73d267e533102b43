"""Differentially private training for Keras 3, recorded and replayable.

The names, which `__init__.pyi` lists, are imported when they are first used:
reading a ledger and replaying it never loads TensorFlow. Before Keras loads a
file of a private model, `import keras_dp.training`: that registers the classes.
"""

import ast
import importlib
from pathlib import Path
from typing import Any

_STUB = Path(__file__).with_suffix(".pyi").read_text("utf-8")
# From each name to the package that has it.
_HOMES = {
    alias.name: node.module
    for node in ast.parse(_STUB).body
    if isinstance(node, ast.ImportFrom) and node.module
    for alias in node.names
}
__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'keras_dp' has no attribute {name!r}")
    if _HOMES[name] == "keras_dp":
        return importlib.import_module(f"keras_dp.{name}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return list(__all__)
