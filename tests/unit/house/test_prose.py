"""Comments and docstrings say what a thing is, with a subject and a verb."""

import ast
import io
import re
import tokenize

import pytest

from tests.imports import ROOT

# A genitive, or `what` as a noun, where a line or an entry begins.
BEGINNING = re.compile(r"^(\w+: )?(Of|What|That of|Those of) [^?]*$")
ANYWHERE = re.compile(r" that of the .* of |which is none|beside (it|them)\.")
DOCUMENTED = (
    ast.Module,
    ast.ClassDef,
    ast.FunctionDef,
    ast.AsyncFunctionDef,
)


def prose(source):
    """Yields the number and the text of every line of prose in a program."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string.lstrip("#: ")
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, DOCUMENTED) and ast.get_docstring(node):
            value = node.body[0].value
            for number, line in enumerate(value.value.splitlines()):
                yield value.lineno + number, line.strip()


def hard_to_read(source):
    """Returns the lines that a reader would read twice."""
    return sorted(
        f"{number}: {line}"
        for number, line in prose(source)
        if BEGINNING.search(line) or ANYWHERE.search(line)
    )


@pytest.mark.full
def test_sentences_have_a_subject_and_a_verb() -> None:
    found = [
        f"{path.relative_to(ROOT).as_posix()}:{line}"
        for path in sorted((ROOT / "keras_dp").rglob("*.py"))
        for line in hard_to_read(path.read_text("utf-8"))
    ]

    assert found == []


@pytest.mark.parametrize(
    "source",
    [
        "x = 1  # Of the kernel.",
        "# That of the layer.\nx = 1",
        '"""What methods raise for large ledgers."""',
        'def f(x):\n    """Adds.\n\n    Args:\n        x: Of it.\n    """',
        'class A:\n    """Adds; the bound is that of the sum of all."""',
        "# The record, which is none.",
    ],
)
def test_and_others_are_found(source) -> None:
    assert len(hard_to_read(source)) == 1


@pytest.mark.parametrize(
    "source",
    [
        "# The gradient of the kernel.",
        "# Often in blocks. Whatever is known comes first.",
        '"""What would happen?"""',
        "# The bound that of all sums holds.",
    ],
)
def test_and_plain_sentences_are_not(source) -> None:
    assert hard_to_read(source) == []
