"""Writes one ledger of each kind, as the present version writes them.

    python -m tests.released_ledgers

makes `tests/data/ledgers/VERSION`, with what each ledger costs. Later versions
must open these files and give the same numbers. Ledgers that are there already
stay as they are, unless the version is written `--again`.
"""

import json
import math
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import keras_dp
from keras_dp import accountants, budgets
from keras_dp.ledger import (
    BandedToeplitz,
    CoordinateBounds,
    CorrelatedSum,
    DisjointBatches,
    EncodedSum,
    FixedSizeWithoutReplacement,
    FullDataset,
    GaussianSum,
    LaplaceNoise,
    NonPrivateSum,
    PoissonSampling,
    PoissonUserSampling,
    PrivacyLedger,
    Round,
    Selection,
    ThresholdedSum,
    TruncatedNegativeBinomial,
    TruncatedPoissonSampling,
    UnverifiedSampling,
)
from keras_dp.reporting import cli
from keras_dp.spending import RunLimits

FOLDER = Path(__file__).parent / "data" / "ledgers"
DELTA = 1e-5
NOISY = GaussianSum("gradients", 1.0, 1.1)


def poisson(ledger: PrivacyLedger) -> None:
    """A run with a plan, whose reserved rounds did not all run."""
    sampling = PoissonSampling(0.01, drawn_by_library=True)
    with ledger.start_run("training", description="the first one") as run:
        run.plan([(Round(sampling, (NOISY,)), 1000)], delta=DELTA)
        run.record(sampling, [NOISY], count=600)
        run.cover(Round(sampling, [NOISY]), 400)
        run.settle(150)


def samplings(ledger: PrivacyLedger) -> None:
    """Samples that are not Poisson samples."""
    for sampling in (
        FixedSizeWithoutReplacement(100, 10_000),
        TruncatedPoissonSampling(0.01, 150, 10_000),
        UnverifiedSampling(),
    ):
        ledger.record(sampling, [GaussianSum("gradients", 1.0, 20.0)], count=5)


def epochs(ledger: PrivacyLedger) -> None:
    """Disjoint batches of two passes."""
    for epoch in ("a", "b"):
        ledger.record(DisjointBatches(epoch), [NOISY], count=50)


def users(ledger: PrivacyLedger) -> None:
    """Users with all their records, drawn as a whole."""
    ledger.record(PoissonUserSampling(0.02), [NOISY], count=300)


def rows_of_a_person(ledger: PrivacyLedger) -> None:
    """Samples of rows, of which a person has up to three."""
    ledger.record(PoissonSampling(0.01), [NOISY], count=300)


def noises(ledger: PrivacyLedger) -> None:
    """Sums with other noise than normal."""
    bounds = CoordinateBounds.from_vectors([[3, 1]])
    for query in (
        EncodedSum("encoded", bounds, LaplaceNoise(8.0)),
        ThresholdedSum("words", 1.0, 4.0, max_keys=50, threshold=25.0),
    ):
        ledger.record(FullDataset(), [query])


def correlated(ledger: PrivacyLedger) -> None:
    """Disjoint batches, whose noise is correlated."""
    strategy = BandedToeplitz((1.0, 0.5))
    query = CorrelatedSum("gradients", 1.0, 4.0, strategy, 40, "one")
    ledger.record(DisjointBatches("d"), [query], count=40)


def search(ledger: PrivacyLedger) -> None:
    """The best of some trainings, each of which is scored."""
    step = Round(PoissonSampling(0.01), (GaussianSum("gradients", 1.0, 2.0),))
    score = Round(FullDataset(), (GaussianSum("score", 1.0, 20.0),))
    law = TruncatedNegativeBinomial(shape=1, mean=10)
    found = Selection([[(step, 100), (score, 1)]], law).round
    ledger.record(found.sampling, found.queries)


def accounts(ledger: PrivacyLedger) -> None:
    """A filter, which paid for some rounds, and a plan."""
    sampling = PoissonSampling(0.01)
    plan = [(Round(sampling, (NOISY,)), 100)]
    for name, budget in (
        ("tuning", budgets.RenyiFilter(3.0, DELTA)),
        ("final", budgets.FixedPlan(plan, 4.0, DELTA)),
    ):
        budgets.open_account(ledger, name, budget)
    limits = RunLimits(ledger, account="tuning")
    with ledger.start_run("trial", purpose="trial", limits=limits) as run:
        run.record(sampling, [NOISY], count=200)


def without_noise(ledger: PrivacyLedger) -> None:
    """A release that nothing protects."""
    ledger.record(PoissonSampling(0.5), [NonPrivateSum("sum")])


KINDS: tuple[Callable[[PrivacyLedger], None], ...] = (
    poisson,
    samplings,
    epochs,
    users,
    rows_of_a_person,
    noises,
    correlated,
    search,
    accounts,
    without_noise,
)


def costs(ledger: PrivacyLedger) -> dict[str, float]:
    """Returns epsilon by each accountant that can replay a ledger."""
    return {
        accountant.name: accountant.epsilon(ledger, delta=DELTA)
        for accountant in accountants.available_accountants(ledger)
    }


def stated(folder: Path) -> dict[str, dict[str, float]]:
    """Returns what the ledgers in a folder cost when they were written."""
    text = (folder / "epsilons.json").read_text("utf-8")
    return {
        ledger: {
            accountant: math.inf if epsilon is None else epsilon
            for accountant, epsilon in found.items()
        }
        for ledger, found in json.loads(text).items()
    }


def write(folder: Path) -> None:
    """Writes each ledger, a certificate of it, and what it costs."""
    folder.mkdir(parents=True, exist_ok=True)
    numbers = folder / "epsilons.json"
    found = json.loads(numbers.read_text("utf-8")) if numbers.exists() else {}
    for kind in KINDS:
        path = folder / f"{kind.__name__}.ledger"
        if path.exists():
            continue
        rows = 3 if kind is rows_of_a_person else 1
        with PrivacyLedger.open(
            path, dataset="people", unit="person", rows_per_unit=rows
        ) as ledger:
            kind(ledger)
            epsilons = costs(ledger)
        finite = {k: v for k, v in epsilons.items() if math.isfinite(v)}
        # JSON has no infinity.
        found[kind.__name__] = {k: finite.get(k) for k in epsilons}
        certificate = str(path.with_suffix(".json"))
        sealing = ["seal", str(path), "--delta", "1e-5", "--out", certificate]
        if finite and cli.main(sealing):
            raise RuntimeError(f"{path} was not sealed.")
    text = json.dumps(found, indent=1, ensure_ascii=False)
    numbers.write_text(f"{text}\n", "utf-8")


if __name__ == "__main__":
    new = FOLDER / keras_dp.__version__
    if "--again" in sys.argv:  # Before the version is released.
        shutil.rmtree(new, ignore_errors=True)
    with (
        mock.patch("socket.gethostname", return_value="example"),
        mock.patch("getpass.getuser", return_value="alice"),
    ):
        write(new)
