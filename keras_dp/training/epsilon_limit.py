"""Ends a training before its ledger exceeds an epsilon."""

import dataclasses
import math

from keras_dp.accountants import Accountant
from keras_dp.accountants.normalize.adjacency import Neighbours
from keras_dp.accountants.normalize.mechanisms import CountedMechanism
from keras_dp.accountants.normalize.normalize import normalize
from keras_dp.errors import BudgetExceededError
from keras_dp.ledger import PrivacyLedger, Round, UnverifiedSampling
from keras_dp.planning import rounds_left
from keras_dp.planning.calibration import check_target


@dataclasses.dataclass(frozen=True, slots=True)
class PrivacyTarget:
    """The most that a ledger may spend.

    Attributes:
        epsilon: > 0.
        delta: In (0, 1).
        accountant: The tightest that can replay the ledger if `None`.
        neighbours: The adjacency relation; the strongest that all rounds
            support if `None`.
    """

    epsilon: float
    delta: float
    accountant: Accountant | None = None
    neighbours: Neighbours | None = None

    def __post_init__(self) -> None:
        check_target(self.epsilon, self.delta)


class EpsilonLimit:
    """Says how many rounds a ledger may still hold under a target.

    Guarantee: a block of rounds of the size that `allowed` returns leaves the
    ledger at most at the target, unless another process records rounds between
    the question and the reservation.

    It searches once for all rounds of one mechanism, and again when the ledger
    holds rounds that are not of this training.
    """

    def __init__(
        self,
        target: PrivacyTarget,
        ledger: PrivacyLedger,
        rounds_per_pass: int | None = None,
    ) -> None:
        """Starts without a search.

        Args:
            target: Which the ledger as a whole must meet.
            ledger: Where the training is recorded.
            rounds_per_pass: See `rounds_left`.
        """
        self.target, self._ledger = target, ledger
        self._rounds_per_pass = rounds_per_pass
        self._mechanism: tuple[CountedMechanism, ...] | None = None
        self._others = self._most = 0
        self._is_unverified = False

    def allowed(self, planned: Round, count: int, own: int) -> int:
        """Returns how many of `count` more rounds the target leaves room for.

        Args:
            planned: One of the rounds.
            count: >= 1.
            own: How many rounds of the ledger are of this training.
        """
        held = len(self._ledger)
        self._is_unverified = isinstance(planned.sampling, UnverifiedSampling)
        mechanism = normalize([(planned, 1)], self.target.neighbours)
        if mechanism != self._mechanism or held - own != self._others:
            self._mechanism, self._others = mechanism, held - own
            self._most = held + rounds_left(
                self._ledger.rounds,
                planned,
                target_epsilon=self.target.epsilon,
                delta=self.target.delta,
                accountant=self.target.accountant,
                neighbours=self.target.neighbours,
                group_size=self._ledger.header.rows_per_unit,
                rounds_per_pass=self._rounds_per_pass,
            )
        return max(0, min(count, self._most - held))

    def exceeded(self) -> BudgetExceededError:
        """Returns the error for a round that there is no room for."""
        remedy = (
            "Train with a larger target or more noise, or with a ledger that "
            "has spent less."
        )
        if self._is_unverified:
            remedy = (
                "Batches that the caller brings cost as much as the full data: "
                "call fit() without data where make_private has them, or pass "
                "a sampler, such as PoissonBatches."
            )
        return BudgetExceededError(
            f"`target_epsilon` must leave room for one more round. Received: "
            f"target_epsilon={self.target.epsilon!r} at "
            f"delta={self.target.delta!r}, for a ledger of "
            f"{len(self._ledger):,} rounds. No round ran. {remedy}"
        )


def default_delta(population_size: int | None) -> float:
    """Returns `N^-1.1`, with two digits; 1e-5 if N is not known.

    A mechanism that publishes a record chosen at random is `(0, 1/N)`-private:
    delta must be well below that.

    >>> default_delta(48_842)
    6.9e-06
    """
    if population_size is None:
        return 1e-5
    delta = min(0.1, population_size**-1.1)
    unit = 10.0 ** (math.floor(math.log10(delta)) - 1)
    return float(f"{math.floor(delta / unit) * unit:.1e}")
