"""The code of the documents, checked by mypy and never run.

Functions, so that each example has its own names. What is built on TensorFlow
and Keras, which ship no types, is checked for names and arguments only.
"""

from typing import assert_type

import numpy as np
import numpy.typing as npt

from keras_dp import accountants
from keras_dp.accountants.trade_off_curves import TradeOff
from keras_dp.ledger import (
    CountedRound,
    GaussianSum,
    PoissonSampling,
    PrivacyLedger,
    Round,
    RunWriter,
    Verification,
)
from keras_dp.reporting import make_report, render
from keras_dp.reporting.document import Document

Floats = npt.NDArray[np.float32]


def replay_a_ledger() -> dict[str, float]:
    """Prices a finished run by every accountant that can."""
    with PrivacyLedger.open("clinic.ledger", mode="r") as ledger:
        assert_type(ledger, PrivacyLedger)
        assert_type(ledger.rounds, tuple[CountedRound, ...])
        assert_type(ledger.verify(), Verification)
        available = accountants.available_accountants(ledger)
        assert_type(available, tuple[accountants.Accountant, ...])
        chosen: tuple[accountants.Accountant, ...] = (
            accountants.Fourier(),
            accountants.RDP(conversion="moments"),
            accountants.RDP(conversion="classic"),
        )
        costs = {
            each.name: each.epsilon(ledger, delta=1e-6)
            for each in chosen
            if each in available
        }
        costs["delta"] = accountants.RDP().delta(
            ledger, epsilon=3.0, neighbours="replace_one"
        )
        lower, upper = accountants.Fourier().epsilon_bounds(ledger, delta=1e-6)
        costs["width"] = upper - lower
        attacks = accountants.trade_off(ledger)
        assert_type(attacks, TradeOff)
        report = make_report(ledger, delta=1e-6, neighbours="zero_out")
        assert_type(report, Document)
        assert_type(render(report, "json"), str)
        return costs


def write_a_ledger_by_hand() -> float:
    """Plans, or records what another framework released."""
    ledger = PrivacyLedger.in_memory(dataset="paper", unit="example")
    sampling = PoissonSampling(probability=0.01)
    queries = [GaussianSum(name="gradients", l2_norm_bound=1.0, noise_stddev=4)]
    ledger.record(sampling, queries, count=10_000)
    run = ledger.start_run("a")
    run.cover(Round(sampling, tuple(queries)), 10)
    assert_type(run, RunWriter)
    run.settle(used=3)
    for round_, count in ledger:
        assert_type(round_, Round)
        assert_type(count, int)
    return accountants.RDP().epsilon(ledger, delta=1e-5)


def mistakes(ledger: PrivacyLedger) -> None:
    """Each line is an error to mypy: an unused `ignore` would be one, too."""
    accountants.RDP().epsilon(ledger)  # type: ignore[call-arg]
    accountants.RDP().epsilon(ledger, 1e-5)  # type: ignore[call-arg]
    accountants.RDP().epsilon(
        ledger,
        delta=1e-5,
        neighbours="bounded",  # type: ignore[arg-type]
    )
    accountants.RDP().epsilon([1, 2], delta=1e-5)  # type: ignore[list-item]
    accountants.Accountant()  # type: ignore[abstract]
    ledger.record(GaussianSum("all", 1.0, 4.0), [])  # type: ignore[arg-type]
    PrivacyLedger.open("a.ledger", mode="w")  # type: ignore[arg-type]
    PoissonSampling(0.01).probability = 1.0  # type: ignore[misc]
