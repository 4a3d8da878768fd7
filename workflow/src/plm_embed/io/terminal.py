"""Text for a terminal or a log: ids, file names and column names are foreign text and must not
steer the screen.
"""

import logging
import re
import sys

# C0 except tab and line feed, DEL, C1, and surrogates, which no terminal can be sent
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")


def printable(text: str) -> str:
    """`text` with its control characters written out, such as \\x1b; line ends and tabs stay."""
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def say(text: str) -> None:
    """Print the answer of a command."""
    print(printable(text))


class _Formatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


def log_to_stderr() -> None:
    """Log lines of this process, with the time, to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Formatter("%(asctime)s %(message)s", "%H:%M:%S"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
