"""Noise, steps and memory that each of some batch sizes would take."""

import dataclasses
import math
from collections.abc import Iterator, Sequence

from keras_dp import _check
from keras_dp.accountants.accountant import Accountant
from keras_dp.accountants.claim import rounded_up
from keras_dp.accountants.normalize.adjacency import Neighbours
from keras_dp.accountants.normalize.rounds import (
    LedgerLike,
    counted_rounds,
    warn_of_units,
)
from keras_dp.accountants.replay import chosen
from keras_dp.ledger import GaussianSum, PoissonSampling, Round
from keras_dp.planning.calibration import (
    calibrate_noise,
    epsilon_of_group,
)
from keras_dp.sampling.layouts import default_physical_batch_size

_BYTES_PER_FLOAT = 4
# A share of the best signal that a smaller batch, with more steps, may lose.
_ENOUGH = 0.85
_FEWEST_STEPS = 100
_MARK = "  <-- take"
_COLUMNS = {
    "batch size": "{row.batch_size:,}",
    "probability": "{row.sampling_probability:.4g}",
    "steps": "{row.steps:,}",
    "noise multiplier": "{noise}",
    "noise/example": "{row.noise_per_example:.3g}",
    "signal": "{signal:.0%}",
    "epsilon": "{epsilon}",
    "physical batch": "{row.physical_batch_size:,}",
}


@dataclasses.dataclass(frozen=True, slots=True)
class PlannedTraining:
    """One way to train.

    Attributes:
        batch_size: Expected number of records in a sample, the denominator of
            the average.
        sampling_probability: Chance of a record in a round.
        steps: Rounds of all epochs, `round(1 / sampling_probability)` each.
        noise_multiplier: Stddev of the noise on the sum over the bound on one
            record.
        epsilon: Epsilon of the whole training; at most the target.
        physical_batch_size: Rows of a padded batch that holds at least 99.99 %
            of the samples, as `PoissonBatches` chooses it.
        gradient_bytes: Size of one gradient, and of a sum; None if the
            number of parameters is not given.
        per_example_gradient_bytes: Size of a gradient for each row of a
            physical batch, for queries that need them one by one; None
            likewise.
    """

    batch_size: int
    sampling_probability: float
    steps: int
    noise_multiplier: float
    epsilon: float
    physical_batch_size: int
    gradient_bytes: int | None
    per_example_gradient_bytes: int | None

    @property
    def noise_per_example(self) -> float:
        """Stddev of the noise on the average, over the bound on one record."""
        return self.noise_multiplier / self.batch_size

    @property
    def signal(self) -> float:
        """The sum of all averages, as a multiple of the stddev of its noise.

        For examples that all have the largest gradient, in the same direction:
        steps times 1, over `sqrt(steps) * noise_per_example`.
        """
        return math.sqrt(self.steps) / self.noise_per_example


@dataclasses.dataclass(frozen=True, slots=True)
class Plan:
    """Ways to train that all meet one target.

    Attributes:
        population_size: Records of the data set.
        target_epsilon: An upper bound on the epsilon of every row.
        delta: At which epsilon is given.
        epochs: The same for all rows.
        accountant: Name of the accountant.
        neighbours: The adjacency relation.
        rows: One for each batch size, in the order in which they were given.
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
        """The smallest batch size with nearly the best signal.

        Beyond it, a larger batch costs steps and gains little. Rows of fewer
        than 100 steps, which hardly learn, are left out if there are others.
        """
        long = [row for row in self.rows if row.steps >= _FEWEST_STEPS]
        if not long:
            return max(self.rows, key=lambda row: row.steps)
        best = max(row.signal for row in long)
        enough = (row for row in long if row.signal >= _ENOUGH * best)
        return min(enough, key=lambda row: row.batch_size)

    def __str__(self) -> str:
        """Returns `as_text()`."""
        return self.as_text()

    def as_text(self) -> str:
        """Returns a table for a person."""
        columns = dict(_COLUMNS)
        if any(row.gradient_bytes is not None for row in self.rows):
            columns["gradient"] = "{gradient}"
            columns["all of a batch"] = "{per_example}"
        cells = [list(columns)]
        best = max(row.signal for row in self.rows)
        for row in self.rows:
            values = {
                "row": row,
                "signal": row.signal / best,
                "noise": rounded_up(row.noise_multiplier),
                "epsilon": rounded_up(row.epsilon),
                "gradient": _size(row.gradient_bytes),
                "per_example": _size(row.per_example_gradient_bytes),
            }
            cells.append([each.format(**values) for each in columns.values()])
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        lines = [
            f"{self.population_size:,} records, {self.epochs:,} epochs, epsilon"
            f" <= {self.target_epsilon:g} at delta = {self.delta!r} "
            f"({self.neighbours.replace('_', ' ')}) by {self.accountant}:"
        ]
        marks = ["", *(_MARK * (row is self.recommended) for row in self.rows)]
        lines += [
            "  ".join(
                text.rjust(width)
                for text, width in zip(line, widths, strict=True)
            )
            + mark
            for line, mark in zip(cells, marks, strict=True)
        ]
        return "\n".join([*lines, *self._advice()])

    def _advice(self) -> Iterator[str]:
        size = self.recommended.batch_size
        yield (
            f"Take {size:,}: of the sizes with {_FEWEST_STEPS} steps or more, "
            f"the smallest with {_ENOUGH:.0%} of the best signal, which is "
            "sqrt(steps) / (noise/example)."
        )
        yield (
            f"  keras_dp.make_private(model, (x, y), batch_size={size}, "
            f"epochs={self.epochs},\n      target_epsilon="
            f'{self.target_epsilon:g}, delta={self.delta!r}, ledger="...")'
        )


def plan(
    population_size: int,
    *,
    target_epsilon: float,
    delta: float,
    epochs: int,
    batch_sizes: Sequence[int],
    parameters: int | None = None,
    ledger: LedgerLike = (),
    accountant: Accountant | None = None,
    neighbours: Neighbours | None = None,
    group_size: int = 1,
) -> Plan:
    """Returns the noise that each batch size needs to meet a privacy target.

    Guarantee: a training of a row's steps, each one Gaussian sum over a
    Poisson sample of that probability with that noise, is
    `(target_epsilon, delta)`-private, as `calibrate_noise` says.

    Args:
        population_size: Records of the data set, >= 1. It becomes public.
        target_epsilon: > 0.
        delta: In (0, 1).
        epochs: >= 1.
        batch_sizes: Expected sizes of a sample, each >= 1 and at most
            `population_size`; at least one.
        parameters: Trainable ones, to say what gradients need as float32.
        ledger: Rounds that are spent already, and count towards the target.
        accountant: The tightest that can replay such trainings by default.
        neighbours: The adjacency relation; by default the strongest that
            all rounds support.
        group_size: How many records the target protects together, >= 1.

    Raises:
        CalibrationError: No noise meets the target.
        UnsupportedEventError: `accountant` has no bound for such rounds.

    Source: van der Veen et al. (2018), arXiv:1812.02890, Figure 5, has noise
    per example against batch size for 60,000 records and 10 epochs. We differ
    in the accountant, and in Poisson sampling.

    >>> from keras_dp.accountants.rdp import RDP
    >>> table = plan(60_000, target_epsilon=2.0, delta=1e-5, epochs=10,
    ...              batch_sizes=[64, 256, 1024], accountant=RDP())
    >>> print(table)
    60,000 records, 10 epochs, epsilon <= 2 at delta = 1e-05 ... by RDP:
    batch size  probability  steps  noise multiplier  noise/example  ...
            64     0.001067  9,380            ...
           256     0.004267  2,340            ...
         1,024      0.01707    590            ...  <-- take
    Take 1,024: of the sizes with 100 steps or more, ...
    ...
    """
    _check.integer_at_least(1, population_size=population_size, epochs=epochs)
    if parameters is not None:
        _check.integer_at_least(1, parameters=parameters)
    sizes = _checked_sizes(batch_sizes, population_size)
    warn_of_units(ledger, group_size)
    held = tuple(counted_rounds(ledger))
    # One for all, so that rows can be compared: amplified rounds are the rule.
    least = _training(min(sizes) / population_size, 1.0, 1)
    accountant, relation = chosen([*held, *least], accountant, neighbours)

    def row(size: int) -> PlannedTraining:
        probability = size / population_size
        steps = epochs * max(1, round(1 / probability))
        noise_multiplier = calibrate_noise(
            target_epsilon=target_epsilon,
            delta=delta,
            sampling_probability=probability,
            rounds=steps,
            ledger=held,
            accountant=accountant,
            neighbours=relation,
            group_size=group_size,
        )
        spent = [*held, *_training(probability, noise_multiplier, steps)]
        rows = default_physical_batch_size(population_size, probability)
        gradient = parameters and _BYTES_PER_FLOAT * int(parameters)
        return PlannedTraining(
            batch_size=int(size),
            sampling_probability=probability,
            steps=steps,
            noise_multiplier=noise_multiplier,
            epsilon=epsilon_of_group(
                spent, accountant, delta, relation, group_size
            ),
            physical_batch_size=rows,
            gradient_bytes=gradient,
            per_example_gradient_bytes=gradient and gradient * rows,
        )

    return Plan(
        population_size=int(population_size),
        target_epsilon=float(target_epsilon),
        delta=float(delta),
        epochs=int(epochs),
        accountant=accountant.name,
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
            f"Received: batch_sizes={batch_sizes!r}."
        )
    for size in sizes:
        _check.integer_at_least(1, batch_sizes=size)
        if size > population_size:
            raise ValueError(
                "`batch_sizes` must be at most `population_size`. Received: "
                f"{size!r} in batch_sizes, population_size="
                f"{population_size!r}."
            )
    return sizes


def _training(
    probability: float, noise_multiplier: float, steps: int
) -> list[tuple[Round, int]]:
    query = GaussianSum("gradients", 1.0, noise_multiplier)
    return [(Round(PoissonSampling(probability), (query,)), steps)]


def _size(size_bytes: int | None) -> str:
    """Returns a number of bytes for a person, with three digits."""
    size = float(size_bytes or 0)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1024
    return f"{size:,.4g} TiB"
