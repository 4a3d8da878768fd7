"""Charts as data: scales, ticks and marks in percent of a plot. `charts.html.j2` draws them as SVG,
which needs no script, scales with the page, and takes its colors from the page's style.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

Cell = str | int | float
"""Of a table of numbers: the value, without separators and units."""
TICKS = 6
"""At most so many spaces between them on an axis, so that their labels fit a telephone."""
_MARGIN = 0.04
"""Room at both ends of an axis, of its length."""


@dataclass(frozen=True)
class Tick:
    """at: percent from the beginning of its axis."""

    at: float
    label: str


@dataclass(frozen=True)
class Axis:
    """Where values lie between `low`, at 0 percent, and `high`, at 100."""

    title: str
    low: float
    high: float
    ticks: tuple[Tick, ...] = ()
    logarithmic: bool = False

    def percent(self, value: float) -> float:
        low, high, at = self.low, self.high, value
        if self.logarithmic:
            low, high, at = math.log(low), math.log(high), math.log(value)
        return round(100 * (at - low) / ((high - low) or 1.0), 2)


@dataclass(frozen=True)
class Bar:
    """A rectangle with its top left corner at x, y. `kind` names its color, `tip` says what it
    is.
    """

    x: float
    y: float
    width: float
    height: float
    kind: str
    tip: str = ""


@dataclass(frozen=True)
class Mark:
    """A symbol at x, y."""

    x: float
    y: float
    symbol: str
    tip: str = ""


@dataclass(frozen=True)
class Text:
    """Words at x, y, in the plot."""

    x: float
    y: float
    words: str


@dataclass(frozen=True, kw_only=True)
class Chart:
    """Everything about one chart.

    words: what it shows, for those who do not see it; table: its numbers, a row each under `head`;
    listed: they stand on the page too; numbers: the chart that has them, where it is another one;
    height: of the plot, in pixels; framed: on a ground of its own; line: points of a line, in
    percent, against the axis `right`; legend: color or symbol and its meaning.
    """

    name: str
    title: str
    words: str
    x: Axis
    y: Axis | None = None
    right: Axis | None = None
    height: int = 300
    framed: bool = False
    bars: tuple[Bar, ...] = ()
    marks: tuple[Mark, ...] = ()
    texts: tuple[Text, ...] = ()
    line: tuple[tuple[float, float], ...] = ()
    legend: tuple[tuple[str, str], ...] = ()
    head: tuple[str, ...] = ()
    table: tuple[tuple[Cell, ...], ...] = ()
    listed: bool = True
    numbers: str = ""

    @property
    def left(self) -> int:
        """Characters of the longest label beside the plot."""
        return max((len(tick.label) for tick in self.y.ticks), default=0) if self.y else 0


@dataclass(frozen=True)
class Bars:
    """Labelled horizontal bars, drawn as a table: label, value in words, percent of the longest,
    color. columns, table: its numbers, a row each.
    """

    name: str
    title: str
    head: tuple[str, str]
    rows: tuple[tuple[str, str, float, str], ...]
    columns: tuple[str, ...]
    table: tuple[tuple[Cell, ...], ...]


def linear(title: str, low: float, high: float, unit: str = "") -> Axis:
    """An axis with round ticks; `high` is widened to the next one if `low` is 0."""
    if high <= low:
        high = low + 1.0
    raw = (high - low) / TICKS
    power = 10.0 ** math.floor(math.log10(raw))
    step = power * next(nice for nice in (1, 2, 2.5, 5, 10) if nice * power >= raw * 0.999)
    if low == 0:
        high = step * math.ceil(high / step - 1e-9)
    axis = Axis(title, low, high)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    ticks = (step * at for at in range(first, last + 1))
    return Axis(title, low, high, tuple(Tick(axis.percent(v), f"{v:,.10g}{unit}") for v in ticks))


def logarithmic(title: str, low: float, high: float) -> Axis:
    """An axis for positive numbers, with ticks at 1, 2 and 5 times the powers of ten."""
    axis = Axis(title, low, max(high, low + 1), logarithmic=True)
    nice = [n * 10**power for power in range(10) for n in (1, 2, 5)]
    inside = [n for n in nice if low <= n <= high]
    while len(inside) > TICKS + 1:
        inside = inside[::2]
    ticks = tuple(Tick(axis.percent(n), f"{n:,}") for n in inside)
    return Axis(title, axis.low, axis.high, ticks, logarithmic=True)


SPACES = 4
"""As TICKS, on an axis of time, whose labels are longer."""
_STEPS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200)


def clock(title: str, low: float, high: float) -> Axis:
    """An axis of time between two timestamps, in seconds; ticks in UTC."""
    high = max(high, low + 1)
    days = (86400 * n for n in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000))
    step = next((one for one in (*_STEPS, *days) if (high - low) / one <= SPACES), 86400 * 2000)
    form = "%H:%M:%S" if step < 60 else "%H:%M" if step < 43200 else "%m-%d %H:%M"
    axis = Axis(title, low, high)
    found = range(math.ceil(low / step), math.floor(high / step) + 1)
    ticks = tuple(
        Tick(axis.percent(at * step), datetime.fromtimestamp(at * step, UTC).strftime(form))
        for at in found
    )
    return Axis(title, low, high, ticks)


def extent(values: Sequence[float]) -> tuple[float, float]:
    """The smallest and the largest value, and some room."""
    low, high = min(values), max(values)
    alike = high - low <= 1e-6 * max(abs(low), abs(high))
    room = 1.0 if alike else _MARGIN * (high - low)
    return low - room, high + room


def short(text: str, limit: int = 40) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"
