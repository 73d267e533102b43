"""What all tests run under."""

from collections.abc import Iterator

import pytest

from keras_dp import _reproducible


@pytest.fixture(scope="session", autouse=True)
def _seeds_reproduce() -> Iterator[None]:
    """A test that fails by chance would fail again only with its seed."""
    with _reproducible.reproducible():
        yield
