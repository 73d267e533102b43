"""What all tests run under."""

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from keras_dp import _reproducible
from tests import postgres_server


@pytest.fixture(scope="session", autouse=True)
def _seeds_reproduce() -> Iterator[None]:
    """A test that fails by chance would fail again only with its seed."""
    with _reproducible.reproducible():
        yield


@pytest.fixture(scope="session", autouse=True)
def _full_precision() -> None:
    """Private training on a GPU must run without TensorFloat-32."""
    if shutil.which("nvidia-smi"):
        import tensorflow as tf

        tf.config.experimental.enable_tensor_float_32_execution(False)


@pytest.fixture(scope="session")
def server() -> Iterator[postgres_server.Server]:
    """A PostgreSQL server that runs; see `.ci/run` for its installation."""
    if postgres_server.programs() is None:
        if os.environ.get("KERAS_DP_NEEDS_POSTGRESQL"):
            pytest.fail("PostgreSQL is not installed.")
        pytest.skip("PostgreSQL is not installed: apt-get install postgresql")
    # The path of a socket must be short.
    folder = Path(tempfile.mkdtemp(prefix="pg-", dir="/tmp"))
    started = postgres_server.Server(folder)
    started.start()
    yield started
    started.stop()
    shutil.rmtree(folder)


@pytest.fixture(params=["file", pytest.param("server", marks=pytest.mark.full)])
def new_address(
    request: pytest.FixtureRequest, tmp_path: Path
) -> Callable[[], str]:
    """Gives the address of another new ledger with each call."""
    if request.param == "server":
        return request.getfixturevalue("server").new_url
    made: list[Path] = []

    def new_path() -> str:
        made.append(tmp_path / f"{len(made)}.ledger")
        return str(made[-1])

    return new_path


@pytest.fixture
def address(new_address: Callable[[], str]) -> str:
    """The address of a ledger that is not there yet, file or server."""
    return new_address()
