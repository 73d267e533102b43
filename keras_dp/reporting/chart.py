"""Charts as SVG, readable in light and dark pages, and the trade-off curve.

Each picture is complete by itself: it holds its style, runs no script, loads
nothing, and scales with the width that it is given.
"""

import dataclasses
import html
import math
from collections.abc import Iterable, Sequence
from typing import TypeAlias

import numpy as np

from keras_dp.accountants.arrays import Array
from keras_dp.accountants.trade_off_curves import TradeOff
from keras_dp.reporting.wording import on_one_line

Points: TypeAlias = Sequence[tuple[float, float]]

# The number of ticks that are named, about.
_TICKS = 5
# Binary fractions of round steps.
_CLOSE = 1e-9

WIDTH, HEIGHT = 440, 320
# The room for ticks and labels around the chart.
LEFT, RIGHT, TOP, BOTTOM = 76, 26, 16, 52

# A page may hold several pictures: the rules are the same in all of them.
STYLE = """
.kdp{--paper:#fff;--ink:#1c2430;--soft:#566170;--grid:#dfe3e8;--a:#1d5fd1;
--b:#b3400a;--c:#0b7268;--d:#7a3fd0;width:100%;max-width:560px;height:auto;
font:12px system-ui,sans-serif}
@media (prefers-color-scheme:dark){.kdp{--paper:#14181e;--ink:#e8ebef;
--soft:#a9b3bf;--grid:#333c47;--a:#79aefc;--b:#f59a63;--c:#4fc7b8;--d:#b99af5}}
.kdp .paper{fill:var(--paper)}.kdp text{fill:var(--ink)}
.kdp .soft{fill:var(--soft)}.kdp .grid{stroke:var(--grid);stroke-width:1}
.kdp .frame{stroke:var(--soft);stroke-width:1;fill:none}
.kdp .line{fill:none;stroke-width:2;stroke-linejoin:round}
.kdp .k0{stroke:var(--a)}.kdp .k1{stroke:var(--b);stroke-dasharray:7 3}
.kdp .k2{stroke:var(--c);stroke-dasharray:2 3}
.kdp .k3{stroke:var(--d);stroke-dasharray:9 3 2 3}
.kdp .guess{stroke:var(--soft);stroke-dasharray:4 4}
.kdp .area{fill:var(--a);opacity:.16}.kdp .bar{fill:var(--a);opacity:.75}
"""


@dataclasses.dataclass(frozen=True, slots=True)
class Axis:
    """A range of values, linear or logarithmic.

    On a logarithmic axis equal ratios are equally long, and `low` is > 0. The
    label says what the values are, with their unit. Shares are named in
    percent.
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


class Chart:
    """Marks on two axes, in the order in which they are drawn."""

    def __init__(self, x: Axis, y: Axis) -> None:
        self._x, self._y = x, y
        self._marks: list[str] = []
        self._axes()

    def area(self, points: Points) -> None:
        """Fills a polygon."""
        self._marks.append(
            f'<polygon class="area" points="{self._path(points)}"/>'
        )

    def line(self, points: Points, kind: str) -> None:
        """Draws a line; `kind` is a class of the style."""
        self._marks.append(
            f'<polyline class="line {kind}" points="{self._path(points)}"/>'
        )

    def note(
        self, x: float, y: float, text: str, anchor: str = "start"
    ) -> None:
        """Writes a text at a point of the axes."""
        at, above = self._place((x, y))
        self._marks.append(label(at, above, text, anchor=anchor, kind="soft"))

    def legend(self, names: Sequence[str]) -> None:
        """Names the kinds of lines, in the upper left corner."""
        for index, name in enumerate(names):
            above = TOP + 18 + 17 * index
            left = LEFT + 10
            self._marks.append(
                f'<path class="line k{index}" d="M{left} {above - 4}h26"/>'
                + label(left + 33, above, name)
            )

    def svg(self, title: str) -> str:
        """Returns the picture; `title` says all that it shows."""
        return picture("".join(self._marks), title, HEIGHT)

    def _axes(self) -> None:
        right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
        for value, name in self._x.ticks():
            at, _ = self._place((value, self._y.low))
            self._marks.append(
                f'<path class="grid" d="M{_n(at)} {TOP}V{bottom}"/>'
                + label(at, bottom + 17, name, anchor="middle", kind="soft")
            )
        for value, name in self._y.ticks():
            _, above = self._place((self._x.low, value))
            self._marks.append(
                f'<path class="grid" d="M{LEFT} {_n(above)}H{right}"/>'
                + label(LEFT - 6, above + 4, name, anchor="end", kind="soft")
            )
        middle = (TOP + bottom) / 2
        self._marks.append(
            f'<path class="frame" d="M{LEFT} {TOP}V{bottom}H{right}"/>'
            + label(
                (LEFT + right) / 2, HEIGHT - 10, self._x.label, anchor="middle"
            )
            + f'<text transform="translate(13 {_n(middle)}) rotate(-90)" '
            f'text-anchor="middle">{_escaped(self._y.label)}</text>'
        )

    def _place(self, point: tuple[float, float]) -> tuple[float, float]:
        x, y = point
        across = LEFT + (WIDTH - RIGHT - LEFT) * self._x.position(x)
        down = HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * self._y.position(y)
        return across, down

    def _path(self, points: Iterable[tuple[float, float]]) -> str:
        placed = (self._place(point) for point in points)
        return " ".join(f"{_n(x)},{_n(y)}" for x, y in placed)


def picture(marks: str, title: str, height: float) -> str:
    """Returns an SVG element; screen readers say its title instead of it."""
    text = _escaped(title)
    return (
        '<svg xmlns="http://www.w3.org/2000/svg" class="kdp" role="img" '
        f'viewBox="0 0 {WIDTH} {_n(height)}" aria-label="{text}">'
        f"<title>{text}</title><style>{STYLE}</style>"
        f'<rect class="paper" width="{WIDTH}" height="{_n(height)}"/>'
        f"{marks}</svg>"
    )


def label(
    x: float, y: float, text: str, *, anchor: str = "start", kind: str = ""
) -> str:
    """Returns a text at a place of the picture."""
    name = f' class="{kind}"' if kind else ""
    return (
        f'<text x="{_n(x)}" y="{_n(y)}" text-anchor="{anchor}"{name}>'
        f"{_escaped(text)}</text>"
    )


def _escaped(text: str) -> str:
    return html.escape(on_one_line(text))


def _n(value: float) -> str:
    if not math.isfinite(value):
        raise ValueError(f"`value` must be finite. Received: value={value!r}.")
    return f"{value:.2f}".rstrip("0").rstrip(".")


# The least rate on logarithmic axes, and how many points a line has.
_LEAST, _POINTS = 1e-5, 121
_RATES = (
    "wrongly accused (false positive rate)",
    "rightly accused (true positive rate)",
)


def trade_off_pictures(curve: TradeOff, title: str) -> tuple[str, str]:
    """Returns SVG pictures of what every attack is bounded by.

    Attacks can be in the shaded area, and nowhere above it. On the logarithmic
    axes of the second picture the attacks that seldom accuse wrongly are seen.
    """
    rates = np.linspace(0.0, 1.0, _POINTS), np.geomspace(_LEAST, 1.0, _POINTS)
    of_all, of_few = (_trade_off(curve, each) for each in rates)
    for chart, right, lower, upper in (
        (of_all, 0.97, 0.05, 0.12),
        (of_few, 0.6, 1.5e-5, 3.5e-5),
    ):
        chart.note(right, lower, "no attack is above the line", "end")
        chart.note(right, upper, "guessing: dashed", "end")
    return of_all.svg(title), of_few.svg(title)


def _trade_off(curve: TradeOff, rates: Array) -> Chart:
    """Returns the curve at some rates, on axes that begin with the least."""
    low = float(rates[0])
    x, y = (
        Axis(label, low, 1.0, is_log=low > 0, is_share=True) for label in _RATES
    )
    heights = curve.largest_true_positive_rate(rates)
    most = [*zip(rates.tolist(), heights.tolist(), strict=True)]
    guesses = [(rate, rate) for rate, _ in most]
    chart = Chart(x, y)
    chart.area([(low, low), *most, (1.0, 1.0), *reversed(guesses)])
    chart.line(guesses, "guess")
    chart.line(most, "k0")
    return chart
