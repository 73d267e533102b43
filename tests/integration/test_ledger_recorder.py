"""Rounds of a block belong to the process that reserved it."""

from keras_dp.errors import LedgerWriteError
from keras_dp.ledger import FullDataset, GaussianSum, PrivacyLedger, Round
from keras_dp.training import recording
from keras_dp.training.run import TrainingRun
from tests.ledger_faults import in_a_fork

QUERIES = (GaussianSum("gradients", 1.0, 4.0),)


def test_a_forked_process_does_not_use_the_rounds_of_its_parent(
    tmp_path, monkeypatch
) -> None:
    monkeypatch.setattr(recording, "LARGEST_BLOCK", 4)
    with PrivacyLedger.open(tmp_path / "l.db", dataset="d") as ledger:
        recorder = recording.RoundRecorder(
            TrainingRun(ledger),
            lambda: Round(FullDataset(), QUERIES),
            events_of=lambda event: event,
        )
        for _ in range(2):  # The second block has room for more.
            recorder.cover()
            recorder.released(QUERIES)

        def is_refused() -> bool:
            try:
                recorder.cover()
            except LedgerWriteError as error:
                return "forked" in str(error)
            return False

        assert in_a_fork(is_refused) == 0
        recorder.cover()
        recorder.released(QUERIES)
        recorder.settle()
        assert len(ledger) == 3
