"""A budget that stays valid when answers decide the next rounds.

A filter fixes a number in advance, and adds up the costs of the rounds. A round
with which the sum would exceed the number does not run. Somebody who has seen
all earlier answers may choose everything about a round: its noise, its
sampling, and whether there is one.

It is no filter to compose privacy loss distributions until a target is reached:
that bound holds only for parameters that are fixed in advance
(arXiv:2602.06756).
"""

import dataclasses
import functools
import math
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Self

import numpy as np
import scipy

from keras_dp import _check
from keras_dp._override import override
from keras_dp.accountants.loss.loss_distribution import conversion
from keras_dp.accountants.normalize.mechanisms import SLACK, CountedMechanism
from keras_dp.accountants.normalize.normalize import normalize
from keras_dp.accountants.normalize.rounds import Neighbours
from keras_dp.accountants.renyi.divergences import rdp
from keras_dp.budgets.budget import UNITS, Budget, units
from keras_dp.errors import (
    BudgetExceededError,
    CalibrationError,
    UnsupportedEventError,
)
from keras_dp.ledger import (
    CountedRound,
    CyclicPoissonSampling,
    Round,
)
from keras_dp.planning.calibration import checked_target

# More than the rounding errors of a divergence and of the capacity.
_ROUND_UP = 1 + 1e-12


@dataclasses.dataclass(frozen=True, slots=True)
class RenyiFilter(Budget):
    """Adds up Rényi divergences of one order, which is fixed in advance.

    Guarantee: all answers that the account pays for are, together,
    `(epsilon, delta)`-private, even if each round was chosen after the answers
    of the earlier ones. The account refuses a round with which the sum of the
    divergences of order `a` would exceed
    `epsilon - log((a-1)/a) + (log(delta) + log(a)) / (a-1)`.

    The order cannot be chosen at the end of a run: the best one then depends on
    the rounds.

    Attributes:
        order: The order `a`, > 1. By default it is the order with room for the
            most rounds whose divergence is proportional to the order, such as
            Gaussian sums without sampling. Rounds of small samples with little
            noise need a lower order.
        held: The price, in units of 1e-18 of `size`, of the rounds that the
            ledger held before the account was opened, >= 0.

    Raises:
        CalibrationError: `order` is not > 1, or it is so small that no round
            would fit the target.

    Source: Feldman and Zrnic (2021), arXiv:2008.11193 (the filter, here for
    all individuals alike); Lécuyer (2021), arXiv:2103.01379; interleaved by
    several processes: Haney et al. (2023), arXiv:2309.05901.

    >>> from keras_dp.ledger import GaussianSum, PoissonSampling
    >>> budget = RenyiFilter(3.0, 1e-5)
    >>> round(budget.order, 2)
    7.51
    >>> step = Round(PoissonSampling(0.01), (GaussianSum("all", 1.0, 1.0),))
    >>> ((_, price),) = budget.prices(step)
    >>> UNITS // price
    2124
    """

    kind: ClassVar[str] = "Rényi filter"
    theorem: ClassVar[str] = (
        "a Rényi filter (arXiv:2008.11193, arXiv:2309.05901): every round may "
        "depend on all answers before it"
    )

    order: float = 0.0
    held: int = 0

    def __init__(
        self,
        epsilon: float,
        delta: float,
        order: float | None = None,
        neighbours: Any = "add_or_remove_one",
        held: int = 0,
    ) -> None:
        checked_target(epsilon, delta)
        if order is None:
            order = _best_order(epsilon, delta)
        _check.integer_at_least(0, held=held)
        self._set(epsilon, delta, neighbours, held=held, order=float(order))
        if not 1 < self.order < math.inf or not self.size > 0:
            raise CalibrationError(
                "`order` must be > 1, and large enough that a round fits the "
                f"target. Received: order={order!r}, epsilon={epsilon!r}, "
                f"delta={delta!r}. Leave `order` out for a good one."
            )

    @property
    def size(self) -> float:
        """The largest divergence of order `order` that all rounds may have."""
        return _renyi_size(self.epsilon, self.delta, self.order)

    @override
    def promise(self, delta: float) -> float:
        # The size is `epsilon` less what the order and delta add to it.
        added = _renyi_size(0.0, delta, self.order) * _ROUND_UP
        return self.size * _ROUND_UP - added

    @property
    @override
    def capacities(self) -> tuple[int, ...]:
        return (UNITS - self.held,)

    @override
    def prices(self, round_: Round) -> tuple[tuple[int, int], ...]:
        return _prices(self, round_)

    @override
    def holds(self, earlier: Iterable[CountedRound]) -> bool:
        return self._total(earlier) <= self.held

    @override
    def check_held(self, held: Iterable[CountedRound]) -> Self:
        total = self._total(held)
        if total >= UNITS:
            raise BudgetExceededError(
                "`budget` must have room for the rounds that the ledger holds "
                f"already. Received: budget={self!r}. Open it with a larger "
                "epsilon."
            )
        return dataclasses.replace(self, held=total)

    def _total(self, rounds: Iterable[CountedRound]) -> int:
        return sum(
            count * price
            for round_, count in rounds
            for _, price in self.prices(round_)
        )


@functools.lru_cache(maxsize=4096)
def _prices(budget: RenyiFilter, round_: Round) -> tuple[tuple[int, int], ...]:
    mechanisms = _mechanisms(round_, budget.neighbours)
    cost = _divergence(mechanisms, budget.order) * _ROUND_UP
    return ((0, units(cost, budget.size)),) if cost else ()


def _mechanisms(
    round_: Round, neighbours: Neighbours
) -> tuple[CountedMechanism, ...]:
    """Returns a round as mechanisms for which a filter has a price."""
    if any(query.span_id is not None for query in round_.queries):
        raise UnsupportedEventError(
            "A filter must pay for rounds that are private one by one. "
            "Received: a round of a tree or of a mechanism with correlated "
            "noise, whose rounds are private together. "
            "Open an account with a FixedPlan."
        )
    if isinstance(round_.sampling, CyclicPoissonSampling):
        raise UnsupportedEventError(
            "A filter must pay for rounds that are private one by one. "
            "Received: a round of classes that take turns, whose cycle is "
            "private as a whole. Draw samples with PoissonBatches, or train "
            "on a ledger without accounts."
        )
    mechanisms = normalize([(round_, 1)], neighbours)
    if any(isinstance(mechanism, SLACK) for mechanism, _ in mechanisms):
        raise UnsupportedEventError(
            "A filter must pay for rounds that take nothing from delta alone. "
            f"Received: {round_!r}, which takes a part of delta. Open an "
            "account with a FixedPlan."
        )
    return mechanisms


def _renyi_size(epsilon: float, delta: float, order: float) -> float:
    excess = np.array([order - 1])
    added = float((conversion(excess) / excess)[0])
    return (epsilon + math.log(delta) / (order - 1) - added) / _ROUND_UP


def _divergence(mechanisms: Sequence[CountedMechanism], order: float) -> float:
    # Without noise it is infinite, which `units` refuses.
    with np.errstate(divide="ignore", invalid="ignore"):
        return sum(
            count * float(rdp(mechanism, np.array([order]))[0])
            for mechanism, count in mechanisms
        )


def _best_order(epsilon: float, delta: float) -> float:
    """Returns the order with room for the most Gaussian sums, all records."""

    def cost_over_size(log_excess: float) -> float:
        order = 1 + math.exp(log_excess)
        size = _renyi_size(epsilon, delta, order)
        return math.log(order / size) if size > 0 else 1e9 - log_excess

    found = scipy.optimize.minimize_scalar(
        cost_over_size, bounds=(-10.0, 20.0), method="bounded"
    )
    return float(f"{1 + math.exp(found.x):.4g}")
