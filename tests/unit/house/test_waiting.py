"""No test waits for a duration or measures one: the machine may be busy."""

import ast

import pytest

from tests.imports import ROOT, names_of

CLOCKS = {
    "tests/waiting.py",
    "tests/oracle/truth/compute.py",  # Says how long it computed.
}
FILES = sorted((ROOT / "tests").rglob("*.py"))


def timeouts(source: str) -> list[int]:
    """Returns the lines that give up after a number of seconds of their own."""
    return [
        node.value.lineno
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.keyword)
        and node.arg == "timeout"
        and isinstance(node.value, ast.Constant)
        and node.value.value  # 0 waits for nothing.
    ]


def test_no_test_reads_a_clock_or_sleeps() -> None:
    found = {
        path.relative_to(ROOT).as_posix()
        for path in FILES
        if any(name.split(".")[0] == "time" for name in names_of(path))
    }

    assert found <= CLOCKS


def test_nothing_gives_up_after_a_time_of_its_own() -> None:
    found = {
        path.relative_to(ROOT).as_posix(): lines
        for path in FILES
        if (lines := timeouts(path.read_text("utf-8")))
    }

    assert found.keys() <= CLOCKS


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ("run(x, timeout=3)", [1]),
        ("run(x, timeout=0)", []),
        ("run(x, timeout=HUNG_SECONDS)", []),
    ],
)
def test_a_time_is_told_from_the_limit_of_all(source, lines) -> None:
    assert timeouts(source) == lines
