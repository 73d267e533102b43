"""Wheel and sdist hold the package, and install where nothing else is."""

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import keras_dp
from tests.imports import ROOT

pytestmark = pytest.mark.full

# What a build may read: no tests, and nothing that an earlier build left.
SOURCES = ("LICENSE", "README.md", "pyproject.toml", "setup.py")
# Records a round, and asks for epsilon, without TensorFlow.
PROGRAM = """
import sys
from keras_dp import accountants
from keras_dp.ledger import GaussianSum, PoissonSampling, PrivacyLedger

with PrivacyLedger.open("new.ledger", dataset="d", unit="person") as ledger:
    gradients = GaussianSum("gradients", 1.0, 4.0)
    ledger.record(PoissonSampling(0.01), [gradients], count=10_000)
    print(accountants.Fourier().epsilon(ledger, delta=1e-5))
assert "tensorflow" not in sys.modules
"""


def run(*command, **options):
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, **options
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Returns the folder with wheel and sdist."""
    source = tmp_path_factory.mktemp("source")
    for name in SOURCES:
        shutil.copy(ROOT / name, source)
    shutil.copytree(
        ROOT / "keras_dp",
        source / "keras_dp",
        ignore=shutil.ignore_patterns("__pycache__"),
    )
    out = tmp_path_factory.mktemp("dist")
    # The wheel is built from the sdist.
    uv = Path(sys.executable).with_name("uv")
    run(
        uv,
        "build",
        "--offline",
        "--no-build-isolation",
        "--python",
        sys.executable,
        "--out-dir",
        out,
        source,
    )
    return out


def python_files():
    return {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "keras_dp").rglob("*.py")
    }


def test_the_wheel_holds_the_package_and_its_types(built) -> None:
    (wheel,) = built.glob("*.whl")
    names = {*zipfile.ZipFile(wheel).namelist()}
    own = {name for name in names if name.endswith((".py", ".typed"))}

    assert wheel.name == f"keras_dp-{keras_dp.__version__}-py3-none-any.whl"
    assert own == python_files() | {"keras_dp/py.typed"}
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_the_sdist_holds_what_a_build_needs(built) -> None:
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}

    assert {*SOURCES, "keras_dp/py.typed"} | python_files() <= names


def alone(folder):
    """Returns options of a process that sees nothing of this repository."""
    hidden = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
    rest = {k: v for k, v in os.environ.items() if k not in hidden}
    return {"cwd": folder, "env": rest}


# pip takes a minute for an environment of its own.
@pytest.fixture(scope="module")
def empty(built, tmp_path_factory):
    """Returns the programs of a new environment with nothing but the wheel."""
    folder = tmp_path_factory.mktemp("empty")
    run(sys.executable, "-m", "venv", folder)
    (wheel,) = built.glob("*.whl")
    pip = (folder / "bin/python", "-m", "pip", "--disable-pip-version-check")
    index = subprocess.run(
        [*pip, "download", "--quiet", "--no-deps", "typing-extensions"],
        capture_output=True,
        check=False,
        **alone(folder),
    )
    if index.returncode:
        pytest.skip("pip reaches no index")
    run(*pip, "install", "--quiet", "--no-compile", wheel, **alone(folder))
    return folder / "bin"


@pytest.mark.nightly
def test_an_empty_environment_records_and_replays(empty, tmp_path) -> None:
    printed = run(empty / "python", "-c", PROGRAM, **alone(tmp_path))

    assert float(printed) == pytest.approx(0.946867, abs=1e-6)


@pytest.mark.nightly
def test_and_has_the_command_line(empty, tmp_path) -> None:
    said = run(empty / "keras-dp", "--version", **alone(tmp_path))

    assert said.strip() == keras_dp.__version__


@pytest.mark.nightly
def test_and_names_the_extra_for_tensorflow(empty, tmp_path) -> None:
    done = subprocess.run(
        [empty / "python", "-c", "import keras_dp; keras_dp.make_private"],
        capture_output=True,
        text=True,
        check=False,
        **alone(tmp_path),
    )

    assert done.returncode == 1
    assert "tensorflow" in done.stderr.splitlines()[-1].lower()
