"""The rounds that a ledger holds before a training, said to a person."""

from keras_dp.accountants.claim import claim
from keras_dp.ledger import PrivacyLedger, ThresholdedSum
from keras_dp.training import PrivacyTarget


def shown_place(ledger: PrivacyLedger) -> str:
    """Returns where a ledger is kept."""
    return ledger.name or "in memory"


def held_rounds(ledger: PrivacyLedger, target: PrivacyTarget) -> str:
    """Returns how many rounds the ledger holds, and the epsilon of these."""
    if not len(ledger):
        return "none so far."
    return (
        f"{len(ledger):,} so far, of epsilon {_spent(ledger, target):.4g}. "
        "They count towards the target. If they are about other data, use "
        "another ledger."
    )


def why_no_noise_meets(ledger: PrivacyLedger, target: PrivacyTarget) -> str:
    """Returns what the rounds of a ledger leave of a target.

    Empty if it holds none. Otherwise it begins with a space.
    """
    if not len(ledger):
        return ""
    reasons = (
        f" The ledger {shown_place(ledger)} holds {len(ledger):,} rounds. At "
        f"this delta they have epsilon {_spent(ledger, target):.4g} by "
        "themselves. If they are about other data, use another ledger."
    )
    events = (event for held, _ in ledger.rounds for event in held.queries)
    if any(isinstance(event, ThresholdedSum) for event in events):
        reasons += (
            " A vocabulary was adapted in it, whose threshold takes a part of "
            "delta: choose a larger delta, or in a new ledger a smaller "
            "`threshold_delta` and more noise."
        )
    return reasons


def _spent(ledger: PrivacyLedger, target: PrivacyTarget) -> float:
    return claim(
        ledger,
        delta=target.delta,
        accountant=target.accountant,
        neighbours=target.neighbours,
        group_size=ledger.header.rows_per_unit,
    ).epsilon
