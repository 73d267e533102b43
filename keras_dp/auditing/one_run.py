"""The scores of many canaries in one training, and their bound on epsilon."""

import dataclasses
import math
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt

from keras_dp import _check
from keras_dp.accountants.arrays import Array
from keras_dp.accountants.normalize.rounds import Neighbours
from keras_dp.accountants.normalize.samplings import RELATIONS
from keras_dp.accountants.roots import last_true

# The number of guesses is this times the root of the number of canaries. It
# gives bounds within a tenth of the best for Gaussian scores, epsilon from 1
# to 8 and 200 to 20,000 canaries.
_GUESSES = 4.0
# Bounds are at least this near to the largest refuted value.
_NEAREST = 1e-9
# No number of canaries refutes more, and exp() of it is finite.
_LARGEST = 2.0**9
# More than the rounding of all steps of the recursion.
_ROUNDING = 1e-9
_ASSUMPTIONS = (
    "an independent fair coin decided before the training whether each canary "
    "takes part, and the scores depend on it only through the training",
    "the number of guesses was fixed before the scores were seen",
)


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Scores:
    """One score for each canary.

    A higher score means that the canary is more likely to have been trained on.
    A score must be computed from the releases of the training, without the coin
    of its canary. The order of the scores is not used.

    Attributes:
        inside: The scores of canaries that were trained on, shape `[inside]`.
        outside: The scores of canaries that were left out, shape `[outside]`.
        neighbours: The adjacency relation of every bound. It is
            "add_or_remove_one" if a coin inserts a canary or leaves it out, and
            "replace_one" if a coin replaces it by another record.

    >>> scores = Scores([2.0, 3.5], [0.5])
    >>> len(scores), scores.inside.tolist()
    (3, [2.0, 3.5])
    """

    inside: Array
    outside: Array
    neighbours: Neighbours = "add_or_remove_one"

    def __init__(
        self,
        inside: npt.ArrayLike,
        outside: npt.ArrayLike,
        neighbours: Neighbours = "add_or_remove_one",
    ) -> None:
        _check.one_of(RELATIONS, neighbours=neighbours)
        object.__setattr__(self, "inside", _finite("inside", inside))
        object.__setattr__(self, "outside", _finite("outside", outside))
        object.__setattr__(self, "neighbours", neighbours)

    @classmethod
    def from_coins(
        cls,
        scores: npt.ArrayLike,
        coins: npt.ArrayLike,
        neighbours: Neighbours = "add_or_remove_one",
    ) -> Self:
        """Separates the scores of all canaries by their coins.

        Args:
            scores: Numbers of shape `[canaries]`, in the order of the coins.
            coins: Booleans of shape `[canaries]`. True is for a canary that
                was trained on.
            neighbours: The adjacency relation.

        >>> Scores.from_coins([2.0, 0.5], [True, False]).outside.tolist()
        [0.5]
        """
        every, chosen = _finite("scores", scores), np.asarray(coins)
        if chosen.shape != every.shape or chosen.dtype != np.bool_:
            raise ValueError(
                "`coins` must be one boolean for each score. Received: "
                f"shape={chosen.shape!r}, dtype={chosen.dtype!s}, for "
                f"{every.size} scores. Give coins in the order of scores."
            )
        return cls(every[chosen], every[~chosen], neighbours)

    def __len__(self) -> int:
        """The number of canaries."""
        return self.inside.size + self.outside.size

    def __repr__(self) -> str:
        return (
            f"Scores(inside={self.inside.size}, outside={self.outside.size}, "
            f"neighbours={self.neighbours!r})"
        )


@dataclasses.dataclass(frozen=True, slots=True)
class LowerBound:
    """A lower bound on epsilon, computed from the scores of canaries.

    Guarantee: suppose that the assumptions hold, and that the training is
    `(e, delta)`-private under `neighbours`. Then `epsilon <= e` with a
    probability of at least `confidence`, over the coins of the canaries and
    the noise of the training. In the remaining cases the bound is wrong, and
    nothing shows it.

    A bound far below the ledger's epsilon does not confirm the ledger. The
    attack and the canaries may be weak, and the canaries may be few.

    Attributes:
        epsilon: The bound, finite and >= 0. A bound of 0 has no information.
        delta: The delta of the bound, in [0, 1).
        confidence: The probability that the bound holds, in (0, 1).
        neighbours: The adjacency relation.
        statistic: The numbers of guesses, in words.
        assumptions: Sentences. If one of them fails, the guarantee does too.
    """

    epsilon: float
    delta: float
    confidence: float
    neighbours: Neighbours
    statistic: str
    assumptions: tuple[str, ...] = _ASSUMPTIONS


@dataclasses.dataclass(frozen=True, slots=True)
class OneRun:
    """Guesses the coins of many canaries from one training.

    In an `(epsilon, delta)`-private training, the odds of a right guess are at
    most `e^epsilon`, apart from delta. More right guesses refute epsilon. The
    test does not assume how canaries influence each other, and so allows for
    the worst case. If a training hides each canary in independent noise, the
    bound stays below the true epsilon, however many canaries there are.

    Attributes:
        guesses: The number of coins to guess, half of them "in". By default,
            four times the square root of the number of canaries. It is reduced
            to the number of canaries. Fix it before the scores are seen.

    Source: Steinke, Nasr, Jagielski (2023), arXiv:2305.08846v1, for the audit.
    The test is that of Mahloujifar, Melis, Chaudhuri (2024),
    arXiv:2410.22235v1, for the trade-off curve of all
    (epsilon, delta)-private trainings. It refutes nearly as much, and more
    where delta matters. It holds for every number of right guesses. For few
    right guesses, some mechanisms exceed the formula of the first paper.

    >>> import numpy as np
    >>> scores = Scores(np.linspace(3, 5, 500), np.linspace(0, 3.2, 500))
    >>> found = OneRun().epsilon(scores, delta=1e-5)
    >>> round(found.epsilon, 2), found.statistic
    (3.73, '126 of 126 guesses right, of 1,000 coins')
    """

    guesses: int | None = None

    def __post_init__(self) -> None:
        if self.guesses is not None:
            _check.integer_at_least(1, guesses=self.guesses)

    def epsilon(
        self, scores: Scores, *, delta: float, confidence: float = 0.95
    ) -> LowerBound:
        """Returns the largest epsilon that the guesses refute.

        Args:
            scores: The scores of canaries with fair coins.
            delta: In [0, 1).
            confidence: In (0, 1).
        """
        remedy = " Choose the delta of the ledger's claim."
        _check.share("[0, 1)", remedy, delta=delta)
        example = " Choose, for example, 0.95."
        _check.share("(0, 1)", example, confidence=confidence)
        found = guesses_of(scores, self.guesses)

        def is_refuted(epsilon: float) -> bool:
            return refutes(found, epsilon, delta, 1 - confidence)

        refuted, other = 0.0, 1.0
        while other < _LARGEST and is_refuted(other):
            refuted, other = other, 2 * other
        refuted = last_true(
            is_refuted, refuted, other, nearest=_NEAREST, share=_NEAREST
        )
        return LowerBound(
            refuted, delta, confidence, scores.neighbours, str(found)
        )


class Guesses(NamedTuple):
    """The numbers of canaries, of guesses of their coins, and of right guesses.

    If scores are equal, the last is the least that any order of them gives.
    """

    canaries: int
    guesses: int
    correct: int

    def __str__(self) -> str:
        return (
            f"{self.correct:,} of {self.guesses:,} guesses right, of "
            f"{self.canaries:,} coins"
        )


def guesses_of(scores: Scores, number: int | None) -> Guesses:
    """Guesses "in" for the highest scores, and "out" for the lowest.

    At equal scores, wrong guesses are counted first. So the number of right
    guesses is not larger than with any other order of equal scores. The number
    of guesses is as in `OneRun`.
    """
    canaries = len(scores)
    if number is None:
        number = 2 * round(_GUESSES / 2 * math.sqrt(canaries))
    number = min(number, canaries)
    half = number // 2
    correct = _correct(scores.inside, scores.outside, number - half)
    correct += _correct(-scores.outside, -scores.inside, half)
    return Guesses(canaries, number, correct)


def _correct(true: Array, false: Array, number: int) -> int:
    """Returns how many of the `number` highest scores are true ones."""
    if not number:
        return 0
    every = np.concatenate([true, false])
    least = np.partition(every, every.size - number)[every.size - number]
    above = np.count_nonzero(every > least)
    right = int(np.count_nonzero(true > least))
    left = number - above - np.count_nonzero(false == least)
    return right + max(0, int(left))


def refutes(
    found: Guesses, epsilon: float, delta: float, chance: float
) -> bool:
    """Returns whether that many right guesses are rarer than `chance`.

    Let `p_i` be the probability of `i` right guesses of `r`, with `m`
    canaries. Turning a coin turns a right guess of it into a wrong one, and
    leaves the others. Averaged over the coins, that gives for each `c`

        sum_{i >= c} i/m p_i  <=  F(sum_{i >= c - 1} (r - i)/m p_i),

    where `F` bounds the true positives of attacks on `(epsilon, delta)`-private
    trainings by their false ones, and is concave. Suppose that `v` right
    guesses or more have the probability `chance`. The left sum is least if all
    of it is at `v`. Then each `c` from `v` down adds the least `p_{c - 1}` that
    the inequality asks for. If all together exceed 1, `chance` is refuted.

    Source: Mahloujifar, Melis, Chaudhuri (2024), arXiv:2410.22235v1, the
    numerical test.
    """
    canaries, guesses, correct = found
    if not correct:
        return False
    fall, rise = math.exp(-epsilon), math.exp(epsilon)
    right = chance * correct / canaries
    wrong = chance * (guesses - correct) / canaries
    total = guesses / canaries * (1 + _ROUNDING)
    for fewer in range(correct - 1, -1, -1):
        true = min(1.0, right * (1 - _ROUNDING))
        # The inverse of F.
        least = max(0.0, (true - delta) * fall, 1 - delta - (1 - true) * rise)
        added = least - wrong
        if added <= 0:
            break  # Neither sum changes any more.
        wrong += added
        right += added * fewer / (guesses - fewer)
        if right + wrong > total:
            return True
    return False


def _finite(name: str, values: npt.ArrayLike) -> Array:
    found = np.array(values, np.float64)
    if found.ndim != 1 or not np.all(np.isfinite(found)):
        raise ValueError(
            f"`{name}` must be one finite number for each canary. Received: "
            f"shape={found.shape!r}, "
            f"{np.count_nonzero(~np.isfinite(found))} not finite. Replace or "
            "leave out such canaries without a look at their coins."
        )
    found.flags.writeable = False
    return found
