"""Trainings of the real Opacus and JAX Privacy, in environments of their own.

These have neither Keras nor TensorFlow for this library. They are made once,
with what `benchmarks/peers` measures.
"""

import json
import os
import subprocess

import pytest

from tests import documents
from tests.imports import ROOT

pytestmark = pytest.mark.full

BENCHMARKS = ROOT / "benchmarks"
SECONDS = 900


@pytest.fixture(scope="module", params=["opacus", "jax_privacy"])
def peer(request):
    """Returns a peer and its Python, or skips where it cannot be installed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        peers = __import__("peers.environments").environments
        try:
            return request.param, peers.python(request.param)
        except (subprocess.SubprocessError, OSError) as error:
            pytest.skip(f"{request.param} cannot be installed: {error}")


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
        timeout=SECONDS,
        check=False,
    )

    assert ran.returncode == 0, ran.stdout[-4_000:] + ran.stderr[-2_000:]
    assert " passed" in ran.stdout
    assert "skipped" not in ran.stdout


def test_the_code_of_its_guide_runs(peer, tmp_path) -> None:
    """It prints the numbers that its comments state, too."""
    name, python = peer
    text = (ROOT / "docs" / "guides" / f"{name}.md").read_text("utf-8")
    blocks = documents.PEER.findall(text)
    (tmp_path / "data").symlink_to(ROOT / "data")

    ran = subprocess.run(
        [python, str(BENCHMARKS / "peers" / "run_blocks.py")],
        input=json.dumps(blocks),
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )

    answers = [json.loads(line) for line in ran.stdout.splitlines()]
    assert [each["error"] for each in answers] == [""] * len(blocks), ran.stderr
    printed = "".join(each["output"] for each in answers)
    assert documents.unprinted("\n".join(blocks), printed) == []
