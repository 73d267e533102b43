"""The commands of `keras-dp`: each makes a document of its arguments."""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from keras_dp.accountants.coverage import spans_of
from keras_dp.accountants.replay import Replay
from keras_dp.budgets import (
    RenyiFilter,
    budget_of,
    open_account,
    verify_prices,
)
from keras_dp.budgets.ledger_guarantee import AS_IF_FIXED
from keras_dp.errors import (
    BudgetExceededError,
    LedgerFormatError,
    LedgerIntegrityError,
    OutputError,
    UnsupportedEventError,
)
from keras_dp.ledger import CountedRound, PrivacyLedger, Round
from keras_dp.planning import plan
from keras_dp.planning.calibration import MOST_ROUNDS, default_delta
from keras_dp.planning.plan import sizes_of
from keras_dp.planning.rounds_left import rounds_left
from keras_dp.reporting.account_state import accounts_document
from keras_dp.reporting.arguments import Command
from keras_dp.reporting.certificate import Certificate, certify, signing_key
from keras_dp.reporting.document import Document, Text, json_claim
from keras_dp.reporting.explanation import explain
from keras_dp.reporting.plans import plan_document
from keras_dp.reporting.report import make_report, round_table
from keras_dp.reporting.run_costs import runs_document
from keras_dp.reporting.wording import counted

# A ledger, and the guarantee that is asked of it.
_GUARANTEE = ("file", "planned delta", "neighbours", "units")


def _about_guarantee(make: Callable[..., Document]) -> Callable[..., Document]:
    """Returns a command that asks a ledger about its guarantee.

    `make` takes the ledger, and `delta`, `neighbours` and `units` by name.
    """

    def answer(options: argparse.Namespace) -> Document:
        with PrivacyLedger.open(options.file, mode="r") as ledger:
            return make(ledger, **_question(options, ledger))

    return answer


def _question(
    options: argparse.Namespace, ledger: PrivacyLedger
) -> dict[str, Any]:
    """Returns the delta, the relation and the units that are asked about."""
    return {
        "delta": _delta_for(options.delta, ledger),
        "neighbours": options.neighbours,
        "units": options.units,
    }


def _delta_for(given: float | None, ledger: PrivacyLedger) -> float:
    """Returns the given delta, or the smallest that a ledger names."""
    named = [run.delta for run in ledger.runs if run.delta is not None]
    named += [budget_of(each.account).delta for each in ledger.accounts]
    if given is None and not named:
        raise ValueError(
            "`--delta` must be given: no plan and no account of the ledger "
            "names one. Received: nothing. Choose one below 1/N for N units."
        )
    return min(named) if given is None else given


def _open_existing(path: str) -> PrivacyLedger:
    """Opens a ledger for writing, and creates none."""
    PrivacyLedger.open(path, mode="r").close()
    return PrivacyLedger.open(path)


def _report(options: argparse.Namespace) -> Document:
    details = options.all or options.format != "text"
    with PrivacyLedger.open(options.file, mode="r") as ledger:
        return make_report(
            ledger,
            **_question(options, ledger),
            # Some take long, and nobody has asked for them.
            accountants=None if details else (),
            details=details,
        )


def _afford(options: argparse.Namespace) -> Document:
    """Returns how many more rounds like the last one there is room for.

    A run that kept to its plan counts as its whole plan.
    """
    with PrivacyLedger.open(options.file, mode="r") as ledger:
        ran = Replay(ledger)
        question = _question(options, ledger)
    last = _last_of(ran)
    # As `fit` and reports do.
    held = ran.that_count(question["neighbours"]).together
    delta = question["delta"]
    count = rounds_left(held, last, target_epsilon=options.epsilon, **question)
    unit = held.header.unit
    spent = held.claim(**question)
    at_least = "at least " if count == MOST_ROUNDS else ""
    how_many = at_least + counted(count, "round") if count else "no round"
    sentences = [
        f"Held: {spent.sentence(unit)}",
        f"Target: epsilon <= {options.epsilon!r} at delta = {delta!r}",
        f"Left: {how_many} like the last one",
    ]
    facts = {
        "held": json_claim(spent),
        "target_epsilon": options.epsilon,
        "delta": delta,
        "rounds_left": count,
    }
    if count:
        then = held.plus([(last, count)]).claim(**question)
        sentences += [
            f"Then: {then.sentence(unit)}",
            f"Theorem: {AS_IF_FIXED}",
        ]
        facts["then"] = json_claim(then)
    return Document(
        f"What is left of {held.header.dataset}",
        (
            Text("", tuple(sentences)),
            round_table([CountedRound(last, 1)], "The last round"),
        ),
        facts,
    )


def _last_of(held: Replay) -> Round:
    if not held.rounds:
        raise ValueError(
            "`file` must be a ledger with at least one round. Received: a "
            "ledger without rounds. Plan a first training with `keras-dp plan "
            "--ledger FILE`."
        )
    last, _ = held.rounds[-1]
    if any(spans_of(last)):
        raise UnsupportedEventError(
            "`file` must end with a round that can be repeated by itself. "
            f"Received: {last.sampling!r} and {last.queries!r}, which belong "
            "to a pass, a tree or a mechanism, which cost as a whole. For "
            "passes use `keras_dp.planning.rounds_left` with "
            "`rounds_per_pass`. For a mechanism plan another one, with "
            "`make_private` on this ledger or `calibrate_correlated_noise`."
        )
    return last


def _plan(options: argparse.Namespace) -> Document:
    ledger, rows = options.ledger, options.rows_per_unit
    held = Replay(())
    if ledger is not None:
        with PrivacyLedger.open(ledger, mode="r") as opened:
            # As `fit` does.
            held = Replay(opened).that_count(options.neighbours).together
    units = max(1, options.records // (rows * held.rows_per_unit))
    found = plan(
        options.records,
        target_epsilon=options.epsilon,
        delta=options.delta or default_delta(units),
        epochs=options.epochs,
        batch_sizes=options.batch_sizes or sizes_of(options.records),
        ledger=held,
        neighbours=options.neighbours,
        units=rows,
    )
    return plan_document(found, ledger=ledger)


def _accounts(options: argparse.Namespace) -> Document:
    if options.open is None:
        _check_nothing_to_open(options)
        with PrivacyLedger.open(options.file, mode="r") as ledger:
            return accounts_document(ledger)
    budget = _budget(options)
    with _open_existing(options.file) as ledger:
        try:
            open_account(ledger, options.open, budget)
        except BudgetExceededError as error:
            raise ValueError(str(error)) from error
        return accounts_document(ledger)


def _check_nothing_to_open(options: argparse.Namespace) -> None:
    for name in ("epsilon", "delta", "order", "neighbours"):
        if getattr(options, name) is not None:
            raise ValueError(
                f"`--{name}` must be given with `--open` only. Received: "
                f"--{name}={getattr(options, name)!r}."
            )


def _budget(options: argparse.Namespace) -> RenyiFilter:
    for name in ("epsilon", "delta"):
        if getattr(options, name) is None:
            raise ValueError(
                f"`--{name}` must be given to open an account. Received: none."
            )
    return RenyiFilter(
        options.epsilon,
        options.delta,
        options.order,
        options.neighbours or "add_or_remove_one",
    )


def _seal(options: argparse.Namespace) -> Document:
    key = None if options.key is None else Path(options.key).read_bytes()
    out = Path(options.out)
    with _open_existing(options.file) as ledger:
        # A seal is for ever: everything that may fail comes first.
        if key is not None:
            signing_key(key)
        try:
            out.touch(exist_ok=False)
        except OSError as error:
            raise OutputError(
                f"`--out` must be a new file in a folder that can be written. "
                f"Received: {error}. Nothing was sealed."
            ) from error
        try:
            certificate = certify(
                ledger,
                delta=_delta_for(options.delta, ledger),
                neighbours=options.neighbours,
                note=options.note,
            )
            if key is not None:
                certificate = certificate.signed(key)
        except BaseException:
            out.unlink(missing_ok=True)
            raise
    try:
        out.write_text(f"{certificate.as_json()}\n", "utf-8", newline="")
    except OSError as error:
        raise OutputError(
            f"The ledger was sealed, and the file {options.out!r} could not be "
            f"written: {error.strerror}."
        ) from error
    return certificate.document()


def _verify(options: argparse.Namespace) -> Document:
    if options.public_key is not None and options.against is None:
        raise ValueError(
            "`--public-key` must be given with `--against`. Received: "
            f"--public-key={options.public_key!r} alone."
        )
    certificate = None
    if options.against is not None:
        certificate = _read(options.against)
    with PrivacyLedger.open(options.file, mode="r") as ledger:
        found = ledger.verify()
        verify_prices(ledger)
        size = f"{found.rows} rows, {found.rounds} rounds, head {found.head}"
        if options.head is not None:
            _check_head(options.head, found.head, size)
        sentences = [f"OK: {size}"]
        if certificate is not None:
            sentences += _certified(certificate, ledger, options.public_key)
        dataset = ledger.header.dataset
    if options.head is not None:
        sentences.append(
            "The ledger is the one with that head: nothing changed."
        )
    elif certificate is None:
        sentences.append(
            "The same head later means the same ledger; it changes with every "
            "round that is added."
        )
    return Document(
        f"The rows of {dataset} are as they were written",
        (Text("", tuple(sentences)),),
        {"rows": found.rows, "rounds": found.rounds, "head": found.head},
    )


def _read(path: str) -> Certificate:
    try:
        return Certificate.from_json(Path(path).read_text("utf-8"))
    except UnicodeDecodeError as error:
        raise LedgerFormatError(
            f"The file {path!r} is not a certificate: {error}. Make one with "
            "`keras-dp seal`."
        ) from error


def _check_head(given: str, found: str, size: str) -> None:
    if given.strip().lower() != found:
        raise LedgerIntegrityError(
            "`--head` must be the head of the ledger. Received: "
            f"{given!r}, but the ledger has {size}. It is another "
            "ledger, or rounds were added, removed or changed since: "
            "a certificate of that time shows which."
        )


def _certified(
    certificate: Certificate, ledger: PrivacyLedger, public_key: str | None
) -> list[str]:
    """Returns what was certified, if the ledger still says so."""
    signed = "Nobody signed the certificate: anyone may have made it."
    if public_key is not None or certificate.signature:
        key = None if public_key is None else public_key.strip().lower()
        certificate.check_signature(key)
        signed = f"It was signed by the key {certificate.public_key}"
        signed += (
            ", as demanded."
            if key is not None
            else ". Whose key this is, the certificate does not show: demand "
            "one with `--public-key`."
        )
    checked = certificate.check(ledger)
    more = len(ledger) - certificate.rounds
    since = (
        f"The ledger extends what was certified: {more:,} rounds follow."
        if more > 0
        else "The ledger holds the rounds that were certified, and no more."
    )
    return [since, *checked.sentences, signed]


COMMANDS = {
    "report": Command(
        "print who spent what privacy, and which theorem covers it",
        (*_GUARANTEE, "all"),
        _report,
    ),
    "runs": Command(
        "list the runs of a ledger with their epsilon and the running total",
        _GUARANTEE,
        _about_guarantee(runs_document),
    ),
    "explain": Command(
        "say in sentences what epsilon means for one person",
        _GUARANTEE,
        _about_guarantee(explain),
    ),
    "afford": Command(
        "print how many more rounds a privacy target leaves room for",
        ("file", "target", "planned delta", "neighbours", "units"),
        _afford,
    ),
    "budget": Command(
        "list the accounts of a ledger and what is left, or open one",
        (
            *("file", "open", "epsilon of an account", "delta of an account"),
            *("order", "neighbours"),
        ),
        _accounts,
    ),
    "plan": Command(
        "print the noise that a privacy target needs",
        (
            *("records", "target", "delta of N units", "epochs"),
            *("batch sizes", "ledger", "rows per unit", "neighbours"),
        ),
        _plan,
    ),
    "seal": Command(
        "seal a ledger, and write a certificate of what it held and cost",
        ("file", "planned delta", "out", "note", "key", "neighbours"),
        _seal,
    ),
    "verify": Command(
        "check that the rows of a ledger are as written",
        ("file", "head", "against", "public key"),
        _verify,
    ),
}
