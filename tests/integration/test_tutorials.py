"""The tutorials run, and their ledgers replay to what they print."""

import functools
import os
import re
import shutil
import tempfile
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from keras_dp.accountants import Fourier
from keras_dp.ledger import PoissonSampling, PoissonUserSampling, PrivacyLedger
from tests import programs
from tests.imports import ROOT
from tests.waiting import HUNG_SECONDS

# Scripts that share their options.
QUICK = {
    "abadi": "papers/abadi_mnist.py",
    "cifar10": "papers/abadi_cifar10.py",
    "nasr": "papers/nasr_mnist.py",
    "three_tools": "three_tools.py",
    "mcmahan": "papers/mcmahan_general.py",
}
# Those without. The others ask the same of mechanisms, models and audits with
# tests of their own.
EARLY = ("adult",)
LATE = (
    *("auditing", "fine_tuning", "gan", "mechanisms", "mnist"),
    "private_search",
)


class Finished(NamedTuple):
    """A tutorial that ran."""

    folder: Path
    text: str
    error: str
    code: int


def finished_of(name, folder, *arguments, **variables):
    """Runs a tutorial whose every default points into `folder`."""
    work = folder / "work"
    work.mkdir()
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", **variables}
    environment.pop("KERAS_DP_DATA", None)
    done = programs.python(
        ROOT / "tutorials" / name,
        *arguments,
        cwd=work,
        env=environment | {"TMPDIR": str(work), "PYTHONPATH": str(ROOT)},
        timeout=HUNG_SECONDS,
    )
    return Finished(folder, done.stdout, done.stderr, done.returncode)


def synthetic_mnist(path, train=96):
    """Writes a file in the form of `mnist.npz`, with 32 test images."""
    generator = np.random.default_rng(0)
    parts = {}
    for split, count in (("train", train), ("test", 32)):
        parts[f"x_{split}"] = generator.integers(
            0, 256, size=(count, 28, 28), dtype=np.uint8
        )
        parts[f"y_{split}"] = generator.integers(
            0, 10, size=count, dtype=np.uint8
        )
    np.savez(path, **parts)
    return path


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Runs a tutorial, once."""
    folders = {name: tmp_path_factory.mktemp(name) for name in EARLY + LATE}
    data = synthetic_mnist(folders["mnist"] / "tiny.npz")
    commands = {
        "adult": "adult_income.py --epochs 1 --out {folder}/out_adult",
        "mnist": f"mnist_dpsgd.py --data {data} --epochs 1 --batch 16",
        "mechanisms": f"mechanisms.py --data {data} --epochs 1 --batch 16 "
        "--only groups,adaptive,corrected",
        "gan": "gan.py --rounds 12 --out {folder}/out_gan",
        "auditing": "auditing.py --epochs 1 --canaries 1000 "
        "--out {folder}/out_auditing",
        "fine_tuning": "fine_tuning.py --quick",
        "private_search": "private_search.py --epochs 1 --trials 1.2 "
        "--out {folder}/out_search",
    }

    @functools.cache
    def run(name):
        folder = folders[name]
        program, *arguments = commands[name].format(folder=folder).split()
        return finished_of(program, folder, *arguments)

    return run


@pytest.fixture(scope="module")
def flower(tmp_path_factory):
    """Returns the tutorial of Flower, run with few users."""
    folder = tmp_path_factory.mktemp("flower")
    # Ray's sockets need short paths.
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp") as short:
        return finished_of(
            "flower.py",
            folder,
            *("--users", "6", "--rounds", "3"),
            RAY_TMPDIR=short,
        )


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    """Runs a script on a paper with `--quick`, once."""

    @functools.cache
    def run(name):
        folder = tmp_path_factory.mktemp(name)
        data = synthetic_mnist(folder / "small.npz", train=640)
        shutil.copy(data, folder / "fashion_mnist.npz")  # Public images.
        return finished_of(QUICK[name], folder, "--quick", "--data", str(data))

    return run


pytestmark = pytest.mark.full
WITH_LEDGER = pytest.mark.parametrize(
    "name",
    [
        "adult",
        pytest.param("mnist", marks=pytest.mark.nightly),
        pytest.param("gan", marks=pytest.mark.nightly),
    ],
)
CLAIM = re.compile(r"^epsilon <= (\S+) at delta = (\S+),", re.MULTILINE)
# ceil(records / expected batch), or as many as asked for.
ROUNDS = {"adult": 32, "mnist": 6, "gan": 12}


@pytest.mark.parametrize(
    "name",
    [*EARLY, *(pytest.param(name, marks=pytest.mark.nightly) for name in LATE)],
)
def test_a_tutorial_succeeds(finished, name) -> None:
    assert finished(name).code == 0, finished(name).error


def ledger_of(ran):
    """Returns the path that a tutorial prints."""
    path = re.search(r"^Ledger: +(.+)$", ran.text, re.MULTILINE)[1]
    return ran.folder / "work" / path


@pytest.mark.nightly
def test_the_tutorial_of_audits_finds_nothing(finished) -> None:
    ran = finished("auditing")
    text, path = ran.text, ledger_of(ran)

    with PrivacyLedger.open(path, mode="r") as ledger:
        epsilon = Fourier().epsilon(ledger, delta=1e-5)

    assert "No violation was found." in text
    bound = re.search(r"^The canaries show epsilon >= (.+)$", text, re.M)
    assert 0 <= float(bound[1]) < epsilon
    assert (path.parent / "audit.png").stat().st_size > 10_000


@WITH_LEDGER
def test_its_ledger_replays_to_the_epsilon_it_printed(finished, name) -> None:
    ran = finished(name)
    printed, delta = map(float, CLAIM.search(ran.text).groups())

    with PrivacyLedger.open(ledger_of(ran), mode="r") as ledger:
        rounds = ledger.rounds
        epsilon = Fourier().epsilon(ledger, delta=delta)
        unsettled = ledger.unsettled

    ((round_, count),) = rounds
    assert isinstance(round_.sampling, PoissonSampling)
    assert round_.sampling.drawn_by_library
    assert not round_.seeded
    assert (count, unsettled) == (ROUNDS[name], 0)
    assert epsilon <= printed < epsilon + 1.1e-4  # Printed rounded up.
    assert epsilon <= 2.9  # What all are calibrated to.


@pytest.mark.nightly
def test_the_tutorial_of_flower_counts_every_answer(flower) -> None:
    assert flower.code == 0, flower.error
    printed, delta = map(float, CLAIM.search(flower.text).groups())

    with PrivacyLedger.open(ledger_of(flower), mode="r") as ledger:
        ((round_, count),) = ledger.rounds
        epsilon = Fourier().epsilon(ledger, delta=delta)
        unsettled = ledger.unsettled

    assert (count, unsettled) == (3, 0)
    assert round_.sampling == PoissonUserSampling(0.5, drawn_by_library=True)
    assert epsilon <= printed < epsilon + 1.1e-4  # Printed rounded up.
    assert "not counted" not in flower.text + flower.error


@pytest.mark.parametrize(
    "name",
    [
        "abadi",
        *(
            pytest.param(name, marks=pytest.mark.nightly)
            for name in QUICK
            if name != "abadi"
        ),
    ],
)
def test_a_script_on_papers_draws_its_picture_in_its_folder(
    quick, name
) -> None:
    ran = quick(name)
    assert ran.code == 0, ran.error
    folder = ran.folder.resolve()
    path = re.search(r"^Picture: +(.+)$", ran.text, re.MULTILINE)[1]
    picture = folder / "work" / path

    assert picture.read_bytes().startswith(b"\x89PNG\r\n")
    assert picture.stat().st_size > 10_000  # More than an empty canvas.
    assert picture.is_relative_to(folder)


@pytest.mark.parametrize(
    "name", ["abadi", pytest.param("cifar10", marks=pytest.mark.nightly)]
)
def test_no_training_of_abadi_exceeds_the_epsilon_of_the_paper(
    quick, name
) -> None:
    rows = re.findall(
        r"^\d+% at (\S+)  .*  (\d+\.\d{4})  ", quick(name).text, re.MULTILINE
    )

    assert {float(stated) for stated, _ in rows} == {8}
    for stated, true in rows:
        assert float(stated) - 1e-3 < float(true) <= float(stated)
