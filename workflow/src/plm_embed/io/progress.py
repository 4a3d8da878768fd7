"""Progress of long work: a bar with the time left on a terminal, a line now and then in a log."""

import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

from plm_embed.io.terminal import terminal

log = logging.getLogger(__name__)
SECONDS_BETWEEN_LINES = 30.0


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
