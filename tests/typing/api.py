"""The code of the documents, checked by mypy and never run.

Functions, so that each example has its own names. What is built on TensorFlow
and Keras, which ship no types, is checked for names and arguments only.
"""

from typing import Any, assert_type

import keras
import numpy as np
import numpy.typing as npt

import keras_dp
from keras_dp import accountants
from keras_dp.accountants.attacks.trade_off import TradeOff
from keras_dp.ledger import (
    CountedRound,
    GaussianSum,
    PoissonSampling,
    PrivacyLedger,
    Round,
    RunWriter,
    Verification,
)
from keras_dp.optimizers import LedgerOfChief
from keras_dp.reporting import Report, make_report, render

Floats = npt.NDArray[np.float32]


def swap_an_optimizer(x: Floats, y: Floats) -> dict[str, list[float]]:
    """Trains a Keras model privately: two changed lines and a sampler."""
    model = keras.Sequential([keras.Input((20,)), keras.layers.Dense(2)])
    query = keras_dp.GaussianAverageQuery(
        l2_norm_clip=1.0, sum_stddev=1.1, denominator=256
    )
    ledger = keras_dp.PrivacyLedger.open(
        "clinic.ledger", dataset="clinic-2026", unit="patient"
    )
    assert_type(ledger, PrivacyLedger)

    private = keras_dp.PrivateModel(model)
    private.compile(
        optimizer=keras_dp.optimizers.DPAdam(1e-3, query=query, ledger=ledger),
        loss="sparse_categorical_crossentropy",
        metrics=["accuracy"],
    )
    samples = keras_dp.sampling.PoissonBatches(
        (x, y), sampling_probability=256 / len(x)
    )
    assert_type(samples.rounds_per_epoch, int)
    history: dict[str, list[float]] = private.fit(
        samples,
        epochs=15,
        delta=1e-6,
    ).history
    model.save("model.keras")
    ledger.close()
    return history


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
        assert_type(report, Report)
        assert_type(render(report.document(), "json"), str)
        return costs


def compose_groups(model: Any) -> keras_dp.DPOptimizer:
    """Gives heterogeneous layers their own clip and noise."""
    groups = keras_dp.optimizers.group_variables(
        model, {"embedding": "embed*", "conv": "conv*", "rest": ...}
    )
    assert_type(groups, keras_dp.optimizers.VariableGroups)
    assert_type(groups["rest"], tuple[str, ...])
    query = keras_dp.dp_queries.NestedQuery(
        {
            "embedding": keras_dp.GaussianAverageQuery(
                0.3, sum_stddev=0.9, denominator=256
            ),
            "conv": keras_dp.GaussianAverageQuery(
                1.0, sum_stddev=1.4, denominator=256
            ),
            "rest": keras_dp.dp_queries.GaussianSumQuery(
                l2_norm_clip=1.0, stddev=1.4
            ),
        }
    )
    general: keras_dp.dp_queries.DPQuery = query
    ledger = keras_dp.PrivacyLedger.in_memory(dataset="clinic-2026")
    named: keras_dp.DPOptimizer = keras_dp.optimizers.DPSGD(
        0.1, query=general, groups=groups, ledger=ledger
    )
    assert_type(named.ledger, PrivacyLedger | LedgerOfChief | None)
    return keras_dp.DPOptimizer(
        keras.optimizers.SGD(0.1),
        query=query,
        groups={"embedding": "embed*", "conv": "conv*", "rest": ...},
        ledger=ledger,
    )


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
