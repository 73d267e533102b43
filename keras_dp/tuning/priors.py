"""Priors of settings, which are drawn without a look at any result."""

import abc
import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

from keras_dp import _check
from keras_dp._override import override

# Returns a number in [0, 1), of which each is equally likely.
UniformDraw: TypeAlias = Callable[[], float]


class Prior(abc.ABC):
    """How one setting of a trial is drawn; the base class of all priors."""

    __slots__ = ()

    @abc.abstractmethod
    def value(self, uniform: float) -> Any:
        """Returns the value that a uniform number stands for.

        Args:
            uniform: In [0, 1).
        """


@dataclasses.dataclass(frozen=True, slots=True)
class Choice(Prior):
    """One of some values, all equally likely.

    Attributes:
        values: The values, at least one, of any kind. One that is there twice
            is twice as likely.

    >>> Choice([128, 256]).value(0.5)
    256
    """

    values: tuple[Any, ...]

    def __init__(self, values: Iterable[Any]) -> None:
        if isinstance(values, str) or not isinstance(values, Iterable):
            raise TypeError(
                "`values` must be a list of the values to choose from. "
                f"Received: values={_check.shown(values)}."
            )
        object.__setattr__(self, "values", tuple(values))
        if not self.values:
            raise ValueError(
                "`values` must hold at least one value. Received: values=()."
            )

    @override
    def value(self, uniform: float) -> Any:
        return self.values[int(uniform * len(self.values))]


@dataclasses.dataclass(frozen=True, slots=True)
class Uniform(Prior):
    """A number between two bounds, each equally likely.

    Attributes:
        low: The least value.
        high: The largest value, above `low`.

    >>> Uniform(0.0, 2.0).value(0.25)
    0.5
    """

    low: float
    high: float

    def __post_init__(self) -> None:
        _check.number(low=self.low, high=self.high)
        if not -math.inf < self.low < self.high < math.inf:
            raise ValueError(
                "`high` must be above `low`, and both be finite. "
                f"Received: low={self.low!r}, high={self.high!r}."
            )

    @override
    def value(self, uniform: float) -> float:
        return self.low + uniform * (self.high - self.low)


@dataclasses.dataclass(frozen=True, slots=True)
class LogUniform(Uniform):
    """A number between two bounds, whose logarithm is uniform.

    Attributes:
        low: The least value, > 0.
        high: The largest value, above `low`.

    >>> round(LogUniform(1e-3, 1e-1).value(0.5), 12)
    0.01
    """

    def __post_init__(self) -> None:
        _check.finite_positive(low=self.low)
        Uniform.__post_init__(self)

    @override
    def value(self, uniform: float) -> float:
        found = self.low * math.exp(uniform * math.log(self.high / self.low))
        return min(max(found, self.low), self.high)


def checked_space(space: Any) -> dict[str, Prior]:
    """Returns a copy of a space, or raises."""
    if not isinstance(space, Mapping):
        raise TypeError(
            "`space` must be a dict of names to priors, such as "
            '{"learning_rate": LogUniform(1e-3, 1)}: how a trial is drawn must '
            "not depend on the results of others, as it does in Bayesian and "
            "Hyperband searches, for then no price is known. Received: "
            f"space={_check.shown(space)}."
        )
    for name, prior in space.items():
        _check.non_empty_text(space=name)
        if not isinstance(prior, Prior):
            raise TypeError(
                "`space` must hold priors: Choice, Uniform or LogUniform. "
                f"Received: {name}={_check.shown(prior)}. For some values, "
                "pass Choice([...])."
            )
    if not space:
        raise ValueError(
            "`space` must hold at least one setting. Received: space={}. "
            "Without settings to choose, call make_private."
        )
    return dict(space)


def values_of(
    space: Mapping[str, Prior], name: str, default: Any
) -> tuple[Any, ...]:
    """Returns all values that a setting may take, which must be countable."""
    prior = space.get(name)
    if prior is None:
        return (default,)
    if not isinstance(prior, Choice):
        raise ValueError(
            f"`space` must give {name!r} a Choice: each of its values has a "
            "plan of its own, and the price is for all of these plans. "
            f"Received: {name}={prior!r}."
        )
    return tuple(dict.fromkeys(prior.values))


def drawn(space: Mapping[str, Prior], draw: UniformDraw) -> dict[str, Any]:
    """Returns the settings of one trial."""
    return {name: prior.value(draw()) for name, prior in space.items()}
