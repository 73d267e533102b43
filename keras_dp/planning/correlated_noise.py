"""The noise of a correlated mechanism that meets a privacy target."""

from keras_dp.accountants.accountant import Accountant
from keras_dp.accountants.normalize.adjacency import Neighbours
from keras_dp.accountants.normalize.rounds import LedgerLike
from keras_dp.ledger import (
    CorrelatedSum,
    CountedRound,
    CyclicPoissonSampling,
    Round,
    Strategy,
)
from keras_dp.planning.calibration import calibrate_scale


def calibrate_correlated_noise(
    strategy: Strategy,
    rounds: int,
    *,
    target_epsilon: float,
    delta: float,
    classes: int,
    sampling_probability: float = 1.0,
    ledger: LedgerLike = (),
    accountant: Accountant | None = None,
    neighbours: Neighbours | None = None,
) -> float:
    """Returns the least noise multiplier of a query with correlated noise.

    It is that of a `CorrelatedSumQuery` whose samples are from
    `CyclicPoissonBatches`.

    Guarantee: as for `calibrate_scale`.

    Args:
        strategy: The strategy of the query.
        rounds: The number of rounds of the query, >= 1.
        target_epsilon: > 0.
        delta: In (0, 1).
        classes: The number of classes of the sampler, >= 1. At 1, with
            probability 1, every record takes part in every round. With more
            classes, and probability 1, samples are balls in bins.
        sampling_probability: Chance of a record to take part in the round of
            its class, in (0, 1].
        ledger: See `calibrate_noise`.
        accountant: See `calibrate_noise`.
        neighbours: See `calibrate_noise`.

    Raises:
        CalibrationError: See `calibrate_noise`.
        ValueError: A number is out of its range.

    >>> from keras_dp.ledger import BandedToeplitz
    >>> calibrate_correlated_noise(
    ...     BandedToeplitz((1, 0.5)), 100, target_epsilon=1, delta=1e-5,
    ...     classes=2, sampling_probability=0.02)
    1.1743...
    """

    def rounds_for(scale: float) -> list[CountedRound]:
        event = CorrelatedSum("sum", 1.0, scale, strategy, rounds, "planned")
        return [
            CountedRound(
                Round(
                    CyclicPoissonSampling(
                        f"planned-{cycle}", classes, sampling_probability
                    ),
                    (event,),
                ),
                min(classes, rounds - cycle * classes),
            )
            for cycle in range(-(-rounds // classes))
        ]

    return calibrate_scale(
        rounds_for,
        target_epsilon=target_epsilon,
        delta=delta,
        ledger=ledger,
        accountant=accountant,
        neighbours=neighbours,
    )
