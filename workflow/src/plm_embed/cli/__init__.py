"""The commands. Ctrl-C while they are loaded is no bug and gets no traceback; from then on `main`
handles it.
"""

import os
import sys
from types import TracebackType

INTERRUPTED = 130
"""The exit code that shells give to what a Ctrl-C ends."""
_default_hook = sys.excepthook


def interrupted(remedy: str = "") -> int:
    """Report a Ctrl-C, and what to do, and return the exit code."""
    print(f"plm-embed: interrupted{remedy}", file=sys.stderr, flush=True)
    return INTERRUPTED


def _hook(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    if issubclass(kind, KeyboardInterrupt):
        os._exit(interrupted())  # Python would end by the signal; nothing is open yet
    _default_hook(kind, error, traceback)


sys.excepthook = _hook
