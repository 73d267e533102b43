"""Facts that requirements ask for, each answered from a report."""

from collections import Counter
from collections.abc import Iterator

from keras_dp.accountants.claim import shown_epsilon
from keras_dp.ledger import CountedRound, SamplingEvent
from keras_dp.ledger.rows.statements import RunStart
from keras_dp.reporting.attack_words import (
    attribute_sentence,
    membership_sentences,
    reconstruction_sentence,
)
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
    for each in report.sentences:
        yield Answer(COMPUTED, f"{each}.")
    yield Answer(COMPUTED, report.plain_words)
    for each in report.cautions:
        yield Answer(COMPUTED, f"{BEFORE}: {each}")


def accountants(report: Report) -> Iterator[Answer]:
    """Yields what each accountant says of the same rounds."""
    found = ", ".join(
        f"{each.accountant} {shown_epsilon(each.epsilon)}"
        for each in report.costs
        if each.is_bound
    )
    yield Answer(
        COMPUTED,
        "The claim is (epsilon, delta)-differential privacy. Upper bounds on "
        f"epsilon for the rounds that ran, at delta = {report.delta!r}, by "
        f"accountant: {found or 'none'}.",
    )


def unit(report: Report) -> Iterator[Answer]:
    """Yields who is protected, and in what neighbouring data sets differ."""
    yield _dataset(report)
    neighbours = report.claim.neighbours
    if neighbours is None:
        yield Answer(
            COMPUTED, "All rounds support no common adjacency relation."
        )
        return
    yield Answer(
        COMPUTED,
        f"Neighbouring data sets differ in {_DIFFERENCES[neighbours]}. Here "
        f"that is one {report.subject} with at most "
        f"{counted(report.records_together, 'record')}.",
    )


def mechanisms(report: Report) -> Iterator[Answer]:
    """Yields how samples were drawn, bounded and noised.

    Rounds of another library, and samples that somebody else drew, are as
    declared.
    """
    elsewhere = [each.run for each in report.runs if libraries_of([each.run])]
    theirs = {each.round for run in elsewhere for each in run.rounds}

    def is_declared(sampling: SamplingEvent) -> bool:
        return sampling.is_verified and not sampling.drawn_by_library

    by_kind: dict[str, list[CountedRound]] = {RECORD: [], DECLARED: []}
    for each in report.rounds:
        if each.round in theirs or is_declared(each.round.sampling):
            by_kind[DECLARED].append(each)
        else:
            by_kind[RECORD].append(each)
    for kind, rounds in by_kind.items():
        for sample, queries in round_table(rounds).rows:
            released = queries.replace("\n", "; ")
            yield Answer(kind, f"{sample}; {released}.")
    if elsewhere:
        runs = counted(len(elsewhere), "run")
        yield Answer(
            DECLARED,
            not_checked(f"Rounds of {runs}", libraries_of(elsewhere)),
        )
    if not report.rounds:
        yield Answer(RECORD, "The ledger has no round: nothing was released.")


def coverage(report: Report) -> Iterator[Answer]:
    """Yields how much is in the ledger, by the purposes of its runs."""
    purposes = Counter(each.purpose for each in _starts(report))
    yield Answer(
        RECORD,
        f"The ledger holds {counted(report.total_rounds, 'round')}. Runs by "
        f"their purpose: {_numbers(purposes)}.",
    )


def choices(report: Report) -> Iterator[Answer]:
    """Yields how runs ended, and which theorem lets them end so."""
    states = Counter(
        each.state for each in report.runs if each.run.start is not None
    )
    yield Answer(RECORD, f"Runs by the way they ended: {_numbers(states)}.")
    yield Answer(COMPUTED, f"Theorem: {report.guarantee.theorem}.")


def budget(report: Report) -> Iterator[Answer]:
    """Yields the accounts that limit further releases."""
    for each in report.accounts:
        yield Answer(
            RECORD,
            f"Account {on_one_line(each.name)}: epsilon <= "
            f"{each.budget.epsilon:g} at delta = {each.budget.delta:g}; "
            f"{each.spent}.",
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
    if not names:
        yield Answer(
            RECORD,
            "No metric of the training data was released with noise. "
            "`private_metrics=` adds some, of each group if you like.",
        )
        return
    shown = ", ".join(map(on_one_line, names[:_MOST_NAMES]))
    yield Answer(
        RECORD,
        "Metrics of the training data that were released with noise: "
        f"{shown}{', ...' * (len(names) > _MOST_NAMES)}. Which group one is "
        "about, only its name can say.",
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


def membership(report: Report) -> Iterator[Answer]:
    """Yields how well an attack can know whether a unit is in the data."""
    curve = report.required_details().explanation.curve
    if curve is None:
        yield from _without_a_bound(report)
        return
    for each in membership_sentences(curve):
        yield Answer(COMPUTED, each)


def reconstruction(report: Report) -> Iterator[Answer]:
    """Yields how often an attack reproduces a unit's data, or an attribute."""
    curve = report.required_details().explanation.curve
    if curve is None:
        yield from _without_a_bound(report)
        return
    yield Answer(COMPUTED, reconstruction_sentence(curve, report.subject))
    yield Answer(COMPUTED, attribute_sentence(curve, report.subject))


def attacker(report: Report) -> Iterator[Answer]:
    """Yields against whom the bounds hold, if there are any."""
    if report.required_details().explanation.curve is None:
        yield from _without_a_bound(report)
        return
    yield Answer(
        COMPUTED,
        "The bounds hold against whoever knows all other records, the program "
        "and its settings, sees all that the rounds released, and has any "
        "computer, any amount of time and any other data. They are for the "
        "unit with the largest risk, not for an average.",
    )


def after_release(report: Report) -> Iterator[Answer]:
    """Yields what the guarantee says of everything made from the releases."""
    yield Answer(
        COMPUTED,
        "Whatever is computed from the releases alone, such as the trained "
        "weights and every answer of the model to any number of questions, has "
        f"the same guarantee: {report.sentences[0]}.",
    )


def randomness(report: Report) -> Iterator[Answer]:
    """Yields where the noise comes from."""
    libraries = libraries_of(each.run for each in report.runs)
    if libraries:
        yield Answer(
            DECLARED,
            "The noise of some rounds comes from the generators of "
            f"{on_one_line(libraries)}.",
        )
    yield Answer(
        RECORD,
        f"The generator of the noise of this library is {report.generator}. "
        f"Rounds whose seed the caller chose: {report.seeded_rounds:,}.",
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


def _dataset(report: Report) -> Answer:
    """Returns the data set with its unit, which the header declares."""
    return Answer(DECLARED, f"{report.summary[0]}.")


def _without_a_bound(report: Report) -> Iterator[Answer]:
    """Yields why nothing bounds an attack."""
    for each in report.required_details().explanation.paragraphs[0].sentences:
        yield Answer(COMPUTED, each)


def _starts(report: Report) -> list[RunStart]:
    """Returns the beginnings of all runs."""
    return [
        each.run.start for each in report.runs if each.run.start is not None
    ]


def _numbers(found: Counter[str]) -> str:
    """Returns how many there are of each kind, in words."""
    numbers = (f"{count:,} {kind}" for kind, count in found.items())
    return ", ".join(numbers) or "none"
