"""Wheel and sdist hold the package, and install where nothing else is."""

import json
import os
import sys
import tarfile
import zipfile

import pytest

import keras_dp
from tests import programs
from tests.imports import ROOT

pytestmark = pytest.mark.full

REPOSITORY = "https://github.com/someone/keras_dp"
CORE = (ROOT / "tests/core_program.py").read_text("utf-8")
TRAINING = (ROOT / "tests/training_program.py").read_text("utf-8")


def run(*command, **options):
    done = programs.run(*command, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def build(out, mask=0o022):
    """Builds as a release does, from the last commit of a clone."""
    was = os.umask(mask)
    try:
        run(sys.executable, ROOT / ".ci/release.py", out, REPOSITORY)
    finally:
        os.umask(was)
    return out


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Returns the folder with wheel and sdist."""
    if not (ROOT / ".git").exists():
        pytest.skip("this is no clone")
    return build(tmp_path_factory.mktemp("dist"))


def python_files():
    listed = run("git", "ls-tree", "-r", "--name-only", "HEAD", cwd=ROOT)
    return {
        name
        for name in listed.splitlines()
        if name.startswith("keras_dp/") and name.endswith(".py")
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

    sources = {"LICENSE", "README.md", "pyproject.toml", "setup.py"}
    assert sources | python_files() | {"keras_dp/py.typed"} <= names


def test_the_same_commit_is_the_same_bytes(built, tmp_path) -> None:
    again = build(tmp_path / "again", mask=0o077)

    assert {path.name: path.read_bytes() for path in built.iterdir()} == {
        path.name: path.read_bytes() for path in again.iterdir()
    }


def test_the_page_on_the_index_links_to_the_repository(built) -> None:
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (n for n in archive.namelist() if n.endswith("/METADATA"))
        text = archive.read(name).decode()

    assert f"Project-URL: Repository, {REPOSITORY}\n" in text
    assert f"({REPOSITORY}/blob/v{keras_dp.__version__}/docs/start.md)" in text
    assert "](docs/" not in text
    assert '="docs/' not in text


def alone(folder):
    """Returns options of a process that sees nothing of this repository."""
    hidden = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
    rest = {k: v for k, v in os.environ.items() if k not in hidden}
    return {"cwd": folder, "env": rest}


def environment(folder, wheel, extra=""):
    """Returns the programs of a new environment with nothing but the wheel."""
    run(sys.executable, "-m", "venv", folder)
    pip = (folder / "bin/python", "-m", "pip", "--disable-pip-version-check")
    download = ("download", "--quiet", "--no-deps", "typing-extensions")
    if programs.run(*pip, *download, **alone(folder)).returncode:
        pytest.skip("pip reaches no index")
    install = (*pip, "install", "--quiet", "--no-compile")
    run(*install, f"{wheel}{extra}", **alone(folder))
    return folder / "bin"


@pytest.mark.nightly
def test_an_empty_environment_does_what_the_core_does(built, tmp_path) -> None:
    (wheel,) = built.glob("*.whl")
    empty = environment(tmp_path / "empty", wheel)
    (line,) = run(empty / "python", "-c", CORE, **alone(tmp_path)).splitlines()
    installed = json.loads(
        run(empty / "python", "-m", "pip", "list", "--format", "json")
    )

    assert json.loads(line)["epsilon"] == pytest.approx(1.0, abs=1e-3)
    assert {each["name"].lower() for each in installed} - {
        "pip",
        "setuptools",
    } == {"keras_dp", "numpy", "scipy"}
    said = run(empty / "keras-dp", "--version", **alone(tmp_path))
    assert said.strip() == keras_dp.__version__
    code = "import keras_dp; keras_dp.make_private"
    done = programs.run(empty / "python", "-c", code, **alone(tmp_path))
    assert done.returncode == 1
    assert '"keras_dp[cpu]"' in done.stderr.splitlines()[-1]


# pip takes a minute or two for TensorFlow.
@pytest.mark.nightly
def test_the_extra_for_processors_trains(built, tmp_path) -> None:
    (wheel,) = built.glob("*.whl")
    programs = environment(tmp_path / "cpu", wheel, "[cpu]")

    printed = run(programs / "python", "-c", TRAINING, **alone(tmp_path))

    assert "epsilon" in printed
    assert (tmp_path / "privacy.ledger").is_file()
    report = run(
        programs / "keras-dp", "report", "privacy.ledger", **alone(tmp_path)
    )
    assert "3.0" in report or "2.9" in report
