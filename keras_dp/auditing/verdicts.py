"""Verdicts, the lower bounds in a ledger, and the epsilon it certifies."""

import dataclasses
import math
from collections.abc import Collection
from typing import cast

from keras_dp.accountants.claim import Claim, rounded_up
from keras_dp.accountants.normalize.adjacency import Neighbours
from keras_dp.accountants.normalize.spans import with_whole_spans
from keras_dp.accountants.replay import Replay
from keras_dp.auditing.lower_bound import LowerBound
from keras_dp.ledger import Opening, PrivacyLedger, Stated, Verdict


@dataclasses.dataclass(frozen=True, slots=True)
class Judgement:
    """A verdict, with the epsilon that the ledger certifies.

    Attributes:
        record: The verdict in the ledger.
        certified: The claim of the ledger for the rows before the seal of the
            verdict. It has the runs, the delta, the adjacency relation and the
            number of records of the verdict.
    """

    record: Stated[Verdict]
    certified: Claim

    @property
    def is_contradiction(self) -> bool:
        """Whether the lower bound or the p-value contradicts the ledger."""
        verdict = self.record.statement
        return verdict.rejects_claim or (
            self.certified.is_bound and verdict.epsilon > self.certified.epsilon
        )

    @property
    def sentence(self) -> str:
        """Both bounds in one line. The lower bound is rounded down."""
        verdict = self.record.statement
        text = (
            f"Audit in row {self.record.number}: epsilon >= "
            f"{rounded_down(verdict.epsilon)} with "
            f"{100 * verdict.confidence:.6g} % confidence by "
            f"{verdict.estimator}, certified epsilon <= "
            f"{rounded_up(self.certified.epsilon)}, at delta = "
            f"{verdict.delta!r}, {verdict.neighbours.replace('_', ' ')}"
        )
        if verdict.records > 1:
            text += f", {verdict.records:,} records together"
        if verdict.p_value is not None:
            text += f"; p-value of the certified claim {verdict.p_value:.2g}"
        if self.is_contradiction:
            text += ". THIS CONTRADICTS THE LEDGER"
        return text

    @property
    def warning(self) -> str:
        """The sentence, with the possible reasons of a contradiction."""
        often = 1 / (1 - self.record.statement.confidence)
        return (
            f"{self.sentence}. Either the training released more than the "
            "ledger records, or an assumption of the audit fails, or the audit "
            "is wrong by chance, as in at most one of "
            f"{often:.3g} correct trainings."
        )


def rounded_down(epsilon: float) -> str:
    """Returns a lower bound with four digits, rounded down."""
    return f"{math.floor(min(epsilon, 1e300) * 1e4) / 1e4:.4f}"


def write_verdict(
    ledger: PrivacyLedger,
    bound: LowerBound,
    *,
    p_value: float | None = None,
    runs: Collection[int] = (),
    records: int = 1,
    opening: Opening | None = None,
) -> Judgement:
    """Writes the result of an audit into a ledger, and compares both.

    The ledger is sealed first, and the verdict is about the rows before the
    seal. A verdict has no privacy loss. It remains in the chain of hashes.
    `keras-dp report` shows it beside epsilon, and fails if they contradict.

    Args:
        ledger: The ledger with all rounds whose releases the scores depend on.
        bound: The bound of an estimator, or of another test that names its
            assumptions.
        p_value: The result of `p_value_of_claim`, if the claim was tested. Each
            further test can raise a further false alarm.
        runs: The numbers of the runs whose releases were audited. By default,
            the audit is about all rounds.
        records: The number of records in one canary, >= 1.
        opening: The coins of the canaries, if the ledger has a commitment.

    Raises:
        LedgerWriteError: The verdict was not written.
        ValueError: The ledger has no such run, or the opening does not fit a
            commitment of the ledger.

    >>> from keras_dp.auditing import OneRun, Scores
    >>> from keras_dp.ledger import FullDataset, GaussianSum
    >>> ledger = PrivacyLedger.in_memory(dataset="doc")
    >>> ledger.record(FullDataset(), [GaussianSum("sum", 1.0, 4.0)])
    >>> scores = Scores([3.0] * 500, [0.0] * 500)
    >>> bound = OneRun().epsilon(scores, delta=1e-5)
    >>> write_verdict(ledger, bound).is_contradiction
    True
    """
    ledger.rounds_of(*runs)  # Raises for a run that it does not have.
    began = [each.row for each in ledger.runs if each.number in runs]
    seal = ledger.seal("for the verdict of an audit")
    record = ledger.write_verdict(
        Verdict(
            estimator=bound.estimator,
            statistic=bound.statistic,
            epsilon=float(bound.epsilon),
            delta=float(bound.delta),
            confidence=float(bound.confidence),
            neighbours=bound.neighbours,
            records=int(records),
            assumptions=tuple(bound.assumptions),
            p_value=None if p_value is None else float(p_value),
            runs=tuple(began),
            seal_row=seal.number,
            seal_hash=seal.hash,
            opening=opening,
        )
    )
    return _judged(ledger, record)


def judgements(ledger: PrivacyLedger) -> tuple[Judgement, ...]:
    """Returns all verdicts of a ledger, each with the certified epsilon."""
    return tuple(_judged(ledger, record) for record in ledger.verdicts)


def _judged(ledger: PrivacyLedger, record: Stated[Verdict]) -> Judgement:
    verdict = record.statement
    sealed = ledger.until(verdict.seal_row)
    rounds = sealed.rounds
    if verdict.runs:
        audited = [run for run in sealed.runs if run.row in verdict.runs]
        rounds = with_whole_spans(
            [pair for run in audited for pair in run.rounds], rounds
        )
    # A verdict is about the records of a canary, not about units.
    claim = Replay(rounds).claim(
        delta=verdict.delta,
        neighbours=cast(Neighbours, verdict.neighbours),
        units=verdict.records,
    )
    return Judgement(record, claim)
