"""The commands. Ctrl-C while they are loaded is no bug, and has no traceback; from then on `main`
answers it.
"""

import os
import sys
from types import TracebackType

INTERRUPTED = 130
"""The exit code, which shells give too to what a Ctrl-C ends."""
_before = sys.excepthook


def interrupted() -> int:
    """Say that Ctrl-C was the end; the exit code."""
    print("plm-embed: interrupted", file=sys.stderr, flush=True)
    return INTERRUPTED


def _hook(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    if issubclass(kind, KeyboardInterrupt):
        os._exit(interrupted())  # Python would end by the signal; nothing is open yet
    _before(kind, error, traceback)


sys.excepthook = _hook
