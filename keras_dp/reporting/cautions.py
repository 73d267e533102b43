"""Says what a reader must know before believing the numbers of a ledger."""

import math
from collections.abc import Iterator, Sequence

from keras_dp.accountants.normalize.mechanisms import Exposure
from keras_dp.accountants.normalize.release import released
from keras_dp.accountants.normalize.truncation import truncation_exposure
from keras_dp.accountants.replay import Replay
from keras_dp.budgets import Guarantee
from keras_dp.ledger import (
    CountedRound,
    RunRecord,
    Selection,
    ThresholdedSum,
    TruncatedPoissonSampling,
)
from keras_dp.ledger.rows.header import UNITS_OF_ROWS
from keras_dp.reporting.wording import (
    at_most,
    count_of,
    counted,
    libraries_of,
    not_checked,
    rounds_of_whole_units,
    with_trials,
)

# From here on delta must be pointed out.
_LARGE_DELTA = 0.01

# Limits of every number of a ledger, whatever the ledger holds.
INFERENCE = (
    "What the releases teach about people in general can affect a person whose "
    "data were never used."
)
OTHER_RELEASES = (
    "Releases of the same data that are not in this ledger come on top: "
    "metrics of validation records and choices made by them, such as when to "
    "stop; and layers, weights and settings that were adapted, trained or "
    "tuned without this ledger."
)
# A person who signs must know all of them.
LIMITS = (
    INFERENCE,
    OTHER_RELEASES,
    "The releases are protected, and nothing else: not the records, the memory "
    "of the machine, or the time that a computation takes.",
    "The theorems are about real numbers, and sums are floating-point numbers. "
    "That rounding moves no sum beyond its bound is proven for the rounds of "
    "which the report says so, and assumed for others. Attacks on the low bits "
    "of noised numbers are ruled out for Gaussian noise that this library "
    "drew, and not for other noise or other libraries.",
    "The number of records and of units is public: noise, sampling and delta "
    "are chosen by it, and with few units delta is large.",
    "A ledger does not prove that every release was recorded, that a unit is "
    "what its name says, or that the program did what it recorded. Whoever "
    "can write the whole ledger can forge it: keep a signed certificate where "
    "they cannot change it.",
    "Whether a risk is acceptable, and whether a law is kept, is for people to "
    "decide. No number here decides it.",
)


def cautions(replay: Replay, guarantee: Guarantee) -> tuple[str, ...]:
    """Returns sentences that say what the numbers assume or leave open."""
    return (
        *_of_the_theorem(guarantee),
        *_of_rounds(replay.rounds, replay.rows_per_unit),
        *_of_runs(replay.runs),
        *taken_on_trust(replay, replay.rounds),
    )


def taken_on_trust(
    replay: Replay, rounds: Sequence[CountedRound]
) -> Iterator[str]:
    """Yields what no row of a ledger shows of the rounds that count."""
    searches = count_of(
        rounds, lambda each: isinstance(each.queries[0], Selection)
    )
    if searches:
        which = (
            "a search" if searches == 1 else f"each of {searches:,} searches"
        )
        yield (
            f"Nobody may learn how many trials {which} had, or what a trial "
            "gave that did not win: not from logs, files or times either. "
            "Epsilon counts on that."
        )
    declared = count_of(
        with_trials(rounds),
        lambda each: (
            each.sampling.is_verified and not each.sampling.drawn_by_library
        ),
    )
    if declared:
        yield (
            f"The sampling of {counted(declared, 'round')} is as somebody "
            "declared it: no sampler of this library drew the records."
        )
    seeded = count_of(rounds, lambda each: each.seeded)
    if seeded:
        yield (
            f"{counted(seeded, 'round')} had a seed that the caller chose. If "
            "that was inside of reproducible(), or in another library, the "
            "guarantee holds only against those who cannot know the seed; and "
            "two runs of one seed have the same noise, so that the difference "
            "of their answers reveals the clipped sum. No epsilon covers that."
        )
    elsewhere = [run for run in replay.runs if libraries_of([run])]
    if elsewhere:
        ran = counted(sum(map(len, elsewhere)), "round")
        yield not_checked(ran, libraries_of(elsewhere))
    unit = replay.header.unit
    if unit == "microbatch":
        yield (
            "The unit is a microbatch, a group of records that are drawn "
            "together: one person may be in several of them."
        )
    elif unit not in UNITS_OF_ROWS:
        yield _declared_of_units(unit, replay.rows_per_unit, rounds)


def _of_the_theorem(guarantee: Guarantee) -> Iterator[str]:
    if not guarantee.is_unconditional:
        yield (
            "Nothing in the ledger shows what the theorem takes for granted: "
            "ask the people who made the runs. If plans are written, or "
            "accounts are opened, before the first round, nothing is taken for "
            "granted."
        )
    if (delta := guarantee.claim.delta) > _LARGE_DELTA:
        yield (
            f"Delta is {delta:g}, which is large: with this probability the "
            "bound on epsilon may fail, and a mechanism may publish one of "
            f"{math.ceil(1 / delta):,} units. Only data of very few units have "
            "such a default, and their number is public."
        )
    if guarantee.ex_post is not None:
        yield (
            "The epsilon of the rounds that ran is known after the fact (ex "
            "post), and is no guarantee. Publish the first one."
        )


def _of_rounds(
    rounds: Sequence[CountedRound], rows_per_unit: int
) -> Iterator[str]:
    bare = count_of(
        rounds,
        lambda each: not all(query.is_private for query in each.queries),
    )
    if bare:
        yield (
            f"{counted(bare, 'round')} released a sum without noise: nothing "
            "protects it."
        )
    exposure = sum(
        count
        * Exposure(
            (released(each.queries).thresholds,), records=rows_per_unit
        ).chance
        for each, count in rounds
        if any(isinstance(query, ThresholdedSum) for query in each.queries)
    )
    if exposure:
        alone = "one record holds"
        if rows_per_unit > 1:
            alone = f"{rows_per_unit} records of one unit hold"
        yield (
            f"Thresholds can let through what {alone} alone: up to "
            f"{at_most(exposure, 2)} of delta pays for that, whatever epsilon "
            "is."
        )
    overflow = sum(
        count * truncation_exposure(each.sampling)
        for each, count in rounds
        if isinstance(each.sampling, TruncatedPoissonSampling)
    )
    if overflow:
        together = ""
        if rows_per_unit > 1:
            together = (
                f". This is for one record; for {rows_per_unit} records of one "
                "unit it is more"
            )
        yield (
            f"Samples were truncated: up to {at_most(overflow, 2)} of delta "
            f"pays for that, or less noise where it costs less{together}."
        )
    unverified = count_of(
        with_trials(rounds), lambda each: not each.sampling.is_verified
    )
    if unverified:
        yield (
            f"The sampling of {counted(unverified, 'round')} was not verified: "
            "no amplification is counted, and the guarantee is for replacing "
            "or zeroing a record, not for adding or removing one."
        )


def _of_runs(runs: Sequence[RunRecord]) -> Iterator[str]:
    for run in runs:
        name = f"run {run.number} ({run.name})"
        if run.unsettled:
            yield _unsettled(run, name)
        elif run.state == "running":
            yield f"The process of {name} is running: the numbers may grow."
        elif run.state == "died" and run.outcome is None:
            yield (
                f"The process of {name} died. All that it may have released "
                "counts."
            )


def _unsettled(run: RunRecord, name: str) -> str:
    counts = f"The ledger counts {counted(run.unsettled, 'round')}"
    reserved = f"{counts} that the process of {name} reserved"
    if run.state in ("running", "planned"):
        return f"{reserved}. It is running, and the numbers may change."
    if run.state == "unknown":
        return (
            f"{reserved} and did not settle: it runs on another machine, or it "
            "died."
        )
    ended = "died" if run.outcome is None else "ended"
    return (
        f"{reserved} and did not settle before it {ended}. Some of them may "
        "never have run."
    )


def _declared_of_units(
    unit: str, rows_per_unit: int, rounds: Sequence[CountedRound]
) -> str:
    """Returns a sentence on the rows of a unit, which were only declared."""
    whole = rounds_of_whole_units(rounds)
    others = sum(count for _, count in with_trials(rounds)) - whole
    rows = counted(rows_per_unit, "row")
    declared = "was declared, and not checked."
    if not whole:
        return f"That one {unit} has at most {rows} of the data {declared}"
    if not others:
        return (
            f"Each {unit} was drawn with all of its rows. To which {unit} a "
            f"row belongs {declared}"
        )
    return (
        f"{counted(whole, 'round')} drew each {unit} with all of its rows, and "
        f"{counted(others, 'round')} took each row for one. To which {unit} a "
        f"row belongs, and that in the latter one {unit} has at most {rows}, "
        f"{declared}"
    )
