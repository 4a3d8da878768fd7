"""Text and progress on a terminal or in a log: ids, file names and column names are foreign text
that must not steer the screen.
"""

import logging
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.segment import Segment

log = logging.getLogger(__name__)
SECONDS_BETWEEN_LINES = 30.0
# C0 except tab and line feed, DEL, C1, and surrogates, which no terminal can be sent
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")


def printable(text: str) -> str:
    """Write out the control characters of a text, such as \\x1b; line ends and tabs stay."""
    return _CONTROL.sub(lambda sign: sign[0].encode("unicode_escape").decode(), text)


def say(text: str) -> None:
    """Print the answer of a command."""
    print(printable(text))


def log_to_stderr() -> None:
    """Log lines of this process, with the time, to standard error."""

    class Formatter(logging.Formatter):
        def format(self, record: logging.LogRecord) -> str:
            return printable(super().format(record))

    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(Formatter("%(asctime)s %(message)s", "%H:%M:%S"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])


def terminal(**options: Any) -> "Console":
    """Return rich's console, on which only rich's own styles and moves reach the terminal raw."""
    from rich import console, segment

    class Terminal(console.Console):
        def render(
            self, renderable: "RenderableType", options: "ConsoleOptions | None" = None
        ) -> "Iterator[Segment]":
            for part in super().render(renderable, options):
                yield part if part.control else segment.Segment(printable(part.text), part.style)

    return Terminal(**options)


@dataclass
class Meter:
    """Counts steps done of `total`; `unit` names a step. `draw` moves a bar on."""

    label: str
    total: float
    unit: str
    draw: Callable[[float], None] | None = None
    done: float = 0.0
    started: float = field(default_factory=time.monotonic)
    logged: float = field(default_factory=time.monotonic)

    def advance(self, steps: float) -> None:
        self.done += steps
        now = time.monotonic()
        if self.draw:
            self.draw(steps)
        elif now - self.logged >= SECONDS_BETWEEN_LINES:
            self.logged = now
            rate = self.done / (now - self.started)
            left = (self.total - self.done) / rate if rate else float("inf")
            percent = 100 * self.done / max(self.total, 1)
            log.info(
                f"{self.label}: {percent:.0f} % ({self.done:,.0f} of {self.total:,.0f} {self.unit}"
                f"), {rate:,.0f} {self.unit}/s, about {left:.0f} s left"
            )


@contextmanager
def progress(label: str, total: float, unit: str, bar: bool = True) -> Iterator[Meter]:
    """Yield a meter that draws a bar on stderr when that is a terminal and a `bar` is wanted, and
    logs otherwise.
    """
    if not (bar and sys.stderr.isatty()):
        yield Meter(label, total, unit)
        return
    from rich import progress as rich_progress

    with rich_progress.Progress(console=terminal(stderr=True)) as drawn:
        yield Meter(label, total, unit, partial(drawn.advance, drawn.add_task(label, total=total)))
