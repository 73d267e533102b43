"""Reports of a ledger: who spent what privacy, and which theorem covers it."""

import dataclasses
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from keras_dp import _check
from keras_dp._version import __version__
from keras_dp.accountants import Accountant, available_accountants
from keras_dp.accountants.claim import rounded_up
from keras_dp.accountants.normalize.rounds import Neighbours
from keras_dp.accountants.replay import Replay
from keras_dp.budgets import Guarantee, guarantee
from keras_dp.errors import UnsupportedEventError
from keras_dp.ledger import (
    CountedRound,
    CyclicPoissonSampling,
    DisjointBatches,
    Header,
    PrivacyLedger,
    Round,
    RunRecord,
    SamplingEvent,
    SealRecord,
    Verification,
)
from keras_dp.ledger.rows.codec import content_from_round
from keras_dp.ledger.rows.header import UNITS_OF_ROWS
from keras_dp.reporting.account_state import (
    account_states,
    account_table,
)
from keras_dp.reporting.cautions import cautions
from keras_dp.reporting.document import (
    Document,
    Part,
    Table,
    Text,
    json_claim,
    json_number,
)
from keras_dp.reporting.explanation import (
    meaning_of,
    plain_words,
    sentences_of,
)
from keras_dp.reporting.run_costs import (
    RunCost,
    run_costs,
    run_table,
)
from keras_dp.reporting.wording import (
    count_of,
    counted,
    finite_precision,
    moment,
    proven_rounds,
    rounds_of_whole_units,
)

# The runs of a ledger with accounts cost less than the accounts promise.
SO_FAR = (
    "These are composed as if fixed in advance. The promise of the accounts "
    "holds in any case."
)
# Runs that are listed; `keras-dp runs` lists all.
_MOST_RUNS = 20
# With adaptive clipping, every round of a run is of another kind.
_MOST_ROUNDS = 10
_IN_PASSES = CyclicPoissonSampling | DisjointBatches


def make_report(
    ledger: PrivacyLedger,
    *,
    delta: float,
    neighbours: Neighbours | None = None,
    accountants: tuple[Accountant, ...] | None = None,
    units: int = 1,
    details: bool = False,
) -> Document:
    """Returns the report of a ledger.

    Its facts are what programs read: exact numbers, an infinite epsilon as the
    text `inf`, and rounds as in the ledger. Printed, epsilons are rounded up.

    Args:
        ledger: The ledger, with its runs, plans and accounts.
        delta: The delta of each epsilon, in (0, 1).
        neighbours: The adjacency relation; by default the strongest that all
            rounds support. Promises of accounts have their own relation.
        accountants: The accountants that are asked; by default all that can
            replay the rounds. The guarantee always comes from the tightest
            accountant, or from the promises of accounts.
        units: The number of units that are protected together, >= 1.
        details: Whether to compute what takes a while: the explanation, and a
            check of every row.

    Raises:
        UnsupportedEventError: One of the given `accountants` has no bound for a
            round. By default, the report says so instead.
        ValueError: An argument is out of its range.

    >>> from keras_dp.ledger import GaussianSum, PoissonSampling
    >>> ledger = PrivacyLedger.in_memory(dataset="paper")
    >>> ledger.record(PoissonSampling(0.01, drawn_by_library=True),
    ...               [GaussianSum("gradients", 1.0, 4.0)], count=10_000)
    >>> report = make_report(ledger, delta=1e-5)
    >>> report.facts["guarantee"]["sentence"]
    'epsilon <= 0.9469 at delta = 1e-05, add or remove one example, certified...
    >>> print(report)
    With all that was released, a bet on whether the data of one example are ...
    """
    _check.integer_at_least(1, units=units)
    replay = Replay(ledger)
    question: dict[str, Any] = {
        "delta": delta,
        "neighbours": neighbours,
        "units": units,
    }
    found = guarantee(replay, **question)
    relation = found.claim.neighbours
    if found.basis == "account":
        relation = _relation(replay, neighbours)
    costs = _costs(replay, relation, accountants, delta=delta, units=units)
    runs, accounts = run_costs(replay, **question), account_states(ledger)
    words, warnings = plain_words(replay, found), cautions(replay, found)
    claim = words, *found.sentences(ledger.header.unit)
    parts: list[Part] = [
        Text("", claim, "claim"),
        Text("", tuple(_summary(replay, runs))),
    ]
    facts = {
        **_of_ledger(ledger, replay),
        "units": int(units),
        "guarantee": _of_guarantee(found, words, ledger.header.unit),
        "delta": float(delta),
        "neighbours": relation,
        "epsilon": {name: json_number(each) for name, each in costs.items()},
        "cautions": list(warnings),
        "runs": [each.as_dict() for each in runs],
        "accounts": [each.as_dict() for each in accounts],
    }
    if warnings:
        parts.append(Text("Before you believe it", warnings, "warning"))
    if any(each.run.number for each in runs):
        parts.append(_last_runs(runs, found))
    if accounts:
        parts.append(account_table(accounts))
    if seals := ledger.seals:
        parts.append(_seal_table(seals))
    about: list[Part] = []
    if details:
        meaning, verified = meaning_of(replay, found), ledger.verify()
        parts += meaning
        about += _about(verified, facts["versions"])
        facts["explanation"] = sentences_of(meaning)
        facts["rows"], facts["head"] = verified.rows, verified.head
    parts.append(round_table(replay.rounds))
    if costs:
        together = ledger.header.rows_per_unit * int(units)
        parts.append(_cost_table(costs, float(delta), relation, together))
    facts["rounds"] = [
        {"count": count, **content_from_round(each)}
        for each, count in replay.rounds
    ]
    return Document(
        f"Privacy report of the data set {ledger.header.dataset}",
        (*parts, *about),
        facts,
    )


def _of_ledger(ledger: PrivacyLedger, replay: Replay) -> dict[str, Any]:
    """Returns the facts that no question changes."""
    rounds = replay.rounds
    return {
        "dataset": ledger.header.dataset,
        "unit": ledger.header.unit,
        "rows_per_unit": ledger.header.rows_per_unit,
        "ledger": ledger.name,
        "total_rounds": sum(count for _, count in rounds),
        "unsettled_rounds": ledger.unsettled,
        "seeded_rounds": count_of(rounds, lambda each: each.seeded),
        "proven_rounds": proven_rounds(rounds),
        "seals": [each._asdict() for each in ledger.seals],
        "versions": _versions(replay.runs),
    }


def _of_guarantee(found: Guarantee, words: str, unit: str) -> dict[str, Any]:
    return {
        **json_claim(found.claim),
        "plain_words": words,
        "sentence": found.claim.sentence(unit),
        "basis": found.basis,
        "theorem": found.theorem,
        "ex_post": None if found.ex_post is None else json_claim(found.ex_post),
    }


def _summary(replay: Replay, runs: Sequence[RunCost]) -> Iterator[str]:
    header, rounds = replay.header, replay.rounds
    yield f"Data set {header.dataset}, privacy unit: {_unit(header, rounds)}"
    total = sum(count for _, count in rounds)
    size, of_runs = counted(total, "round"), sum(r.run.number > 0 for r in runs)
    yield size + f" in {counted(of_runs, 'run')}" * bool(of_runs)
    if total:
        yield finite_precision(total, proven_rounds(rounds))


def _unit(header: Header, rounds: Sequence[CountedRound]) -> str:
    """Returns the unit, with the number of its rows as declared."""
    if header.unit in UNITS_OF_ROWS:
        return header.unit
    whole = rounds_of_whole_units(rounds)
    if whole and whole == sum(count for _, count in rounds):
        return f"{header.unit} (with all its rows)"
    rows = (
        "one row"
        if header.rows_per_unit == 1
        else f"at most {header.rows_per_unit:,} rows"
    )
    some = f"with all its rows in {whole:,} rounds, else " if whole else ""
    return f"{header.unit} ({some}{rows} each, as declared)"


def _last_runs(runs: Sequence[RunCost], found: Guarantee) -> Table:
    """Returns the last runs; `keras-dp runs` has all."""
    notes: tuple[str, ...] = ()
    left_out = len(runs) - _MOST_RUNS
    if left_out > 0:
        earlier = counted(left_out, "earlier run")
        notes = (f"{earlier}, which `keras-dp runs` lists",)
    if found.basis == "account":
        notes = (*notes, SO_FAR)
    return run_table(runs[-_MOST_RUNS:], notes)


def _cost_table(
    costs: Mapping[str, float],
    delta: float,
    neighbours: Neighbours | None,
    together: int,
) -> Table:
    relation = str(neighbours).replace("_", " ")
    if together > 1:
        relation += f", {together:,} records together"
    return Table(
        f"Epsilon of these rounds at delta = {delta!r}, {relation}",
        ("accountant", "epsilon"),
        tuple(
            (
                name,
                "no bound" if math.isinf(each) else f"<= {rounded_up(each)}",
            )
            for name, each in costs.items()
        ),
        short=2,
    )


def _relation(
    replay: Replay, neighbours: Neighbours | None
) -> Neighbours | None:
    """Returns the relation of the costs; `None` if there is none."""
    try:
        return replay.relation(neighbours)
    except UnsupportedEventError:
        return None


def _costs(
    replay: Replay,
    relation: Neighbours | None,
    accountants: tuple[Accountant, ...] | None,
    *,
    delta: float,
    units: int,
) -> dict[str, float]:
    """Returns the epsilon by each accountant; `None` asks all that can reply.

    Without a relation, none can.
    """
    if accountants is None and relation is None:
        return {}
    if accountants is None:
        accountants = available_accountants(replay, neighbours=relation)
    return {
        each.name: replay.epsilon(
            each, delta=delta, neighbours=relation, units=units
        )
        for each in accountants
    }


def _versions(runs: tuple[RunRecord, ...]) -> dict[str, list[str]]:
    found: dict[str, dict[str, None]] = {}
    for run in runs:
        if run.start is not None:
            for name, version in run.start.author.versions:
                found.setdefault(name, {})[version] = None
    return {name: [*each] for name, each in sorted(found.items())}


def _seal_table(seals: tuple[SealRecord, ...]) -> Table:
    return Table(
        "Seals, before which no row changes",
        ("row", "when (UTC)", "hash", "note"),
        tuple(
            (
                f"{seal.number:,}",
                moment(seal.time),
                seal.hash,
                seal.note,
            )
            for seal in seals
        ),
        short=2,
        numbers=(0,),
    )


def _about(
    verified: Verification, versions: Mapping[str, list[str]]
) -> Iterator[Part]:
    """Yields who made the report, and of what."""
    yield Text(
        "About this report",
        (
            f"It was made by keras_dp {__version__}, which verified "
            f"{counted(verified.rows, 'row')}: the ledger is as it was "
            "written, unless somebody computed all hashes anew.",
            f"The head of the ledger is {verified.head}. A head or a "
            "certificate that was kept elsewhere shows whether the ledger is "
            "the same.",
        ),
    )
    if versions:
        yield Table(
            "Versions in the runs",
            ("library", "version"),
            tuple((name, ", ".join(each)) for name, each in versions.items()),
            short=2,
        )


def round_table(rounds: Sequence[CountedRound], title: str = "Rounds") -> Table:
    """Returns the kinds of rounds, with their releases.

    Rounds that differ in their pass alone are of one kind. If there are many
    kinds, it has the first ones and the last one.
    """
    kinds = [*_by_kind(rounds)]
    few = len(kinds) <= _MOST_ROUNDS
    rows: list[tuple[str | tuple[str, ...], ...]] = [
        (
            f"{count:,} x {_sampled(round_.sampling)}"
            + f" [in {passes:,} passes]" * (passes > 1),
            tuple(query.words for query in round_.queries),
        )
        for round_, count, passes in (
            kinds if few else (*kinds[: _MOST_ROUNDS - 1], kinds[-1])
        )
    ]
    if not few:
        left_out = kinds[_MOST_ROUNDS - 1 : -1]
        rest = counted(sum(count for _, count, _ in left_out), "round")
        others = counted(len(left_out), "other kind")
        rows.insert(-1, (f"{rest} of {others}, which JSON shows", ()))
    return Table(title, ("sample", "released over it"), tuple(rows))


def _by_kind(
    rounds: Sequence[CountedRound],
) -> Iterator[tuple[Round, int, int]]:
    """Yields kinds of rounds: the first one, its count and its passes.

    Rounds that differ in their pass alone are of one kind if they follow each
    other. Rounds without a pass have none.
    """
    for _, together in itertools.groupby(rounds, _pass_left_out):
        pairs = [*together]
        samples = (each.sampling for each, _ in pairs)
        passes = {x.epoch_id for x in samples if isinstance(x, _IN_PASSES)}
        yield pairs[0].round, sum(count for _, count in pairs), len(passes)


def _pass_left_out(pair: CountedRound) -> Round:
    """Returns a round without the number of its pass, if it has one."""
    sampling = pair.round.sampling
    if not isinstance(sampling, _IN_PASSES):
        return pair.round
    name = "any"
    if isinstance(sampling, CyclicPoissonSampling):
        name = f"{sampling.draw_id}-0"
    one = dataclasses.replace(sampling, epoch_id=name)
    return dataclasses.replace(pair.round, sampling=one)


def _sampled(event: SamplingEvent) -> str:
    """Returns how a sample was drawn, and whether that was only declared."""
    declared = event.is_verified and not event.drawn_by_library
    return event.words + ", as declared" * declared
