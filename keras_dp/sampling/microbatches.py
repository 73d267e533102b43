"""Records that are averages over microbatches, and what then is protected."""

import abc
import dataclasses
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from scipy import special
from typing_extensions import override

from keras_dp import _check
from keras_dp.sampling.bernoulli_draw import BernoulliDraw
from keras_dp.sampling.random_words import Words

Integers = npt.NDArray[np.int64]

# Chance that a sample has a microbatch too full for its rows. The examples
# left out concern that microbatch alone, so privacy does not depend on it.
_OVERFLOW = 1e-6
# Chance that a sample of fixed microbatches takes another physical batch.
_LARGE_SAMPLE = 1e-3


@dataclasses.dataclass(frozen=True, slots=True)
class Microbatches(abc.ABC):
    """How examples are put into groups, whose mean gradient is a record.

    Attributes:
        size: Examples of a microbatch, >= 1: the public number that sums are
            divided by, whatever a microbatch really holds.
        unit: What a guarantee protects, and what is drawn.
        bound_factor: By how many times the bound of a record adding or removing
            one unit moves the sum over a sample.
    """

    size: int
    unit: ClassVar[str]
    bound_factor: ClassVar[int]

    def __post_init__(self) -> None:
        _check.integer_at_least(1, size=self.size)

    @abc.abstractmethod
    def layout(
        self, population_size: int, sampling_probability: float
    ) -> "Layout":
        """Returns how samples of a data set are drawn and laid out."""


class Layout(abc.ABC):
    """Draws samples, and says in which row of a batch each example stands.

    Attributes:
        rows: Consecutive rows that belong to one microbatch.
        size: Number that the sum over a microbatch is divided by.
        bound_factor: By how many times the bound of a record the unit of
            privacy moves the sum over a sample.
        most_rows: Rows that hold almost every sample.
    """

    rows: int
    size: float
    bound_factor: int
    most_rows: int

    @abc.abstractmethod
    def draw(self, words: Words) -> Integers:
        """Returns one sample: the example in each row, -1 for padding.

        The length is a multiple of `rows`; it may be 0.
        """


@dataclasses.dataclass(frozen=True, slots=True)
class RandomMicrobatches(Microbatches):
    """Microbatches formed inside each sample; the unit is the example.

    Each drawn example goes to one of a fixed number of slots, independently of
    all others. Slots may hold more or fewer examples than `size`, or none.

    Guarantee: an example that is added or removed changes one microbatch, whose
    clipped mean moves from one point of the ball of radius C to another: the
    sum moves by at most `2 C`, and the ledger says so. Cutting the sampled list
    into pieces instead would let an example shift all that come after it.

    >>> RandomMicrobatches(size=4).bound_factor
    2
    """

    unit: ClassVar[str] = "example"
    bound_factor: ClassVar[int] = 2

    @override
    def layout(
        self, population_size: int, sampling_probability: float
    ) -> "Layout":
        return _Slots(population_size, sampling_probability, self.size)


@dataclasses.dataclass(frozen=True, slots=True)
class FixedMicrobatches(Microbatches):
    """Microbatches of `size` consecutive records, formed before any sampling.

    A sample takes or leaves a microbatch as a whole.

    Guarantee: adding or removing one whole microbatch moves the sum by at most
    the clip C. The unit of privacy is the microbatch, and the ledger's unit
    must be "microbatch"; nothing is promised to single examples.

    >>> FixedMicrobatches(size=4).unit
    'microbatch'
    """

    unit: ClassVar[str] = "microbatch"
    bound_factor: ClassVar[int] = 1

    @override
    def layout(
        self, population_size: int, sampling_probability: float
    ) -> "Layout":
        return _Groups(population_size, sampling_probability, self.size)


def layout_of(microbatches: Any, draw: BernoulliDraw) -> Layout | None:
    """Returns how samples are laid out, `None` without microbatches.

    Raises:
        TypeError: `microbatches` are something else.
    """
    if microbatches is None:
        return None
    if not isinstance(microbatches, Microbatches):
        raise TypeError(
            "`microbatches` must be RandomMicrobatches(size), which protect "
            "examples, or FixedMicrobatches(size), which protect microbatches "
            "that are fixed in advance. A sampled list that is cut into pieces "
            "protects neither: an example more or less shifts all pieces after "
            f"it. Received: microbatches={microbatches!r}."
        )
    return microbatches.layout(draw.population_size, draw.sampling_probability)


class _Slots(Layout):
    def __init__(self, population: int, probability: float, size: int) -> None:
        self._draw = BernoulliDraw(population, probability)
        expected = population * probability
        self._slots = max(1, round(expected / size))
        self.size = expected / self._slots
        chance = min(1.0, probability / self._slots)
        self.rows = _exceeded_with(_OVERFLOW / self._slots, population, chance)
        self.most_rows = self._slots * self.rows
        self.bound_factor = RandomMicrobatches.bound_factor

    @override
    def draw(self, words: Words) -> Integers:
        indices = self._draw.indices(words)
        # The high half of the product: uniform up to 2^-32 of a slot.
        high = words(len(indices)) >> np.uint64(32)
        slots = (high * np.uint64(self._slots)) >> np.uint64(32)
        order = np.argsort(slots, kind="stable")
        counts = np.bincount(slots.astype(np.int64), minlength=self._slots)
        starts = np.cumsum(counts) - counts
        places = np.arange(len(indices)) - np.repeat(starts, counts)
        laid = np.full([self._slots, self.rows], -1, np.int64)
        fits = places < self.rows
        rows = slots[order].astype(np.int64)
        laid[rows[fits], places[fits]] = indices[order][fits]
        return laid.reshape(-1)


class _Groups(Layout):
    def __init__(self, population: int, probability: float, size: int) -> None:
        if population % size:
            raise ValueError(
                "`microbatches` must have a size that divides the number of "
                f"records. Received: size={size!r} for {population!r} records."
            )
        self._draw = BernoulliDraw(population // size, probability)
        self.rows, self.size = size, float(size)
        groups = population // size
        self.most_rows = size * _exceeded_with(
            _LARGE_SAMPLE, groups, probability
        )
        self.bound_factor = FixedMicrobatches.bound_factor

    @override
    def draw(self, words: Words) -> Integers:
        groups = self._draw.indices(words)[:, np.newaxis]
        return (groups * self.rows + np.arange(self.rows)).reshape(-1)


def _exceeded_with(chance: float, trials: int, probability: float) -> int:
    """Returns the least n >= 1 that a binomial exceeds so rarely."""
    low, high = 0, trials
    while high - low > 1:
        middle = (low + high) // 2
        if special.bdtrc(middle, trials, probability) <= chance:
            high = middle
        else:
            low = middle
    return high
