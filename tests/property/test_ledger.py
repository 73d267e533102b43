"""Laws of the ledger."""

import sqlite3

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from keras_dp.errors import LedgerIntegrityError
from keras_dp.ledger import (
    FullDataset,
    GaussianSum,
    Header,
    PrivacyLedger,
    Round,
)
from keras_dp.ledger.places import connections, schema
from keras_dp.ledger.places.place import FileHandle

BODIES = [GaussianSum("g", 1.0, float(stddev)) for stddev in range(3)]
BODY = st.sampled_from(range(3))
COUNT = st.one_of(st.integers(1, 5), st.integers(1, 2**40))
PART = st.floats(0, 1)


class Model:
    """The slow, obvious ledger: a list of (body, count, is reserved)."""

    def __init__(self) -> None:
        self.parts: list[list] = []

    def add(self, body: int, count: int, *, reserved: bool) -> list:
        part = [body, count, reserved]
        self.parts.append(part)
        return part

    def merged(self) -> list[tuple[int, int]]:
        merged: list[tuple[int, int]] = []
        for body, count, _ in self.parts:
            if not count:
                continue
            if merged and merged[-1][0] == body:
                count += merged.pop()[1]
            merged.append((body, count))
        return merged


class LedgerMachine(RuleBasedStateMachine):
    """Any sequence of acts, by two handles, counts as the model does."""

    def __init__(self, address: str) -> None:
        super().__init__()
        self.address = address
        self.memory = PrivacyLedger.in_memory(dataset="d")
        self.disk = [PrivacyLedger.open(address, dataset="d")]
        self.disk.append(PrivacyLedger.open(address))
        self.model = Model()
        self.blocks: list[tuple] = []

    def teardown(self) -> None:
        for ledger in (self.memory, *self.disk):
            ledger.close()

    @rule(body=BODY, count=COUNT, writer=st.integers(0, 1))
    def record(self, body: int, count: int, writer: int) -> None:
        for ledger in (self.memory, self.disk[writer]):
            ledger.record(FullDataset(), [BODIES[body]], count=count)
        self.model.add(body, count, reserved=False)

    @rule(body=BODY, count=COUNT, writer=st.integers(0, 1))
    def reserve(self, body: int, count: int, writer: int) -> None:
        round_ = Round(FullDataset(), [BODIES[body]])
        blocks = [
            ledger.start_run("a") for ledger in (self.memory, self.disk[writer])
        ]
        for block in blocks:
            block.cover(round_, count)
        part = self.model.add(body, count, reserved=True)
        self.blocks.append((blocks, part))

    @precondition(lambda self: self.blocks)
    @rule(data=st.data(), part=PART)
    def settle(self, data, part: float) -> None:
        blocks, reserved = self.blocks.pop(self._choose(data))
        used = round(part * reserved[1])
        for block in blocks:
            block.settle(used=used)
        reserved[1:] = used, False

    @precondition(lambda self: self.blocks)
    @rule(data=st.data(), part=PART, count=COUNT)
    def renew(self, data, part: float, count: int) -> None:
        blocks, reserved = self.blocks.pop(self._choose(data))
        used = round(part * reserved[1])
        round_ = Round(FullDataset(), [BODIES[reserved[0]]])
        for block in blocks:
            if used < reserved[1]:
                block.settle(used)
            block.cover(round_, count, most=count)
        reserved[1:] = used, False
        following = self.model.add(reserved[0], count, reserved=True)
        self.blocks.append((blocks, following))

    @rule(writer=st.integers(0, 1))
    def reopen(self, writer: int) -> None:
        """What was reserved by the closed handle stays reserved."""
        self.disk[writer].close()
        self.disk[writer] = PrivacyLedger.open(self.address, dataset="d")
        self.blocks = []

    @invariant()
    def everyone_counts_alike(self) -> None:
        merged = self.model.merged()
        expected = [(BODIES[body], count) for body, count in merged]
        reserved = sum(part[1] for part in self.model.parts if part[2])
        for ledger in (self.memory, *self.disk):
            counted = [(part.round.queries[0], part.count) for part in ledger]
            assert counted == expected
            assert len(ledger) == sum(count for _, count in merged)
            assert ledger.unsettled == reserved
            assert ledger.verify().rounds == len(ledger)

    def _choose(self, data) -> int:
        return data.draw(st.integers(0, len(self.blocks) - 1))


def test_every_ledger_counts_as_the_model(new_address) -> None:
    # A server answers a thousand questions in the time of ten thousand.
    is_server = new_address().startswith("postgresql:")
    run_state_machine_as_test(
        lambda: LedgerMachine(new_address()),
        settings=settings(
            max_examples=8 if is_server else 40,
            stateful_step_count=15,
        ),
    )


FIELDS = [
    *(("log", name) for name in ("seq", "kind", "body", "count", "target")),
    ("log", "hash"),
    ("bodies", "id"),
    ("bodies", "body"),
    ("meta", "key"),
    ("meta", "value"),
]
VALUE = st.one_of(
    st.integers(-(2**63), 2**63 - 1),
    st.integers(-1, 6),
    st.sampled_from(
        ["", "0", "record", "reserve", "settle", "head", "rows", "writer"]
    ),
    st.text(st.characters(exclude_categories=["Cs"])),
    st.none(),
)


@pytest.mark.full
@settings(max_examples=500)
@given(field=st.sampled_from(FIELDS), row=st.integers(0, 4), value=VALUE)
def test_verify_finds_any_edited_field(
    field: tuple[str, str], row: int, value: object
) -> None:
    """Every field of every row is covered by the chain of hashes."""
    table, column = field
    connection = schema.new_database(Header("d").as_text())
    connections.adopt(connection)
    with PrivacyLedger(FileHandle(connection, None, writable=True)) as ledger:
        ledger.record(FullDataset(), [BODIES[0]], count=2)
        block = ledger.start_run("a")
        block.cover(Round(FullDataset(), [BODIES[1]]), 3)
        ledger.start_run("a").cover(Round(FullDataset(), [BODIES[1]]), 3)
        ledger.record(FullDataset(), [BODIES[2]], count=3)
        block.settle(used=1)
        before = connection.execute(f"SELECT * FROM {table}").fetchall()
        ids = connection.execute(f"SELECT rowid FROM {table}").fetchall()
        try:
            connection.execute(
                f"UPDATE {table} SET {column} = ? WHERE rowid = ?",
                [value, *ids[row % len(ids)]],
            )
        except sqlite3.IntegrityError:
            assume(False)  # The schema does not let such a value in.
        after = connection.execute(f"SELECT * FROM {table}").fetchall()

        try:
            ledger.verify()
            is_found = False
        except LedgerIntegrityError:
            is_found = True

        assert is_found == (set(before) != set(after))
