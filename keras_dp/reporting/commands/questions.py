"""Commands that ask a ledger, or a planned training; and `keras-dp budget`."""

import argparse
import dataclasses

from keras_dp.accountants.coverage import spans_of
from keras_dp.accountants.replay import Replay
from keras_dp.budgets import RenyiFilter, open_account
from keras_dp.budgets.ledger_guarantee import AS_IF_FIXED
from keras_dp.errors import BudgetExceededError, UnsupportedEventError
from keras_dp.ledger import PrivacyLedger, Round
from keras_dp.planning import plan
from keras_dp.planning.calibration import MOST_ROUNDS, default_delta
from keras_dp.planning.plan import sizes_of
from keras_dp.planning.rounds_left import rounds_left
from keras_dp.reporting.account_state import accounts_document
from keras_dp.reporting.commands import arguments
from keras_dp.reporting.commands.arguments import Command
from keras_dp.reporting.document import Code, Document, Table, Text
from keras_dp.reporting.explanation import explain
from keras_dp.reporting.report import make_report
from keras_dp.reporting.run_costs import json_claim, runs_document
from keras_dp.reporting.wording import counted, sampled

# A plan has so many epochs by default.
_EPOCHS = 40
# A ledger, and the guarantee that is asked of it.
_GUARANTEE = ("file", "planned delta", "neighbours", "units")


def _report_arguments(parser: argparse.ArgumentParser) -> None:
    arguments.add(parser, *_GUARANTEE)
    parser.add_argument(
        "--all",
        action="store_true",
        help="also say what epsilon means, give it by every accountant, and "
        "check every row, as other formats than text always do",
    )


def _report(options: argparse.Namespace) -> Document:
    details = options.all or options.format != "text"
    with PrivacyLedger.open(options.file, mode="r") as ledger:
        return make_report(
            ledger,
            **arguments.question(options, ledger),
            # Some take long, and nobody has asked for them.
            accountants=None if details else (),
            details=details,
        )


def _runs(options: argparse.Namespace) -> Document:
    with PrivacyLedger.open(options.file, mode="r") as ledger:
        return runs_document(ledger, **arguments.question(options, ledger))


def _explain(options: argparse.Namespace) -> Document:
    with PrivacyLedger.open(options.file, mode="r") as ledger:
        return explain(ledger, **arguments.question(options, ledger))


def _afford(options: argparse.Namespace) -> Document:
    """Returns how many more rounds like the last one there is room for.

    A run that kept to its plan counts as its whole plan.
    """
    with PrivacyLedger.open(options.file, mode="r") as ledger:
        ran = Replay(ledger)
        question = arguments.question(options, ledger)
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
    released = tuple(query.words for query in last.queries)
    return Document(
        f"What is left of {held.header.dataset}",
        (
            Text("", tuple(sentences)),
            Table(
                "The last round",
                ("sample", "released over it"),
                ((sampled(last.sampling), released),),
            ),
        ),
        facts,
    )


def _last_of(held: Replay) -> Round:
    if not held.rounds:
        raise ValueError(
            "`file` must be a ledger with at least one round. Received: a "
            "ledger without rounds. Plan a first training with `keras-dp plan`."
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


def _plan_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--records",
        type=arguments.count,
        required=True,
        help="records in the data set",
    )
    arguments.add(parser, "epsilon", "delta of N units")
    parser.add_argument(
        "--epochs",
        type=arguments.count,
        default=_EPOCHS,
        help=f"epochs of the training (default: {_EPOCHS})",
    )
    parser.add_argument(
        "--batch-sizes",
        type=arguments.count,
        nargs="+",
        help="expected sizes of a sample (default: powers of two up to a "
        "quarter of the records)",
    )
    parser.add_argument(
        "--rows-per-unit",
        type=arguments.count,
        default=1,
        help="records that one unit has at most, for all of which epsilon is "
        "(default: 1)",
    )
    arguments.add(parser, "neighbours")


def _plan(options: argparse.Namespace) -> Document:
    units = max(1, options.records // options.rows_per_unit)
    found = plan(
        options.records,
        target_epsilon=options.epsilon,
        delta=options.delta or default_delta(units),
        epochs=options.epochs,
        batch_sizes=options.batch_sizes or sizes_of(options.records),
        neighbours=options.neighbours,
        units=options.rows_per_unit,
    )
    return Document(
        "The noise that a privacy target needs",
        (Code(tuple(str(found).split("\n"))),),
        {
            "target_epsilon": found.target_epsilon,
            "delta": found.delta,
            "epochs": found.epochs,
            "accountant": found.accountant,
            "neighbours": found.neighbours,
            "plans": [dataclasses.asdict(each) for each in found.rows],
        },
    )


REPORT = Command(
    "print who spent what privacy, and which theorem covers it",
    _report_arguments,
    _report,
)
RUNS = Command(
    "list the runs of a ledger with their epsilon and the running total",
    lambda parser: arguments.add(parser, *_GUARANTEE),
    _runs,
)
EXPLAIN = Command(
    "say in sentences what epsilon means for one person",
    lambda parser: arguments.add(parser, *_GUARANTEE),
    _explain,
)
AFFORD = Command(
    "print how many more rounds a privacy target leaves room for",
    lambda parser: arguments.add(
        parser, "file", "epsilon", "planned delta", "neighbours", "units"
    ),
    _afford,
)
PLAN = Command(
    "print the noise that a privacy target needs", _plan_arguments, _plan
)


def _budget_arguments(parser: argparse.ArgumentParser) -> None:
    arguments.add(parser, "file")
    parser.add_argument("--open", metavar="NAME", help="open this account")
    parser.add_argument("--epsilon", type=arguments.positive)
    parser.add_argument("--delta", type=arguments.delta, help="in (0, 1)")
    parser.add_argument(
        "--order",
        type=arguments.positive,
        help="of the Rényi filter, > 1 (default: the one with the most room)",
    )
    arguments.add(parser, "neighbours")


def _accounts(options: argparse.Namespace) -> Document:
    if options.open is None:
        _check_nothing_to_open(options)
        with PrivacyLedger.open(options.file, mode="r") as ledger:
            return accounts_document(ledger)
    budget = _budget(options)
    with arguments.existing(options.file) as ledger:
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


BUDGET = Command(
    "list the accounts of a ledger and what is left, or open one",
    _budget_arguments,
    _accounts,
)
