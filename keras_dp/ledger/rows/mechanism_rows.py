"""The rows of mechanisms with correlated noise, which a ledger keeps in order.

The price of a mechanism holds for its rows as they were planned: each of them
once, in order, by the process that holds the secret noise, over samples of one
kind. A ledger therefore refuses all other rounds before they are released.
"""

import dataclasses
import os
from collections.abc import Iterable

from keras_dp.errors import LedgerWriteError
from keras_dp.ledger.events.rounds import (
    CorrelatedSum,
    CyclicPoissonSampling,
    DisjointBatches,
    Round,
    SamplingEvent,
)
from keras_dp.ledger.rows.author import Author
from keras_dp.ledger.rows.codec import round_from_text
from keras_dp.ledger.rows.row import CountedBody

# In the text of a round that has such a row.
MARK = f'"kind":"{CorrelatedSum.kind}"'


def mechanism_ids(body: str) -> list[str]:
    """Returns the ids of the mechanisms of a round, given as text."""
    return [*_events(round_from_text(body))] if MARK in body else []


def check_next_rows(
    body: str,
    run: int | None,
    count: int,
    mechanism_id: str,
    before: Iterable[CountedBody],
) -> None:
    """Raises unless rounds are the next rows of a mechanism.

    `run` is the row in which their run began. The rounds of the mechanism
    before them include reserved ones.
    """
    added = round_from_text(body)
    event, sampling = _events(added)[mechanism_id], added.sampling
    ran, first = 0, sampling
    for each in before:
        earlier = round_from_text(each.body)
        found = _events(earlier)[mechanism_id]
        first = earlier.sampling if not ran else first
        ran += each.count
        if each.run != run:
            raise _refused(
                mechanism_id,
                "rounds of one run, whose process has its noise",
                f"rounds of run {run} after rounds of run {each.run}",
            )
        if dataclasses.replace(found, name=event.name) != event:
            raise _refused(
                mechanism_id,
                "one bound, noise and strategy",
                f"{event!r} after {found!r}",
            )
        if _kind(earlier.sampling) != _kind(sampling):
            raise _refused(
                mechanism_id,
                "samples of one kind and of one draw of classes",
                f"{sampling!r} after {earlier.sampling!r}",
            )
    if ran + count > event.rounds:
        raise _refused(
            mechanism_id,
            f"at most {event.rounds:,} rounds",
            f"{count:,} rounds after {ran:,}",
        )
    if not isinstance(sampling, CyclicPoissonSampling):
        return
    start = first.cycle if isinstance(first, CyclicPoissonSampling) else 0
    cycles, of_cycle = divmod(ran, sampling.classes)
    if sampling.cycle != start + cycles or of_cycle + count > sampling.classes:
        raise _refused(
            mechanism_id,
            "one round for each class in turn, from the first round of a cycle",
            f"{count:,} rounds of cycle {sampling.cycle} after {ran:,} rounds "
            f"from cycle {start} on",
        )


def check_holder(mechanism_id: str, author: Author) -> None:
    """Raises unless this process ran the first row of a mechanism.

    The author had the run at that row. Its noise is never saved. Another
    process that continues the run has other noise, or the same noise once more.
    """
    if not author.is_this_process():
        raise _refused(
            mechanism_id,
            "rounds of one process, which alone has its noise",
            f"rounds of process {os.getpid()} after rounds of process "
            f"{author.process} on {author.host!r}",
        )


def _events(round_: Round) -> dict[str, CorrelatedSum]:
    return {
        each.mechanism_id: each
        for each in round_.queries
        if isinstance(each, CorrelatedSum)
    }


def _kind(sampling: SamplingEvent) -> object:
    """Returns what stays the same while a mechanism lasts."""
    if isinstance(sampling, DisjointBatches):
        return DisjointBatches
    if isinstance(sampling, CyclicPoissonSampling):
        return dataclasses.replace(sampling, epoch_id=f"{sampling.draw_id}-0")
    return sampling


def _refused(mechanism_id: str, rule: str, received: str) -> LedgerWriteError:
    return LedgerWriteError(
        f"The mechanism {mechanism_id} must have {rule}. Received: {received}. "
        "Nothing may be released. Make a new CorrelatedSumQuery for a new "
        "training, and run all rounds of a mechanism in one call of `fit`."
    )
