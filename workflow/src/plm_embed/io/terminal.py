"""Text for a terminal or a log: ids, file names and column names are foreign text and must not
steer the screen.
"""

import logging
import re
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.segment import Segment

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
