"""The code of the documents, checked by mypy and never run.

Functions, so that each example has its own names. What is built on TensorFlow
and Keras, which ship no types, is checked for names and arguments only.
"""

from typing import Any, assert_type

import keras
import numpy as np
import numpy.typing as npt

import keras_dp
from keras_dp import accountants, planning
from keras_dp.accountants.attacks.trade_off import TradeOff
from keras_dp.ledger import (
    CountedRound,
    GaussianNoise,
    GaussianSum,
    PoissonSampling,
    PrivacyLedger,
    Round,
    RunWriter,
    StudentTNoise,
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


def write_a_loop(model: Any, samples: keras_dp.PoissonBatches) -> None:
    """Applies private gradients by an ordinary optimizer."""
    gradients = keras_dp.PrivateGradients(
        model,
        "mse",
        query=keras_dp.GaussianAverageQuery(
            1.0, noise_multiplier=1.1, denominator=256
        ),
        ledger=keras_dp.PrivacyLedger.in_memory(dataset="clinic-2026"),
    )
    optimizer = keras.optimizers.Adam(1e-3)
    for answer in gradients.over(samples, rounds=10, target_epsilon=3.0):
        optimizer.apply(answer, model.trainable_variables)


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


def plan_without_a_ledger() -> float:
    """Prices rounds that no ledger holds, and calibrates noise."""
    step = Round(PoissonSampling(0.01), (GaussianSum("all", 1.0, 4.0),))
    noise_multiplier = planning.calibrate_noise(
        target_epsilon=3.0, delta=1e-5, sampling_probability=0.05, rounds=60
    )
    assert_type(noise_multiplier, float)
    return accountants.RDP().epsilon([(step, 10_000)], delta=1e-5)


def train_groups_with_private_metrics(
    model: keras.Model, samples: keras_dp.sampling.PoissonBatches
) -> None:
    """Plans the noise of groups, and lets no raw metric out."""
    plan = keras_dp.optimizers.plan_groups(
        model,
        {"conv": ("conv*", "stem"), "rest": ...},
        noise_multiplier=1.1,
        l2_norm_clips={"conv": 1.0, "rest": 0.5},
        denominator=100,
    )
    assert_type(plan.groups, keras_dp.optimizers.VariableGroups)
    private = keras_dp.PrivateModel(model)
    private.compile(
        keras_dp.optimizers.DPSGD(
            0.1,
            query=plan.query,
            groups=plan.groups,
            ledger=PrivacyLedger.in_memory(dataset="clinic-2026"),
        ),
        loss="sparse_categorical_crossentropy",
        private_metrics={
            "loss": keras_dp.PrivateLoss(
                keras_dp.GaussianAverageQuery(3.0, 30.0, denominator=100)
            )
        },
        batch_statistics=keras_dp.GaussianAverageQuery(8.0, 8.0, 100),
    )
    private.fit(samples)


def compose_mechanisms() -> keras_dp.dp_queries.DPQuery:
    """Nests queries in each other."""
    vectors = keras_dp.dp_queries.PreselectedVectors(
        GaussianNoise(1.0), count=100, size=1000, l2_norm=1.0
    )
    encoded = keras_dp.dp_queries.EncodedSumQuery(
        vectors, StudentTNoise(1.0, df=9.0)
    )
    clipped = keras_dp.dp_queries.AdaptiveClipSumQuery(
        1.0, 1.1, 10.0, expected_num_records=256
    )
    return keras_dp.dp_queries.NestedQuery(
        {
            "head": keras_dp.dp_queries.NormalizedQuery(clipped, 256),
            "rest": keras_dp.dp_queries.KSDenoisedQuery(
                keras_dp.dp_queries.NormalizedQuery(encoded, 256)
            ),
        }
    )


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
