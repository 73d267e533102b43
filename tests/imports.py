"""Which file of the repository imports which, read without running any."""

import ast
import doctest
import functools
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FRAMEWORKS = {"keras", "tensorflow"}


def names(tree: ast.AST, *, deferred: bool = True) -> Iterator[str]:
    """Yields the full names of what a program imports when it runs.

    Args:
        tree: The program.
        deferred: Also the imports in functions, which wait for a call.
    """
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.expr):
            continue  # Most of a program; only statements import.
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif not _is_for_types(node) and (
            deferred or not isinstance(node, ast.FunctionDef)
        ):
            yield from names(node, deferred=deferred)


@functools.cache
def names_of(path: Path) -> tuple[str, ...]:
    """Returns all `names` of a file, as it stands at the first call."""
    return (*names(ast.parse(path.read_text("utf-8"))),)


def _is_for_types(node: ast.AST) -> bool:
    """Whether only type checkers read the block: no import, no edge."""
    return (
        isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    )


def file_of(name: str, root: Path = ROOT) -> Path | None:
    """Returns the file that a name is, or is in; `None` for other packages."""
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        path = root.joinpath(*parts[:count])
        for each in (path.with_suffix(".py"), path / "__init__.py"):
            if each.is_file():
                return each
    return None


def needs_tensorflow(path: Path) -> bool:
    """Returns whether the file or its examples import TensorFlow or Keras."""
    # TensorFlow Probability imports it where it is installed.
    if 'importorskip("tensorflow' in path.read_text("utf-8"):
        return True
    if FRAMEWORKS & {name.partition(".")[0] for name in _in_examples(path)}:
        return True
    seen: set[Path] = set()
    left = [path]
    while left:
        file = left.pop()
        if file in seen:
            continue
        seen.add(file)
        frameworks, others = _imports(file)
        if frameworks:
            return True
        left += others
    return False


def _in_examples(path: Path) -> Iterator[str]:
    """Yields what the examples in docstrings import."""
    parser = doctest.DocTestParser()
    text = path.read_text("utf-8")
    for node in ast.walk(ast.parse(text)) if ">>>" in text else ():
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            for example in parser.get_examples(ast.get_docstring(node) or ""):
                yield from names(ast.parse(example.source))


@functools.cache
def _imports(path: Path) -> tuple[set[str], list[Path]]:
    """Returns the frameworks and the files that run when a file does."""
    frameworks = set()
    files = [
        parent / "__init__.py"
        for parent in path.parents
        if (parent / "__init__.py").is_file()
    ]
    for name in names(ast.parse(path.read_text("utf-8")), deferred=False):
        frameworks |= {name.partition(".")[0]} & FRAMEWORKS
        file = file_of(name)
        if file is not None:
            files.append(file)
    return frameworks, files
