"""Claims: an epsilon with everything that it depends on, ready to publish."""

import dataclasses
import math

from keras_dp.accountants.accountant import Accountant, check_delta
from keras_dp.accountants.attacks.group_privacy import Group
from keras_dp.accountants.normalize.adjacency import (
    Neighbours,
    chosen_neighbours,
)
from keras_dp.accountants.normalize.normalize import normalized
from keras_dp.accountants.normalize.normalized_rounds import (
    NormalizedRounds,
)
from keras_dp.accountants.normalize.rounds import LedgerLike, counted_rounds
from keras_dp.accountants.replay import replayed
from keras_dp.errors import UnsupportedEventError


@dataclasses.dataclass(frozen=True, slots=True)
class Claim:
    """An upper bound on epsilon, with everything that it depends on.

    Attributes:
        epsilon: The bound; `inf` if no accountant has one.
        delta: The delta that belongs to `epsilon`.
        neighbours: The adjacency relation; `None` if all rounds support no
            common one.
        accountant: The name of the accountant; `None` if none has a bound.
        is_bound: Whether `epsilon` is a guarantee; otherwise it is an
            approximation.
        group_size: The number of records that `epsilon` protects together.
    """

    epsilon: float
    delta: float
    neighbours: Neighbours | None
    accountant: str | None
    is_bound: bool = True
    group_size: int = 1

    def sentence(self, unit: str) -> str:
        """Returns the claim as a sentence to publish, with epsilon rounded up.

        Args:
            unit: The privacy unit, such as "patient".
        """
        if self.neighbours is None:
            return "no bound: no adjacency relation is supported by all rounds"
        relation = f"{self.neighbours.replace('_', ' ')} {unit}"
        if self.group_size > 1:
            relation += f" of at most {self.group_size:,} records"
        if self.accountant is None:
            return (
                "no bound: no accountant has a sound bound for these rounds "
                f"({relation})"
            )
        if math.isinf(self.epsilon):
            return (
                f"no bound: epsilon is infinite at delta = {self.delta!r}, "
                f"{relation}"
            )
        if not self.is_bound:
            return (
                f"epsilon is about {rounded_up(self.epsilon)} at delta = "
                f"{self.delta!r}, {relation}, by {self.accountant}: no bound"
            )
        return (
            f"epsilon <= {rounded_up(self.epsilon)} at delta = {self.delta!r}, "
            f"{relation}, certified by {self.accountant}"
        )


def claim(
    ledger: LedgerLike,
    *,
    delta: float,
    accountant: Accountant | None = None,
    neighbours: Neighbours | None = None,
    group_size: int = 1,
) -> Claim:
    """Returns the epsilon of a ledger, by the tightest accountant.

    Args:
        ledger: A ledger, a run, or pairs of a Round and its count.
        delta: In [0, 1].
        accountant: The accountant; by default the tightest one that can replay
            the ledger.
        neighbours: The adjacency relation; by default the strongest that
            all rounds support.
        group_size: The largest number of records that one unit has, >= 1.

    Returns:
        The claim. If a round has no sound bound, its epsilon is `inf`.

    Raises:
        ValueError: `delta` is not in [0, 1], or `neighbours` is unknown.

    >>> from keras_dp.ledger import GaussianSum, PoissonSampling, Round
    >>> step = Round(PoissonSampling(0.01), (GaussianSum("all", 1.0, 4.0),))
    >>> print(claim([(step, 10_000)], delta=1e-5).sentence("patient"))
    epsilon <= 0.9469 at delta = 1e-05, add or remove one patient, certified ...
    """
    check_delta(delta)
    relation = None
    try:
        if not isinstance(ledger, NormalizedRounds):
            ledger = tuple(counted_rounds(ledger))
            relation = chosen_neighbours(ledger, neighbours)
            ledger = normalized(ledger, relation)
        relation = ledger.neighbours
        replay = replayed(ledger, accountant, neighbours)
        epsilon = Group(*replay, group_size).epsilon_of(delta)
        by = replay.accountant
    except UnsupportedEventError:
        return Claim(
            math.inf, float(delta), relation, None, group_size=group_size
        )
    return Claim(
        epsilon,
        float(delta),
        relation,
        by.name,
        by.is_bound,
        group_size,
    )


def rounded_up(value: float) -> str:
    """Returns `value` with four decimals, rounded up."""
    text = f"{value:.4f}"
    return text if float(text) >= value else f"{value + 1e-4:.4f}"


def shown_epsilon(value: float) -> str:
    """Returns a bound on epsilon for people: rounded up, or "no bound"."""
    return "no bound" if math.isinf(value) else rounded_up(value)
