"""Trainings of the real Opacus and JAX Privacy, in environments of their own.

These have neither Keras nor TensorFlow for this library. They are made once,
with what `benchmarks/peers` measures.
"""

import os
import subprocess

import pytest

from tests import documents
from tests.imports import ROOT
from tests.waiting import HUNG_SECONDS


@pytest.fixture(scope="module")
def migration():
    """Returns the script that runs the peers' code of our pages."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "benchmarks" / "peers"))
        yield __import__("migration")


@pytest.fixture(scope="module", params=["opacus", "jax_privacy"])
def peer(request, migration):
    """Returns a peer and its Python, or skips where it cannot be installed."""
    try:
        return request.param, migration.environments.python(request.param)
    except (subprocess.SubprocessError, OSError) as error:
        pytest.skip(f"{request.param} cannot be installed: {error}")


# The guide below runs the same library, with fewer of its options.
@pytest.mark.nightly
def test_the_steps_of_the_real_library(peer) -> None:
    name, python = peer
    command = [
        *(python, "-m", "pytest", "-q", "--noconftest", "-c", os.devnull),
        *("--rootdir", str(ROOT), "-p", "no:cacheprovider"),
        str(ROOT / "tests" / "bridges" / f"{name}_steps.py"),
    ]

    ran = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=HUNG_SECONDS,
        check=False,
    )

    assert ran.returncode == 0, ran.stdout[-4_000:] + ran.stderr[-2_000:]
    assert " passed" in ran.stdout
    assert "skipped" not in ran.stdout


@pytest.mark.full
@pytest.mark.parametrize(
    "peer",
    ["opacus", pytest.param("jax_privacy", marks=pytest.mark.nightly)],
    indirect=True,
)
def test_the_code_of_its_guide_runs(peer, migration) -> None:
    """It prints the numbers that its comments state, too."""
    name, python = peer
    text = (ROOT / "docs" / "guides" / f"{name}.md").read_text("utf-8")
    blocks = documents.PEER.findall(text)

    answers = migration.answers(python, blocks, with_us=True)

    assert [each["error"] for each in answers] == [""] * len(blocks)
    printed = "".join(each["output"] for each in answers)
    assert documents.unprinted("\n".join(blocks), printed) == []
