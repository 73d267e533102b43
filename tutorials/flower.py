"""Federated averaging over Flower, private for each user.

    pip install "keras_dp[flower]" "flwr[simulation]"
    python tutorials/flower.py [--users 40] [--rounds 20] [--out out/flower]

Users are the nodes of a Flower federation. Each has records of its own, made
in `flower_client.py`, and trains on them by plain Keras (`FlowerClient`). The
server (`FlowerStrategy`) draws nodes, clips what each sends, adds noise, and
keeps the ledger. Flower's simulation runs all nodes on this machine; the two
apps are those that Flower deploys to many.
"""

import os

# Neither Flower nor Ray reports to its makers from here.
os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")

import argparse
import logging
import time
from pathlib import Path

import flower_client
from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation

import keras_dp
from keras_dp.experimental.federation import FederatedModel, FlowerStrategy
from keras_dp.planning import calibrate_noise
from keras_dp.reporting import make_report

SAMPLING_PROBABILITY = 0.5
TARGET_EPSILON, DELTA = 2.9, 1e-3


def server_app(users: int, rounds: int, path: Path) -> ServerApp:
    """Returns the server, which trains and prints the bill."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        denominator = SAMPLING_PROBABILITY * users
        federated = FederatedModel(
            flower_client.make_model(), flower_client.LOCAL
        )
        held_out = flower_client.records(seed=2**31)
        noise_multiplier = calibrate_noise(
            target_epsilon=TARGET_EPSILON,
            delta=DELTA,
            sampling_probability=SAMPLING_PROBABILITY,
            rounds=rounds,
        )
        with keras_dp.PrivacyLedger.open(
            path, dataset="phones", unit="user"
        ) as ledger:
            federated.compile(
                keras_dp.DPSGD(
                    1.0,
                    query=keras_dp.GaussianAverageQuery(
                        0.5,
                        noise_multiplier=noise_multiplier,
                        denominator=denominator,
                    ),
                    ledger=ledger,
                ),
                loss="mse",
            )

            def evaluated(number: int, arrays: ArrayRecord) -> MetricRecord:
                loss = federated.evaluate(*held_out, verbose=0)
                return MetricRecord({"loss": float(loss)})

            strategy = FlowerStrategy(
                federated,
                sampling_probability=SAMPLING_PROBABILITY,
                min_available_nodes=users,
            )
            result = strategy.start(
                grid, num_rounds=rounds, timeout=300, evaluate_fn=evaluated
            )
            losses = [
                float(each["loss"])
                for _, each in sorted(result.evaluate_metrics_serverapp.items())
            ]
            print(
                f"Loss on held-out records: {losses[0]:.3f}, {losses[-1]:.3f}"
            )
            print(make_report(ledger, delta=DELTA))
        print(f"Ledger: {path}", flush=True)

    return app


def main() -> None:
    """Runs the simulation."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--users", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--out", type=Path, default=Path("out/flower"))
    options = parser.parse_args()
    logging.getLogger("flwr").propagate = False  # It prints on its own.
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / f"run-{time.time_ns()}.ledger"  # A new run each.
    run_simulation(
        server_app(options.users, options.rounds, path),
        flower_client.app,
        num_supernodes=options.users,
        backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0}},
    )


if __name__ == "__main__":
    main()
