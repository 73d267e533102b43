"""The tier of a test follows from the imports of its file, and its marker."""

import ast

import pytest

from tests import imports


@pytest.mark.parametrize(
    ("path", "needed"),
    [
        ("keras_dp/accountants/rdp.py", False),
        ("keras_dp/optimizers/dp_optimizer.py", True),
        ("tests/unit/ledger/test_ledger.py", False),
        ("tests/models.py", True),
        (
            "tests/unit/gradients/test_layer_table.py",
            True,
        ),  # By `tests/layer_table.py`.
    ],
)
def test_files_that_reach_tensorflow_are_known(path, needed) -> None:
    assert imports.needs_tensorflow(imports.ROOT / path) == needed


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import a.b, c", ["a.b", "c"]),
        ("from a.b import c", ["a.b.c"]),
        ("try:\n    import a\nexcept ImportError:\n    import b", ["a", "b"]),
        ("def f():\n    import a", []),
        ("if TYPE_CHECKING:\n    import a", []),
    ],
)
def test_what_runs_at_once_is_told_from_what_waits(source, found) -> None:
    assert [*imports.names(ast.parse(source), deferred=False)] == found
