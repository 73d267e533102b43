"""Bazel finds what the BUILD file names."""

import re
import shutil
import subprocess

import pytest

from tests.imports import ROOT
from tests.unit.house.test_core import PACKAGES

BAZEL = shutil.which("bazel")
# Stands for the rules of Python and for PyPI, which a workspace would load.
RULES = """\
def py_library(**attributes):
    native.py_library(**attributes)

def py_test(**attributes):
    native.py_test(**attributes)
"""
LIBRARY = 'py_library(name = "{}", visibility = ["//visibility:public"])\n'
WORKSPACE = """\
local_repository(name = "rules_python", path = "../rules")
local_repository(name = "pypi", path = "../pypi")
"""

pytestmark = [
    pytest.mark.nightly,
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
    """A copy of what the BUILD file names, beside empty dependencies."""
    copy = tmp_path / "workspace"
    for name in ("keras_dp", "data", "tests"):
        ignore = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, copy / name, ignore=ignore)
    for name in ("BUILD", "LICENSE", "pyproject.toml", "conftest.py"):
        shutil.copy(ROOT / name, copy / name)
    write(copy / "WORKSPACE", WORKSPACE)
    for repository in ("rules", "pypi"):
        write(tmp_path / repository / "WORKSPACE")
    write(tmp_path / "rules/python/BUILD")
    write(tmp_path / "rules/python/defs.bzl", RULES)
    for name in re.findall(r"@pypi//(\w+)", (ROOT / "BUILD").read_text()):
        write(tmp_path / "pypi" / name / "BUILD", LIBRARY.format(name))
    return copy


def query(workspace, question):
    root = workspace.parent / "output"
    options = ["--output_user_root", str(root), "--batch"]
    return subprocess.run(
        [BAZEL, *options, "query", "--noshow_progress", question],
        cwd=workspace,
        capture_output=True,
        text=True,
    )


def test_each_file_is_in_one_library(workspace) -> None:
    assert query(workspace, "deps(//:training)").returncode == 0
    assert query(workspace, "labels(srcs, //:tests)").returncode == 0
    core, training = (
        {*query(workspace, f"labels(srcs, //:{name})").stdout.split()}
        for name in ("core", "training")
    )
    files = {
        f"//:{p.relative_to(ROOT)}" for p in ROOT.rglob("keras_dp/**/*.py")
    }

    assert core | training == files
    assert core & training == set()
    # The core has the packages that are tested without TensorFlow.
    assert {path.split("/")[3] for path in core if path.count("/") > 3} == {
        *PACKAGES
    }


def test_a_dependency_that_is_missing_is_found(workspace) -> None:
    shutil.rmtree(workspace.parent / "pypi/keras")

    answer = query(workspace, "deps(//:training)")

    assert answer.returncode != 0
    assert "keras" in answer.stderr
