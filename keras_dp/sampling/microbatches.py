"""Microbatches: groups of examples whose mean gradient is one record."""

import abc
import dataclasses
from typing import Any, ClassVar

from keras_dp import _check
from keras_dp._override import override
from keras_dp.sampling.layouts import Groups, Layout, Slots


@dataclasses.dataclass(frozen=True, slots=True)
class Microbatches(abc.ABC):
    """A way to put examples into groups, whose mean gradient is one record.

    Attributes:
        size: The number of examples in a microbatch, >= 1. It is public, and
            divides the sum over a microbatch, whatever this really holds.
        unit: The privacy unit, which is drawn: "example" or "microbatch".
        bound_factor: Adding or removing one unit moves the sum over a sample by
            at most this many times the bound on one record.
    """

    size: int
    unit: ClassVar[str]
    bound_factor: ClassVar[int]

    def __init_subclass__(cls) -> None:
        """Refuses microbatches that the library does not know."""
        _check.no_subclass(
            cls,
            "Its bound would be believed. Use RandomMicrobatches or "
            "FixedMicrobatches.",
        )

    def __post_init__(self) -> None:
        _check.integer_at_least(1, size=self.size)

    @abc.abstractmethod
    def layout(
        self, population_size: int, sampling_probability: float
    ) -> Layout:
        """Returns how samples of a data set are drawn and laid out."""


@dataclasses.dataclass(frozen=True, slots=True)
class RandomMicrobatches(Microbatches):
    """Microbatches formed inside each sample; the privacy unit is the example.

    Each drawn example goes to one of a fixed number of slots, at random and
    independently of all others. The examples of a slot are a microbatch. A slot
    may hold more or fewer examples than `size`, or none.

    Guarantee: adding or removing one example changes one microbatch. The
    clipped mean of this microbatch moves from one point of a ball of radius C
    to another. So the sum over the sample moves by at most `2 C`, with C the
    clip; the event in the ledger has this bound. All other slots keep their
    examples, in the same physical batch and rows. (If the list of drawn
    examples were cut into pieces instead, one example more would shift all
    later pieces.)

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
    """Microbatches of `size` consecutive examples, formed before any sampling.

    Whole microbatches are drawn. Each stands in consecutive rows, at a random
    place.

    Guarantee: adding or removing one whole microbatch moves the sum by at most
    the clip. The privacy unit is the microbatch, and the unit of the ledger
    must be "microbatch". Nothing is promised to single examples.

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
                f"{population_size!r} records. Choose another size, or leave "
                "out the records that remain."
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
