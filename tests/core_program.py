"""What the core does where nothing but NumPy and SciPy is installed.

Tests run it in an empty environment, and where imports of the others fail.
"""

import contextlib
import io
import json
import sys

import numpy as np

from keras_dp import accountants, budgets, planning
from keras_dp.ledger import GaussianSum, PrivacyLedger
from keras_dp.reporting import cli, make_report
from keras_dp.sampling import PoissonBatches

RECORDS, DELTA = 10_000, 1e-5


def command(*arguments: str) -> str:
    """Returns what `keras-dp` prints."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        assert cli.main(arguments) == 0, arguments
    return printed.getvalue()


def main() -> None:
    """Plans, samples, records, counts, reports, seals and verifies."""
    noise = planning.calibrate_noise(
        target_epsilon=1.0,
        delta=DELTA,
        sampling_probability=0.01,
        rounds=1000,
    )
    # Whoever has the records draws their indices.
    sampler = PoissonBatches(np.arange(RECORDS), sampling_probability=0.01)
    drawn = next(iter(sampler)).mask.sum()
    path = "people.ledger"
    with PrivacyLedger.open(path, dataset="people", unit="person") as ledger:
        sums = [GaussianSum("gradients", 1.0, noise)]
        ledger.record(sampler.sampling_event, sums, count=1000)
        budgets.open_account(ledger, "team", budgets.RenyiFilter(2.0, DELTA))
        epsilon = accountants.Fourier().epsilon(ledger, delta=DELTA)
        assert str(make_report(ledger, delta=DELTA))
    for arguments in (
        ["report", path, "--delta", "1e-5", "--format", "html"],
        ["runs", path, "--delta", "1e-5"],
        ["explain", path, "--delta", "1e-5"],
        ["afford", path, "--delta", "1e-5", "--epsilon", "2"],
        ["budget", path],
        ["seal", path, "--delta", "1e-5", "--out", "sealed.json"],
        ["verify", path, "--against", "sealed.json"],
    ):
        assert command(*arguments), arguments
    sys.stdout.write(
        json.dumps({"epsilon": epsilon, "drawn": int(drawn)}) + "\n"
    )


if __name__ == "__main__":
    main()
