"""Counts what the page on tests says: `python -m tests.figures` prints it."""

import ast
import sys

from tests.imports import ROOT

FOLDERS = ("unit", "property", "statistical", "oracle", "integration")
PAGE = ROOT / "docs/testing.md"


def functions(folder: str) -> int:
    """Returns the number of test functions in a folder, without cases."""
    return sum(
        isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
        for path in (ROOT / "tests" / folder).rglob("test_*.py")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
    )


def figures() -> dict[str, int]:
    """Returns the figures of the page, each with what it counts."""
    from tests.audit_mutants import MUTANTS
    from tests.integration.test_auditing_user_faults import FAULTS
    from tests.integration.test_ledger_kill import KILLS
    from tests.models import MODELS
    from tests.noise_table import REFUSED, STANDARD
    from tests.query_table import QUERIES

    return {
        **{
            f"test functions in `tests/{each}`": functions(each)
            for each in FOLDERS
        },
        "files of oracles": len(
            list((ROOT / "tests/oracle").rglob("test_*.py"))
        ),
        "faults planted in the library, each found by `check`": len(MUTANTS),
        "faults planted in what a user writes, each found": len(FAULTS),
        "kills of a process at a random moment, in each of the tests": KILLS,
        "models whose gradients equal a loop over single examples": len(MODELS),
        "mechanisms under the tests of all mechanisms": len(QUERIES),
        "noise laws compared with their textbook formulas": len(STANDARD),
        "laws that are no noise, each refused": len(REFUSED),
    }


if __name__ == "__main__":
    for what, number in figures().items():
        sys.stdout.write(f"| {what} | {number:,} |\n")
