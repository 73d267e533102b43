"""An axis of a chart: where values are, and which of them are named."""

import dataclasses
import math

# About so many ticks are named.
_TICKS = 5
# Binary fractions of round steps.
_CLOSE = 1e-9


@dataclasses.dataclass(frozen=True, slots=True)
class Axis:
    """A range of values, linear or logarithmic.

    Attributes:
        label: Says what the values are, with their unit.
        low: Where the axis begins; > 0 on a logarithmic one.
        high: Where it ends, > `low`.
        is_log: Whether equal ratios are equally long.
        is_share: Whether values are shares, which are named in percent.
    """

    label: str
    low: float
    high: float
    is_log: bool = False
    is_share: bool = False

    def position(self, value: float) -> float:
        """Returns where a value is, from 0 at `low` to 1 at `high`."""
        value = min(max(value, self.low), self.high)
        if self.is_log:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)

    def ticks(self) -> list[tuple[float, str]]:
        """Returns round values of the axis, each with its name."""
        values = self._decades() if self.is_log else self._steps()
        return [(value, self._named(value)) for value in values]

    def _steps(self) -> list[float]:
        raw = (self.high - self.low) / _TICKS
        power = 10.0 ** math.floor(math.log10(raw))
        step = next(
            power * each
            for each in (1, 2, 5, 10)
            if power * each >= raw * (1 - _CLOSE)
        )
        first = math.ceil(self.low / step - _CLOSE)
        last = math.floor(self.high / step + _CLOSE)
        return [index * step for index in range(first, last + 1)]

    def _decades(self) -> list[float]:
        first = math.ceil(math.log10(self.low) - _CLOSE)
        last = math.floor(math.log10(self.high) + _CLOSE)
        stride = max(1, math.ceil((last - first) / _TICKS))
        return [10.0**power for power in range(last, first - 1, -stride)]

    def _named(self, value: float) -> str:
        if self.is_share:
            return f"{100 * value:.6g} %"
        return f"{value:,.6g}"
