"""Facts that requirements ask for, each answered from a report."""

from collections import Counter
from collections.abc import Callable, Iterable

from keras_dp.accountants.attacks.trade_off import TradeOff
from keras_dp.accountants.claim import shown_epsilon
from keras_dp.ledger.rows.statements import RunStart
from keras_dp.reporting import limits
from keras_dp.reporting.attack_words import (
    attribute_sentence,
    membership_sentences,
    reconstruction_sentence,
)
from keras_dp.reporting.report import BEFORE, Report
from keras_dp.reporting.standards.requirements import (
    Answers,
    computed,
    declared,
    missing,
    not_covered,
    record,
)
from keras_dp.reporting.tables import round_table
from keras_dp.reporting.wording import counted, moment, on_one_line

# The names of queries that `private_metrics=` adds begin so.
_METRICS = "metrics/"
_MOST_NAMES, _MOST_SEALS = 20, 5
_DIFFERENCES = {
    "add_or_remove_one": "one unit that is there or not (unbounded)",
    "replace_one": "the data of one unit, exchanged for any other (bounded)",
    "zero_out": "one unit that counts, or counts as zero in every sum",
}


def subject(report: Report) -> Answers:
    """Returns what the ledger is about, and whether its rows are whole."""
    details = report.required_details()
    dataset, *_ = report.summary
    models = {start.model for start in _starts(report) if start.model}
    return (
        declared(f"{dataset}."),
        *(
            record(
                f"The summary of a trained model has the SHA-256 {each}: its "
                "layers and shapes, not its weights."
            )
            for each in sorted(models)
        ),
        *_times(report),
        computed(
            f"All {counted(details.rows, 'row')} of the ledger agree with its "
            f"chain of hashes, whose head is {details.head}."
        ),
        *_seals(report),
        not_covered(
            "The ledger does not hold what was released. That a file comes "
            "from these rounds, and from no other computation, must be "
            "declared; a seal by `certify_model` names the hash of a model."
        ),
    )


def guarantee(report: Report) -> Answers:
    """Returns the claim to publish with its theorem, and in plain words."""
    return (
        *(computed(f"{each}.") for each in report.sentences),
        computed(report.plain_words),
        *(record(f"{BEFORE}: {each}") for each in report.cautions),
    )


def accountants(report: Report) -> Answers:
    """Returns what each accountant says of the same rounds."""
    found = ", ".join(
        f"{each.accountant} {shown_epsilon(each.epsilon)}"
        for each in report.costs
        if each.is_bound
    )
    if not found:
        return (computed("No accountant has a bound for these rounds."),)
    return (
        computed(
            "Upper bounds on epsilon for the rounds that ran, at delta = "
            f"{report.delta!r}, by accountant: {found}. The claim is "
            "(epsilon, delta)-differential privacy."
        ),
    )


def unit(report: Report) -> Answers:
    """Returns who is protected, and in which data sets neighbours differ."""
    dataset, *_ = report.summary
    found = "No adjacency relation is supported by all rounds."
    if report.claim.neighbours is not None:
        found = (
            "Neighbouring data sets differ in "
            f"{_DIFFERENCES[report.claim.neighbours]}. Here that is one "
            f"{report.subject} with at most "
            f"{counted(report.records_together, 'record')}."
        )
    return declared(f"{dataset}."), computed(found)


def mechanisms(report: Report) -> Answers:
    """Returns how samples were drawn, bounded and noised."""
    rows = round_table(report.rounds).rows
    if not rows:
        return (record("The ledger has no round: nothing was released."),)
    return tuple(
        record(f"{sample}; {'; '.join(queries.split(chr(10)))}.")
        for sample, queries in rows
    )


def coverage(report: Report) -> Answers:
    """Returns what is in the ledger, and that all else comes on top."""
    purposes = Counter(start.purpose for start in _starts(report))
    return (
        record(
            f"The ledger holds {counted(report.total_rounds, 'round')}. Runs "
            f"by their purpose: {_numbers(purposes)}."
        ),
        not_covered(limits.OTHER_RELEASES),
    )


def choices(report: Report) -> Answers:
    """Returns how runs ended, and which theorem lets them end so."""
    states = Counter(
        each.state for each in report.runs if each.run.start is not None
    )
    return (
        record(f"Runs by the way they ended: {_numbers(states)}."),
        computed(f"Theorem: {report.guarantee.theorem}."),
        not_covered(
            "Runs that wrote to no ledger, or to another one, are not counted: "
            "trials of settings, earlier models, feature selection."
        ),
    )


def budget(report: Report) -> Answers:
    """Returns the accounts that limit further releases."""
    if not report.accounts:
        return (
            record(
                "No account is open: the ledger counts further releases, and "
                "does not limit them. `keras-dp budget --open` opens one."
            ),
        )
    return tuple(
        record(
            f"Account {on_one_line(each.name)}: epsilon <= "
            f"{each.budget.epsilon:g} at delta = {each.budget.delta:g}; "
            f"{each.spent}."
        )
        for each in report.accounts
    )


def metrics(report: Report) -> Answers:
    """Returns the metrics of the training data that have noise."""
    names = sorted(
        {
            query.name.removeprefix(_METRICS)
            for each in report.rounds
            for query in each.round.queries
            if query.name.startswith(_METRICS)
        }
    )
    if not names:
        return (
            record(
                "No metric of the training data was released with noise. "
                "`private_metrics=` adds some, of each group if you like."
            ),
        )
    shown = ", ".join(map(on_one_line, names[:_MOST_NAMES]))
    return (
        record(
            "Metrics of the training data that were released with noise: "
            f"{shown}{', ...' * (len(names) > _MOST_NAMES)}. Which group one "
            "is about, only its name can say."
        ),
    )


def audits(report: Report) -> Answers:
    """Returns what audits found; without any, that this is missing."""
    limit = not_covered(
        "An audit may find an error. It proves no upper bound on epsilon."
    )
    if not report.audits:
        return (
            missing(
                "No audit is in the ledger: nothing tested what it says. "
                "`keras_dp.auditing` has tests, and writes their verdicts.",
                "audits",
            ),
            limit,
        )
    return (*(record(f"{each.sentence}.") for each in report.audits), limit)


def membership(report: Report) -> Answers:
    """Returns how well an attack can know whether a unit is in the data."""
    return _attack(report, membership_sentences)


def reconstruction(report: Report) -> Answers:
    """Returns how often an attack can reproduce a unit's data."""
    return _attack(
        report, lambda curve: (reconstruction_sentence(curve, report.subject),)
    )


def attribute(report: Report) -> Answers:
    """Returns how often an attack can guess an attribute of a unit."""
    return _attack(
        report, lambda curve: (attribute_sentence(curve, report.subject),)
    )


def attacker(report: Report) -> Answers:
    """Returns against whom the bounds hold."""
    return (
        computed(
            "The bounds hold against whoever knows all other records, the "
            "program and its settings, sees all that the rounds released, and "
            "has any computer, any amount of time and any other data. They "
            "are for the unit with the largest risk, not for an average."
        ),
    )


def after_release(report: Report) -> Answers:
    """Returns what the guarantee says of everything made from the releases."""
    return (
        computed(
            "Whatever is computed from the releases alone, such as the "
            "trained weights and every answer of the model to any number of "
            "questions, has the same guarantee."
        ),
        not_covered(
            "What is computed from the records once more, such as an "
            "evaluation, or an answer to a question that quotes them, is "
            "another release."
        ),
    )


def randomness(report: Report) -> Answers:
    """Returns where the noise comes from."""
    found = [
        record(
            f"The generator of the noise is {report.generator}. Rounds whose "
            f"seed the caller chose: {report.seeded_rounds:,}."
        )
    ]
    return (*found, not_covered(limits.ROUNDING))


def software(report: Report) -> Answers:
    """Returns the programs that made the releases."""
    programs = {
        f"{on_one_line(start.author.program)} (SHA-256 "
        f"{start.author.program_hash or 'unknown'})"
        for start in _starts(report)
    }
    versions = ", ".join(
        f"{name} {' and '.join(each)}" for name, each in report.versions.items()
    )
    if not programs:
        return (record("No run says which program made the releases."),)
    return (
        record(
            f"Programs: {', '.join(sorted(programs))}. Libraries: "
            f"{on_one_line(versions)}."
        ),
    )


def people(report: Report) -> Answers:
    """Returns how many users and machines wrote runs; names stay inside."""
    authors = [start.author for start in _starts(report)]
    users = counted(len({each.user for each in authors}), "user")
    machines = counted(len({each.host for each in authors}), "machine")
    return (
        record(
            f"The runs name {users} and {machines}; `keras-dp runs` lists "
            "them. A process can write any name."
        ),
        not_covered(
            "The ledger does not know who could read the records, the memory "
            "of the training, or answers without noise."
        ),
    )


def trust(report: Report) -> Answers:
    """Returns whom the guarantee protects against, and whom not."""
    del report
    return (
        not_covered(
            "The guarantee is towards those who see the releases alone. "
            "Whoever holds the records, or runs the training, is trusted."
        ),
    )


def unprotected(report: Report) -> Answers:
    """Returns what stands beside the releases."""
    del report
    return (not_covered(limits.UNPROTECTED),)


def judgement(report: Report) -> Answers:
    """Returns that people decide whether a risk is acceptable."""
    del report
    return (not_covered(limits.JUDGEMENT),)


def _starts(report: Report) -> list[RunStart]:
    """Returns the beginnings of all runs."""
    return [
        each.run.start for each in report.runs if each.run.start is not None
    ]


def _numbers(found: Counter[str]) -> str:
    """Returns how many there are of each kind, in words."""
    return ", ".join(f"{count:,} {kind}" for kind, count in found.items()) or (
        "none"
    )


def _times(report: Report) -> Answers:
    """Returns when the runs began, and when the last of them wrote."""
    runs = [each.run for each in report.runs if each.run.start is not None]
    if not runs:
        return ()
    first = moment(min(each.started for each in runs))
    last = moment(max(each.updated for each in runs))
    return (record(f"Runs wrote from {first} to {last} UTC."),)


def _attack(
    report: Report, sentences: Callable[[TradeOff], Iterable[str]]
) -> Answers:
    """Returns bounds on attacks; without a bound, the reason."""
    explanation = report.required_details().explanation
    if explanation.curve is None:
        return tuple(map(computed, explanation.paragraphs[0].sentences))
    return tuple(map(computed, sentences(explanation.curve)))


def _seals(report: Report) -> Answers:
    if not report.seals:
        return (
            record(
                "The ledger has no seal, and so no certificate. `keras-dp "
                "seal` makes one."
            ),
        )
    return tuple(
        record(
            f"Seal in row {each.number:,}, {moment(each.time)} UTC, hash "
            f"{each.hash}; its note: "
            f"{on_one_line(each.statement.note) or 'none'}."
        )
        for each in report.seals[-_MOST_SEALS:]
    )
