"""Facts that requirements ask for, each answered from a report."""

from collections import Counter
from collections.abc import Iterable, Iterator

from keras_dp.accountants.claim import shown_epsilon
from keras_dp.ledger import CountedRound
from keras_dp.ledger.rows.statements import RunStart
from keras_dp.reporting.report import BEFORE, Report
from keras_dp.reporting.sources import COMPUTED, DECLARED, RECORD
from keras_dp.reporting.standards.requirements import MISSING, Answer
from keras_dp.reporting.tables import round_table
from keras_dp.reporting.wording import (
    counted,
    libraries_of,
    moment,
    not_checked,
    on_one_line,
)

# The names of queries that `private_metrics=` adds begin so.
_METRICS = "metrics/"
_MOST_NAMES, _MOST_SEALS = 20, 5
_DIFFERENCES = {
    "add_or_remove_one": "one unit that is there or not (unbounded)",
    "replace_one": "the data of one unit, exchanged for any other (bounded)",
    "zero_out": "one unit that counts, or counts as zero in every sum",
}


def subject(report: Report) -> Iterator[Answer]:
    """Yields what the ledger is about, and whether its rows are whole."""
    details = report.required_details()
    yield _dataset(report)
    for model in sorted({each.model for each in _starts(report) if each.model}):
        yield Answer(
            RECORD,
            f"The summary of a trained model has the SHA-256 {model}: its "
            "layers and shapes, not its weights.",
        )
    runs = [each.run for each in report.runs if each.run.start is not None]
    if runs:
        first = moment(min(each.started for each in runs))
        last = moment(max(each.updated for each in runs))
        yield Answer(RECORD, f"Runs wrote from {first} to {last} UTC.")
    yield Answer(
        COMPUTED,
        f"All {counted(details.rows, 'row')} of the ledger agree with its "
        f"chain of hashes, whose head is {details.head}.",
    )
    for each in report.seals[-_MOST_SEALS:]:
        note = on_one_line(each.statement.note) or "none"
        yield Answer(
            RECORD,
            f"Seal in row {each.number:,}, {moment(each.time)} UTC, hash "
            f"{each.hash}; its note: {note}.",
        )
    if not report.seals:
        yield Answer(
            RECORD,
            "The ledger has no seal, and so no certificate. `keras-dp seal` "
            "makes one.",
        )


def guarantee(report: Report) -> Iterator[Answer]:
    """Yields the claim to publish with its theorem, and in plain words."""
    sentences = [f"{each}." for each in report.sentences]
    warnings = [f"{BEFORE}: {each}" for each in report.cautions]
    yield from _computed(*sentences, report.plain_words, *warnings)


def accountants(report: Report) -> Iterator[Answer]:
    """Yields what each accountant says of the same rounds."""
    found = ", ".join(
        f"{each.accountant} {shown_epsilon(each.epsilon)}"
        for each in report.costs
        if each.is_bound
    )
    yield from _computed(
        "The claim is (epsilon, delta)-differential privacy. Upper bounds on "
        f"epsilon for the rounds that ran, at delta = {report.delta!r}, by "
        f"accountant: {found or 'none'}."
    )


def unit(report: Report) -> Iterator[Answer]:
    """Yields who is protected, and in what neighbouring data sets differ."""
    yield _dataset(report)
    neighbours = report.claim.neighbours
    said = "All rounds support no common adjacency relation."
    if neighbours is not None:
        said = (
            f"Neighbouring data sets differ in {_DIFFERENCES[neighbours]}. "
            f"Here that is one {report.subject} with at most "
            f"{counted(report.records_together, 'record')}."
        )
    yield from _computed(said)


def mechanisms(report: Report) -> Iterator[Answer]:
    """Yields how samples were drawn, bounded and noised.

    Rounds of another library, and samples that somebody else drew, are as
    declared.
    """
    elsewhere = [each.run for each in report.runs if libraries_of([each.run])]
    theirs = {each.round for run in elsewhere for each in run.rounds}
    by_kind: dict[str, list[CountedRound]] = {RECORD: [], DECLARED: []}
    for each in report.rounds:
        sampling = each.round.sampling
        drawn = sampling.drawn_by_library or not sampling.is_verified
        kind = RECORD if drawn and each.round not in theirs else DECLARED
        by_kind[kind].append(each)
    for kind, rounds in by_kind.items():
        for sample, queries in round_table(rounds).rows:
            released = queries.replace("\n", "; ")
            yield Answer(kind, f"{sample}; {released}.")
    if elsewhere:
        runs = f"Rounds of {counted(len(elsewhere), 'run')}"
        yield Answer(DECLARED, not_checked(runs, libraries_of(elsewhere)))
    if not report.rounds:
        yield Answer(RECORD, "The ledger has no round: nothing was released.")


def coverage(report: Report) -> Iterator[Answer]:
    """Yields how much is in the ledger, by the purposes of its runs."""
    purposes = _numbers(each.purpose for each in _starts(report))
    yield Answer(
        RECORD,
        f"The ledger holds {counted(report.total_rounds, 'round')}. Runs by "
        f"their purpose: {purposes}.",
    )


def choices(report: Report) -> Iterator[Answer]:
    """Yields how runs ended, and which theorem lets them end so."""
    started = (each for each in report.runs if each.run.start is not None)
    states = _numbers(each.state for each in started)
    yield Answer(RECORD, f"Runs by the way they ended: {states}.")
    yield from _computed(f"Theorem: {report.guarantee.theorem}.")


def budget(report: Report) -> Iterator[Answer]:
    """Yields the accounts that limit further releases."""
    for each in report.accounts:
        yield Answer(
            RECORD,
            f"Account {on_one_line(each.name)}: {each.promise}; {each.spent}.",
        )
    if not report.accounts:
        yield Answer(
            RECORD,
            "No account is open: the ledger counts further releases, and does "
            "not limit them. `keras-dp budget --open` opens one.",
        )


def metrics(report: Report) -> Iterator[Answer]:
    """Yields the metrics of the training data that have noise."""
    names = sorted(
        {
            query.name.removeprefix(_METRICS)
            for each in report.rounds
            for query in each.round.queries
            if query.name.startswith(_METRICS)
        }
    )
    shown = ", ".join(map(on_one_line, names[:_MOST_NAMES]))
    shown += ", ..." * (len(names) > _MOST_NAMES)
    yield Answer(
        RECORD,
        "Metrics of the training data that were released with noise: "
        f"{shown}. Which group one is about, only its name can say."
        if names
        else "No metric of the training data was released with noise. "
        "`private_metrics=` adds some, of each group if you like.",
    )


def audits(report: Report) -> Iterator[Answer]:
    """Yields what audits found; without any, that this is missing."""
    for each in report.audits:
        yield Answer(RECORD, f"{each.sentence}.")
    if not report.audits:
        yield Answer(
            MISSING,
            "No audit is in the ledger: nothing tested what it says. "
            "`keras_dp.auditing` has tests, and writes their verdicts.",
            "audits",
        )


def attacker(report: Report) -> Iterator[Answer]:
    """Yields against whom the bounds hold, if there are any."""
    yield from _explained(report, 0)
    if report.required_details().explanation.curve is not None:
        yield from _computed(
            "The bounds are for the unit with the largest risk, not for an "
            "average."
        )


def membership(report: Report) -> Iterator[Answer]:
    """Yields how well an attack can know whether a unit is in the data."""
    return _explained(report, 1)


def reconstruction(report: Report) -> Iterator[Answer]:
    """Yields how often an attack reproduces a unit's data, or an attribute."""
    return _explained(report, 2)


def after_release(report: Report) -> Iterator[Answer]:
    """Yields what the guarantee says of everything made from the releases."""
    yield from _computed(
        "Whatever is computed from the releases alone, such as the trained "
        "weights and every answer of the model to any number of questions, has "
        f"the same guarantee: {report.sentences[0]}."
    )


def randomness(report: Report) -> Iterator[Answer]:
    """Yields where the noise comes from."""
    runs = [each.run for each in report.runs if libraries_of([each.run])]
    if runs:
        yield Answer(
            DECLARED,
            f"The noise of {counted(sum(map(len, runs)), 'round')} comes from "
            f"the generators of {on_one_line(libraries_of(runs))}.",
        )
    own = report.total_rounds - sum(map(len, runs))
    noise = (
        f"The generator of the noise of {counted(own, 'round')} is "
        f"{report.generator}. "
    )
    yield Answer(
        RECORD,
        f"{noise * bool(own)}Rounds whose seed the caller chose: "
        f"{report.seeded_rounds:,}.",
    )


def software(report: Report) -> Iterator[Answer]:
    """Yields the programs and libraries that made the releases."""
    programs = {
        f"{on_one_line(start.author.program)} (SHA-256 "
        f"{start.author.program_hash or 'unknown'})"
        for start in _starts(report)
    }
    versions = ", ".join(
        f"{name} {' and '.join(each)}" for name, each in report.versions.items()
    )
    yield Answer(
        RECORD,
        f"Programs: {', '.join(sorted(programs)) or 'none named'}. Libraries: "
        f"{on_one_line(versions) or 'none named'}.",
    )


def people(report: Report) -> Iterator[Answer]:
    """Yields how many users and machines wrote runs; names stay inside."""
    authors = [start.author for start in _starts(report)]
    users = counted(len({each.user for each in authors}), "user")
    machines = counted(len({each.host for each in authors}), "machine")
    yield Answer(
        RECORD,
        f"The runs name {users} and {machines}; `keras-dp runs` lists them. A "
        "process can write any name.",
    )


def _computed(*texts: str) -> Iterator[Answer]:
    return (Answer(COMPUTED, each) for each in texts)


def _explained(report: Report, index: int) -> Iterator[Answer]:
    """Returns a paragraph of what `explain` says, or why nothing is bounded."""
    found = report.required_details().explanation
    chosen = found.paragraphs[0 if found.curve is None else index]
    return _computed(*chosen.sentences)


def _dataset(report: Report) -> Answer:
    """Returns the data set with its unit, which the header declares."""
    return Answer(DECLARED, f"{report.summary[0]}.")


def _starts(report: Report) -> list[RunStart]:
    """Returns the beginnings of all runs."""
    return [
        each.run.start for each in report.runs if each.run.start is not None
    ]


def _numbers(found: Iterable[str]) -> str:
    """Returns how often each text occurs, in words."""
    numbers = (f"{count:,} {text}" for text, count in Counter(found).items())
    return ", ".join(numbers) or "none"
