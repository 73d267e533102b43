"""Ledgers in memory, in files and on a server."""

import pytest

from keras_dp.ledger import Header, PrivacyLedger
from keras_dp.ledger.places import connections, schema
from keras_dp.ledger.places.place import FileHandle, place_of


@pytest.fixture(
    params=["memory", "file", pytest.param("server", marks=pytest.mark.full)]
)
def handle(request, tmp_path):
    """Reads and writes the ledger below."""
    if request.param == "memory":
        connection = schema.new_database(Header("d").as_text())
        connections.adopt(connection)
        return FileHandle(connection, None, writable=True)
    place = place_of(tmp_path / "l.db")
    if request.param == "server":
        place = place_of(request.getfixturevalue("server").new_url())
    place.create(Header("d").as_text())
    return place.open(writable=True)


@pytest.fixture
def ledger(handle):
    with PrivacyLedger(handle) as opened:
        yield opened
