"""Bazel finds every file and every dependency that the BUILD files name."""

import shutil
import subprocess
from pathlib import Path

import pytest

from tests import build_files

ROOT = build_files.ROOT
BAZEL = shutil.which("bazel")
# Stands for the rules of Python and for PyPI, which a workspace would load.
RULES = """\
def py_library(**attributes):
    native.py_library(**attributes)
"""
LIBRARY = 'py_library(name = "{}", visibility = ["//visibility:public"])\n'
WORKSPACE = """\
local_repository(name = "rules_python", path = "../rules")
local_repository(name = "pypi", path = "../pypi")
"""

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(
        BAZEL is None,
        reason="there is no bazel (Debian's package is bazel-bootstrap)",
    ),
]


def write(path, text=""):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, "utf-8")


@pytest.fixture
def workspace(tmp_path):
    """A copy of what the BUILD files name, beside empty dependencies."""
    copy = tmp_path / "workspace"
    shutil.copytree(
        ROOT / "keras_dp",
        copy / "keras_dp",
        ignore=shutil.ignore_patterns("__pycache__"),
    )
    shutil.copytree(ROOT / "data", copy / "data")
    for name in ("BUILD", "LICENSE", "pyproject.toml"):
        shutil.copy(ROOT / name, copy / name)
    write(copy / "WORKSPACE", WORKSPACE)
    for repository in ("rules", "pypi"):
        write(tmp_path / repository / "WORKSPACE")
    write(tmp_path / "rules/python/BUILD")
    write(tmp_path / "rules/python/defs.bzl", RULES)
    for folder in (copy / "keras_dp").glob("*/__init__.py"):
        for label in build_files.dependencies(folder.parent, copy):
            if label.startswith("@pypi//"):
                name = label.removeprefix("@pypi//")
                write(tmp_path / "pypi" / name / "BUILD", LIBRARY.format(name))
    return copy


def query(workspace: Path, question: str) -> subprocess.CompletedProcess:
    root = workspace.parent / "output"
    options = ["--output_user_root", str(root), "--batch"]
    return subprocess.run(
        [BAZEL, *options, "query", "--noshow_progress", question],
        cwd=workspace,
        capture_output=True,
        text=True,
    )


def test_all_that_is_named_exists_without_a_cycle(workspace) -> None:
    answer = query(workspace, "deps(//...)")

    assert answer.returncode == 0, answer.stderr
    named = set(answer.stdout.split())
    for path in (ROOT / "keras_dp").rglob("*.py"):
        parts = path.relative_to(ROOT / "keras_dp").parts
        folder, rest = ("/" + parts[0], parts[1:]) if parts[1:] else ("", parts)
        assert f"//keras_dp{folder}:{'/'.join(rest)}" in named


def test_a_dependency_that_is_missing_is_found(workspace) -> None:
    shutil.rmtree(workspace / "keras_dp/noise")

    answer = query(workspace, "deps(//...)")

    assert answer.returncode != 0
    assert "keras_dp/noise" in answer.stderr
