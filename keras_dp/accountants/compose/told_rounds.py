"""Rounds with next to no noise, which tell in which of them a record was.

With a small `z` each sampled round tells whether the record was in its sample,
and epsilon is that of the rounds that it was in, but for what the choice of
these rounds is worth. Lines and moments are slow there, and far off: delta
falls in steps, one for each number of rounds.

Let `w_i` be the log-likelihood ratio of round i without sampling, of
`N(1, z^2)` to `N(0, z^2)`. For a record that is removed the loss of the round
is `log(1 - q + q e^w_i)`. Let `S` be the set of rounds that draw the record,
and

    G = sum_S w_i,   c(S) = sum_S log(1/q_i) + sum_(not S) log(1/(1-q_i)).

The loss of all rounds is `L = G - c(S) + X` with `X = sum_S log(1 + (1-q_i)/q_i
e^(-w_i)) + sum_(not S) log(1 + q_i/(1-q_i) e^w_i) >= 0`. Given `S`, `G` is the
loss of one Gaussian release with `mu^2 = sum_S 1/z_i^2`, and
`delta(e) = E[(1 - e^(e-L))+]`. So with `g(mu, e)` the profile of the Gaussian
release and any `x > 0`,

    E g(mu(S), e + c(S)) <= delta(e) <= P(X > x) + E g(mu(S), e + c(S) - x).

A record of `S` has `w_i ~ N(1/(2 z_i^2), 1/z_i^2)`, another one the same with
the opposite mean: `P(X > x)` is at most the sum of the chances that one of `n`
terms exceeds `x/n`, which are normal tails.

*An added record* has the loss `-log(1 - q + q e^w) <= log(1/(1-q))`: delta is 0
from the sum of these on. Nothing is said of smaller epsilons.

*A replaced record.* `Q >= (1-q) N(0, z^2)`, so that the loss is at most that of
a removed record and `log(1/(1-q))` for each round. A record of zeros may take
the place of another: the lower bound is that of a removed record.

*Other samples.* Given how often a round draws the record, or records of a
group, it is a Gaussian release of `j/z`, in both orders of the data sets: by
joint convexity `c` and `X` are 0 in the upper bound. In the lower bound `c` is
the sum of the `log(1/p_j)`, by the same inequality (see `directions`).

*More noise.* Rounds that tell little count in the upper bound like other
samples, which holds for all kinds, and not at all in the lower bound.

The expectations are over a lattice of `mu^2`: up for the upper, down for the
lower bound.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from scipy import special

from keras_dp.accountants.arrays import Array
from keras_dp.accountants.compose.curve import LOWEST, DeltaBounds, Side
from keras_dp.accountants.compose.directions import binomial
from keras_dp.accountants.loss import gaussian_profile
from keras_dp.accountants.normalize.mechanisms import (
    CountedMechanism,
    FixedSizeGaussian,
    Gaussian,
    SampledGaussian,
    SampledGaussianGroup,
    SampledGaussianReplaceOne,
)

METHOD = "sum over the rounds that drew a record"
# Points of the lattice. Each kind of round moves its sum by one at most.
_POINTS = 1 << 14
# With more rounds that draw the record, the lattice takes seconds.
_MOST_DRAWN = 1e6
# Rounds of more noise tell too little.
_MOST_NOISE = 0.1
# `x` as shares of epsilon. The last is the most that bounds may be apart.
_SHARES = (1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 3e-3, 1e-2)
# It is certain that delta is larger than the one in question if it is so far
# above the floor, in nats.
_CERTAIN = LOWEST + 1.0
# `P(X > x)` as a share of delta.
_SHARE_OF_DELTA = 1e-3
# More than the rounding of a chance, and of an epsilon; also more than what
# rounding noise multipliers down to 12 digits changes of `mu^2`.
_ROUNDING = 1e-9
# Chances up to this one are left out. Then the log of all of them together.
_LEFT_OUT, _TAIL, _LOG_LEFT_OUT = 1e-305, 710.0, -680.0
# Up to so many masses are added one by one.
_SPARSE = 64
_EXACT = SampledGaussian | SampledGaussianReplaceOne
_SAMPLED = _EXACT | FixedSizeGaussian | SampledGaussianGroup


class _Lattice(NamedTuple):
    """The distribution of `mu(S)^2`, and what is taken from the loss.

    Attributes:
        squares: `mu^2`, rising, shape `[n]`.
        masses: Their chances, rounded, shape `[n]`.
        shifts: A bound on `c(S)`, and on what else is subtracted, likewise.
    """

    squares: Array
    masses: Array
    shifts: Array

    def log_delta(self, epsilon: float) -> float:
        """Returns the log of `E g(mu, epsilon + shift)`."""
        at = epsilon + self.shifts
        logs = np.where(at < 0, 0.0, -math.inf)
        some = (at >= 0) & (self.squares > 0)
        logs[some] = gaussian_profile.log_delta(
            np.sqrt(self.squares[some]), at[some]
        )
        return float(special.logsumexp(logs, b=self.masses))


class _Told(NamedTuple):
    """Bounds on the delta of rounds.

    Attributes:
        upper: Without `x`.
        lower: The lattice of a lower bound for the same rounds.
        rounds: Those that tell where the record was.
        added: A bound on the loss of an added record, without `gaussian`.
        gaussian: `mu^2` of the rounds without sampling.
    """

    upper: _Lattice
    lower: _Lattice
    rounds: tuple[CountedMechanism, ...]
    added: float
    gaussian: float

    def log_chance(self, x: float) -> float:
        """Returns the log of a bound on `P(X > x)`."""
        total = sum(count for _, count in self.rounds)
        logs = [-math.inf]
        for mechanism, count in self.rounds:
            z, q = mechanism.noise_multiplier, mechanism.sampling_probability
            odds = math.log1p(-q) - math.log(q)
            each = x / total + math.log(-math.expm1(-x / total))
            # One round draws the record, the other does not.
            for chance, least in ((q, each - odds), (1 - q, each + odds)):
                tail = special.log_ndtr(-0.5 / z - z * least)
                logs.append(math.log(count * chance) + float(tail))
        return float(special.logsumexp(logs)) + _ROUNDING

    def log_delta(self, epsilon: float, share: float) -> float:
        """Returns an upper bound on log delta, with `x` a share of epsilon."""
        logs = [self.upper.log_delta(epsilon * (1 - share)), _LOG_LEFT_OUT]
        if self.rounds:
            logs.append(self.log_chance(share * epsilon))
        found = float(special.logsumexp(logs)) + _ROUNDING
        left = epsilon - self.added
        if left < 0:
            return 0.0
        if self.gaussian:
            mu = math.sqrt(self.gaussian)
            added = float(gaussian_profile.log_delta(mu, left))
            found = max(found, added)
        return min(found, 0.0)

    def share(self, epsilon: float, log_delta: float) -> float | None:
        """Returns the least share of epsilon that does for `x`."""
        if not self.rounds:
            return 0.0
        most = log_delta + math.log(_SHARE_OF_DELTA)
        found = (s for s in _SHARES if self.log_chance(s * epsilon) <= most)
        return next(found, None)


class ToldSide:
    """Bounds on delta where there is next to no noise.

    Where they are far apart, others are taken too.
    """

    def __init__(self, told: _Told, other: Callable[[], Side]) -> None:
        self._told, self._other = told, other
        self._lower = functools.lru_cache(maxsize=64)(told.lower.log_delta)
        self._bounds = functools.lru_cache(maxsize=64)(self._compute)

    def log_delta(
        self, epsilon: float, floor: float = -math.inf
    ) -> DeltaBounds:
        """See `Side`."""
        found, is_far = self._bounds(epsilon, floor)
        # Others are not asked where it is certain on which side delta is.
        is_certain = not floor < found.upper
        is_certain |= -math.inf < floor < found.lower - _CERTAIN
        if is_certain or not is_far:
            return found
        return found.tightened(*self._other().log_delta(epsilon, floor))

    def prepare(
        self, epsilon: float, width: float, log_delta: float | None = None
    ) -> None:
        """See `Side`."""
        floor = -math.inf if log_delta is None else log_delta - LOWEST
        if self._bounds(epsilon, floor)[1]:
            self._other().prepare(epsilon, width, log_delta)

    def _compute(
        self, epsilon: float, floor: float
    ) -> tuple[DeltaBounds, bool]:
        """Returns the bounds, and whether they are far apart."""
        if not epsilon:
            return DeltaBounds(-math.inf, 0.0, METHOD), True
        least, told = self._lower(epsilon), self._told
        near = max(least, floor + LOWEST)
        share = told.share(epsilon, near) if near > _LOG_LEFT_OUT else None
        some = _SHARES[-1] if share is None else share
        upper = told.log_delta(epsilon, some)
        is_far = share is None
        if not is_far and upper > least + _SHARE_OF_DELTA:
            # Next to a step delta moves by orders, epsilon hardly.
            before = self._lower(epsilon * (1 - _SHARES[-1]))
            is_far = upper > before + _SHARE_OF_DELTA
        return DeltaBounds(min(least - _ROUNDING, upper), upper, METHOD), is_far


def bounds_of(
    rounds: Sequence[CountedMechanism], other: Callable[[], Side]
) -> Side:
    """Returns bounds on delta that are near where there is next to no noise.

    Where they are far apart, they ask `other`.
    """
    told = _told(rounds)
    return other() if told is None else ToldSide(told, other)


def _told(rounds: Sequence[CountedMechanism]) -> _Told | None:
    """Returns the bounds; `None` where they say little, or nothing."""
    gaussian, sampled = 0.0, []
    for each in rounds:
        z = each.mechanism.noise_multiplier
        if isinstance(each.mechanism, Gaussian):
            gaussian += each.rounds / z**2
        elif isinstance(each.mechanism, _SAMPLED):
            sampled.append(each)
        else:
            return None
    telling = [
        each
        for each in sampled
        if each.mechanism.noise_multiplier <= _MOST_NOISE
    ]
    if not telling:
        return None
    exact = [each for each in telling if isinstance(each.mechanism, _EXACT)]
    others = [each for each in sampled if each not in exact]
    counted = _kinds(exact, is_told=False)
    told = _kinds(others, is_told=True)
    if math.fsum(kind.drawn for kind in [*counted, *told]) > _MOST_DRAWN:
        return None
    more = added = 0.0
    if isinstance(sampled[0].mechanism, SampledGaussian):
        added = _not_drawn([*counted, *told])
    elif counted:
        more = _not_drawn(counted)
    return _Told(
        _above(counted, told, gaussian, more),
        _below(_kinds(telling, is_told=False), gaussian),
        tuple(exact),
        added,
        gaussian if added else 0.0,
    )


class _Kind(NamedTuple):
    """Equal rounds.

    Attributes:
        chances: That a round draws 0, 1, ... of the changed records.
        square: `1/z^2`, of what the adversary is told of one.
        logs: Each is taken off the loss.
    """

    rounds: int
    chances: Array
    square: float
    logs: Array

    @property
    def drawn(self) -> float:
        """How often records are drawn, on average."""
        return float(
            self.rounds * (self.chances @ np.arange(self.chances.size))
        )

    @property
    def rates(self) -> Array:
        """The slopes of `c(S)` over `mu^2`."""
        squares = self.square * np.arange(1, self.logs.size) ** 2
        return np.asarray((self.logs[1:] - self.logs[0]) / squares)

    def chances_of_sums(self) -> Array:
        """Returns the chances of the sum of squares, in units of `square`.

        All others have a chance below `e^-710` (Bernstein's inequality).
        """
        if self.chances.size > 2:
            return _powers(self.chances, self.rounds)
        # This import takes half a second. Other rounds do not need it.
        from scipy import stats

        third = _TAIL / 3
        more = third + math.sqrt(third**2 + 2 * _TAIL * self.drawn)
        most = min(self.rounds, math.ceil(self.drawn + more))
        return np.asarray(
            stats.binom.pmf(np.arange(most + 1), self.rounds, self.chances[1])
        )


def _kinds(rounds: Sequence[CountedMechanism], *, is_told: bool) -> list[_Kind]:
    found = []
    for mechanism, count in rounds:
        z, q = mechanism.noise_multiplier, mechanism.sampling_probability
        drawn: tuple[float, ...] = (1 - q, q)
        if isinstance(mechanism, SampledGaussianGroup):
            drawn = binomial(mechanism.records, q, _LEFT_OUT)
        if is_told and isinstance(mechanism, SampledGaussianReplaceOne):
            z = z / 2  # The two records are on both sides of 0.
        chances = np.array(drawn)
        logs = np.zeros(chances.size)
        if not is_told:
            logs = -np.log(chances)
            logs[0] = -math.log1p(-float(chances[1:].sum()))
        found.append(_Kind(count, chances, z**-2, logs))
    return found


def _not_drawn(kinds: Sequence[_Kind]) -> float:
    """Returns the largest loss of an added record."""
    none = (math.log1p(-float(k.chances[1:].sum())) for k in kinds)
    return -math.fsum(
        k.rounds * each for k, each in zip(kinds, none, strict=True)
    )


def _below(kinds: Sequence[_Kind], gaussian: float) -> _Lattice:
    squares, masses, moved = _on_lattice(kinds, np.floor)
    rate = max(float(kind.rates.max()) for kind in kinds)
    shifts = rate * (squares + (moved if rate > 0 else 0.0))
    shifts = np.maximum(shifts + _not_drawn(kinds), 0.0) * (1 + _ROUNDING)
    return _Lattice(squares * (1 - _ROUNDING) + gaussian, masses, shifts)


def _above(
    kinds: Sequence[_Kind], told: Sequence[_Kind], gaussian: float, more: float
) -> _Lattice:
    """Returns the lattice of an upper bound, with `more` added to the loss."""
    squares, masses, moved = _on_lattice([*kinds, *told], np.ceil)
    rates = [float(kind.rates.min()) for kind in kinds]
    rate = min([*rates, 0.0] if told or not rates else rates)
    shifts = rate * np.maximum(squares - (moved if rate > 0 else 0.0), 0.0)
    shifts = np.maximum(shifts + _not_drawn(kinds), 0.0) * (1 - _ROUNDING)
    squares = squares * (1 + _ROUNDING) + gaussian
    return _Lattice(squares, masses, shifts - more)


def _on_lattice(
    kinds: Sequence[_Kind], rounded: Callable[[Array], Array]
) -> tuple[Array, Array, float]:
    """Returns sums of squares, their chances, and how far they were moved."""
    all_masses = [kind.chances_of_sums() for kind in kinds]
    step, moved = kinds[0].square, 0.0
    if len(kinds) > 1 or all_masses[0].size > _POINTS:
        most = math.fsum(
            kind.square * (each.size - 1)
            for kind, each in zip(kinds, all_masses, strict=True)
        )
        step, moved = most / _POINTS, most / _POINTS * len(kinds)
    total: Array = np.ones(1)
    for kind, masses in zip(kinds, all_masses, strict=True):
        at: Array = np.arange(float(masses.size)) * (kind.square / step)
        cells = rounded(at).astype(np.int64)
        total = _sum_of(total, np.asarray(np.bincount(cells, masses), float))
    some = np.flatnonzero(total)
    return np.asarray(step * some, np.float64), total[some], moved


def _powers(chances: Array, count: int) -> Array:
    squares = np.arange(chances.size) ** 2
    power: Array = np.asarray(np.bincount(squares, chances), float)
    found: Array = np.ones(1)
    while count:
        if count % 2:
            found = _sum_of(found, power)
        count //= 2
        if count:
            power = _sum_of(power, power)
    return found


def _sum_of(first: Array, second: Array) -> Array:
    """Returns the chances of a sum, without those that are next to nothing."""
    some = np.flatnonzero(second)
    if some.size < _SPARSE:
        found = np.zeros(first.size + second.size - 1)
        for at in some.tolist():
            found[at : at + first.size] += second[at] * first
    else:
        found = np.convolve(first, second)
    kept = np.flatnonzero(found > _LEFT_OUT)
    return found[: kept[-1] + 1]
