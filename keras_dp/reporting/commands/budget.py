"""`keras-dp budget`: the accounts of a ledger, and how to open one."""

import argparse

from keras_dp.budgets import RenyiFilter, open_account
from keras_dp.errors import BudgetExceededError
from keras_dp.ledger import PrivacyLedger
from keras_dp.reporting.account_state import accounts_document
from keras_dp.reporting.commands import arguments
from keras_dp.reporting.commands.arguments import Command
from keras_dp.reporting.document import Document


def _arguments(parser: argparse.ArgumentParser) -> None:
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


def _answer(options: argparse.Namespace) -> Document:
    """Returns the accounts; with `--open`, opens one before.

    Raises:
        ValueError: The account cannot be opened with these arguments.
    """
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
    _arguments,
    _answer,
)
