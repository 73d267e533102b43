"""Microbatches, whose mean gradient is a record, and what they protect."""

import abc
import dataclasses
from typing import Any, ClassVar

from typing_extensions import override

from keras_dp import _check
from keras_dp.sampling.layouts import Groups, Layout, Slots


@dataclasses.dataclass(frozen=True, slots=True)
class Microbatches(abc.ABC):
    """How examples are put into groups, whose mean gradient is a record.

    Attributes:
        size: Examples of a microbatch, >= 1: the public number that sums are
            divided by, whatever a microbatch really holds.
        unit: The thing that is drawn and that a guarantee protects.
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
    ) -> Layout:
        """Returns how samples of a data set are drawn and laid out."""


@dataclasses.dataclass(frozen=True, slots=True)
class RandomMicrobatches(Microbatches):
    """Microbatches formed inside each sample; the unit is the example.

    Each drawn example goes to one of a fixed number of slots, independently of
    all others. Slots may hold more or fewer examples than `size`, or none.

    Guarantee: an example that is added or removed changes one microbatch, whose
    clipped mean moves from one point of the ball of radius C to another: the
    sum moves by at most `2 C`, and the ledger says so. All other slots keep
    their examples, in the same physical batch and rows. Cutting the sampled
    list into pieces instead would let an example shift all that come after it.

    >>> RandomMicrobatches(size=4).bound_factor
    2
    """

    unit: ClassVar[str] = "example"
    bound_factor: ClassVar[int] = Slots.bound_factor

    @override
    def layout(
        self, population_size: int, sampling_probability: float
    ) -> Layout:
        return Slots(population_size, sampling_probability, self.size)


@dataclasses.dataclass(frozen=True, slots=True)
class FixedMicrobatches(Microbatches):
    """Microbatches of `size` consecutive records, formed before any sampling.

    A sample takes or leaves a microbatch as a whole, and puts it into random
    consecutive rows.

    Guarantee: adding or removing one whole microbatch moves the sum by at most
    the clip C. The unit of privacy is the microbatch, and the ledger's unit
    must be "microbatch"; nothing is promised to single examples.

    >>> FixedMicrobatches(size=4).unit
    'microbatch'
    """

    unit: ClassVar[str] = "microbatch"
    bound_factor: ClassVar[int] = Groups.bound_factor

    @override
    def layout(
        self, population_size: int, sampling_probability: float
    ) -> Layout:
        if population_size % self.size:
            raise ValueError(
                "`microbatches` must have a size that divides the number of "
                f"records. Received: size={self.size!r} for "
                f"{population_size!r} records."
            )
        return Groups(population_size, sampling_probability, self.size)


def layout_of(
    microbatches: Any, population_size: int, sampling_probability: float
) -> Layout:
    """Returns how samples are laid out.

    Args:
        microbatches: `None` if each example is a record.
        population_size: Number of examples.
        sampling_probability: Chance of each example to take part.

    Raises:
        TypeError: `microbatches` are something else.
        ValueError: Microbatches or numbers do not fit the data.
    """
    if microbatches is None:
        return Groups(population_size, sampling_probability, 1)
    if not isinstance(microbatches, Microbatches):
        raise TypeError(
            "`microbatches` must be RandomMicrobatches(size), which protect "
            "examples, or FixedMicrobatches(size), which protect microbatches "
            "that are fixed in advance. A sampled list that is cut into pieces "
            "protects neither: an example more or less shifts all pieces after "
            f"it. Received: microbatches={microbatches!r}."
        )
    return microbatches.layout(population_size, sampling_probability)
