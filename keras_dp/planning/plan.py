"""Plans trainings of several batch sizes that meet one privacy target."""

import dataclasses
import math
from collections.abc import Sequence

from keras_dp import _check
from keras_dp.accountants.accountant import Accountant
from keras_dp.accountants.normalize.rounds import LedgerLike, Neighbours
from keras_dp.accountants.replay import replay_of
from keras_dp.planning.calibration import (
    calibrate_scale,
    check_below_share_of,
    checked_target,
    poisson_training,
)
from keras_dp.sampling.draw import default_physical_batch_size

# A share of the best signal that a smaller batch, with more steps, may lose.
ENOUGH = 0.95
# Sizes are powers of two from the smallest to this share of the data.
LARGEST_SHARE, _SMALLEST_BATCH = 0.25, 32
FEWEST_STEPS = 100


@dataclasses.dataclass(frozen=True, slots=True)
class PlannedTraining:
    """One batch size of a plan, with the training that it leads to.

    Attributes:
        batch_size: The expected number of records in a sample. It is the
            denominator of the average.
        sampling_probability: The probability that a round samples a record.
        steps: The number of rounds in all epochs. An epoch has
            `round(1 / sampling_probability)` rounds.
        noise_multiplier: The standard deviation of the noise on the sum,
            divided by the bound on one record.
        epsilon: The epsilon of the given ledger and this training together. It
            is at most the target.
        physical_batch_size: The number of rows of a padded batch. A sample fits
            into it with a probability of at least 99.99 %. `PoissonBatches`
            chooses the same number by default.
    """

    batch_size: int
    sampling_probability: float
    steps: int
    noise_multiplier: float
    epsilon: float
    physical_batch_size: int

    @property
    def noise_per_example(self) -> float:
        """The stddev of the noise on the average over the bound on a record."""
        return self.noise_multiplier / self.batch_size

    @property
    def signal(self) -> float:
        """The largest sum of all averages, over the stddev of its noise.

        The sum is largest if every example has a gradient of the largest norm,
        in the same direction. It is then `steps`, and the standard deviation is
        `sqrt(steps) * noise_per_example`.
        """
        return math.sqrt(self.steps) / self.noise_per_example


@dataclasses.dataclass(frozen=True, slots=True)
class PlannedTrainings:
    """Trainings with several batch sizes that all meet one privacy target.

    Attributes:
        population_size: The number of records of the data set.
        target_epsilon: The upper bound on the epsilon of every row.
        delta: The delta of every epsilon.
        epochs: The number of epochs of every row.
        accountant: The name of the accountant.
        neighbours: The adjacency relation.
        rows: One row for each batch size, in the given order.
    """

    population_size: int
    target_epsilon: float
    delta: float
    epochs: int
    accountant: str
    neighbours: Neighbours
    rows: tuple[PlannedTraining, ...]

    @property
    def recommended(self) -> PlannedTraining:
        """The row of the smallest batch size with 95 % of the best signal.

        A larger batch has fewer steps and gains little signal. Rows of fewer
        than 100 steps are left out. If no row has 100 steps, this is the row
        with the most steps.
        """
        long = [row for row in self.rows if row.steps >= FEWEST_STEPS]
        if not long:
            return max(self.rows, key=lambda row: row.steps)
        best = max(row.signal for row in long)
        enough = (row for row in long if row.signal >= ENOUGH * best)
        return min(enough, key=lambda row: row.batch_size)


def sizes_of(population_size: int) -> list[int]:
    """Returns the sizes of samples that are worth a look.

    >>> sizes_of(1_000)
    [32, 64, 128]
    """
    most = max(1, int(population_size * LARGEST_SHARE))
    sizes = [2**k for k in range(most.bit_length())]
    return [x for x in sizes if x >= _SMALLEST_BATCH] or [most]


def plan(
    population_size: int,
    *,
    target_epsilon: float,
    delta: float,
    epochs: int,
    batch_sizes: Sequence[int],
    ledger: LedgerLike = (),
    accountant: Accountant | None = None,
    neighbours: Neighbours | None = None,
    units: int = 1,
) -> PlannedTrainings:
    """Returns the noise that each batch size needs to meet a privacy target.

    `reporting.plan_document` shows the result as a table.

    Guarantee: each step of a row releases one Gaussian sum over a Poisson
    sample, with the probability and the noise multiplier of the row. For
    `ledger` followed by all steps of a row, `accountant` reports at most
    `target_epsilon` at `delta`, as `calibrate_noise` says.

    Args:
        population_size: The number of records of the data set, >= 1. It becomes
            public.
        target_epsilon: > 0.
        delta: In (0, 0.5], and less than 1 over the number of units.
        epochs: >= 1.
        batch_sizes: At least one expected size of a sample. Each is an integer
            in [1, population_size].
        ledger: See `calibrate_noise`.
        accountant: By default, the tightest that can replay the ledger and
            these trainings.
        neighbours: See `calibrate_noise`.
        units: See `calibrate_noise`.

    Raises:
        CalibrationError: No noise multiplier up to 1e12 meets the target.
        UnsupportedEventError: `accountant` has no bound for such rounds.
        ValueError: An argument is out of its range.

    Source: van der Veen et al. (2018), arXiv:1812.02890. Figure 5 shows noise
    per example against batch size for 60,000 records and 10 epochs. We use
    other accountants and Poisson sampling.

    >>> from keras_dp.accountants.rdp import RDP
    >>> found = plan(60_000, target_epsilon=2.0, delta=1e-5, epochs=10,
    ...              batch_sizes=[64, 256, 1024], accountant=RDP())
    >>> [(row.batch_size, row.steps) for row in found.rows]
    [(64, 9380), (256, 2340), (1024, 590)]
    >>> found.recommended.batch_size
    1024
    """
    _check.integer_at_least(
        1, population_size=population_size, epochs=epochs, units=units
    )
    sizes = _checked_sizes(batch_sizes, population_size)
    target_epsilon, delta = checked_target(target_epsilon, delta)
    held = replay_of(ledger)
    check_below_share_of(population_size // (units * held.rows_per_unit), delta)
    # All rows have one accountant and one relation, so that they compare.
    first = held.plus(poisson_training(min(sizes) / population_size, 1.0, 1))
    relation = first.relation(neighbours)
    by = accountant or first.accountant(relation)

    def row(size: int) -> PlannedTraining:
        probability = size / population_size
        steps = epochs * max(1, round(1 / probability))
        noise_multiplier = calibrate_scale(
            lambda noise: poisson_training(probability, noise, steps),
            target_epsilon=target_epsilon,
            delta=delta,
            ledger=held,
            accountant=by,
            neighbours=relation,
            units=units,
        )
        training = poisson_training(probability, noise_multiplier, steps)
        spent = held.plus(training)
        rows = default_physical_batch_size(population_size, probability)
        return PlannedTraining(
            batch_size=int(size),
            sampling_probability=probability,
            steps=steps,
            noise_multiplier=noise_multiplier,
            epsilon=spent.epsilon(
                by, delta=delta, neighbours=relation, units=units
            ),
            physical_batch_size=rows,
        )

    return PlannedTrainings(
        population_size=int(population_size),
        target_epsilon=float(target_epsilon),
        delta=float(delta),
        epochs=int(epochs),
        accountant=by.name,
        neighbours=relation,
        rows=tuple(map(row, sizes)),
    )


def _checked_sizes(
    batch_sizes: Sequence[int], population_size: int
) -> tuple[int, ...]:
    sizes = tuple(batch_sizes)
    if not sizes:
        raise ValueError(
            "`batch_sizes` must hold at least one size. "
            f"Received: batch_sizes={batch_sizes!r}. Give, for example, "
            "batch_sizes=[256, 1024]."
        )
    for size in sizes:
        _check.integer_at_least(1, batch_sizes=size)
        if size > population_size:
            raise ValueError(
                "`batch_sizes` must hold sizes of at most `population_size`. "
                f"Received: a size of {size!r}, population_size="
                f"{population_size!r}. Choose smaller sizes."
            )
    return sizes
