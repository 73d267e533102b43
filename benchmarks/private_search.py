"""What a private search costs, beside one trial and beside seeing all trials.

    python benchmarks/private_search.py

A trial is a training of 1,000 rounds with Poisson samples of 2 % of the records
and the noise at which it has the epsilon of the row, at delta = 1e-5. The law
of the number of trials is the geometric one.
"""

from keras_dp.accountants.claim import rounded_up
from keras_dp.accountants.replay import Replay
from keras_dp.ledger import (
    GaussianSum,
    PoissonSampling,
    Round,
    Selection,
    TruncatedNegativeBinomial,
)
from keras_dp.planning import calibrate_noise

DELTA, PROBABILITY, ROUNDS = 1e-5, 0.02, 1000
EPSILONS, MEANS = (1.0, 3.0, 8.0), (10, 30, 100)


def epsilon(rounds: list[tuple[Round, int]]) -> str:
    """Returns the certified epsilon of some rounds."""
    return rounded_up(Replay(rounds).claim(delta=DELTA).epsilon)


def main() -> None:
    """Prints the table of `docs/measurements.md`."""
    print("| One trial | Trials | Search | All trials seen |")
    print("| --- | --- | --- | --- |")
    for one in EPSILONS:
        noise = calibrate_noise(
            target_epsilon=one,
            delta=DELTA,
            sampling_probability=PROBABILITY,
            rounds=ROUNDS,
        )
        step = Round(
            PoissonSampling(PROBABILITY),
            (GaussianSum("gradients", 1.0, noise),),
        )
        for mean in MEANS:
            law = TruncatedNegativeBinomial(shape=1, mean=mean)
            search = Selection((((step, ROUNDS),),), law)
            print(
                f"| {one:g} | {mean} | {epsilon([(search.round, 1)])} | "
                f"{epsilon([(step, ROUNDS * mean)])} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
