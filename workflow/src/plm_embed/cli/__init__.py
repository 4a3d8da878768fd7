"""The commands."""

import sys

INTERRUPTED = 130
"""The exit code that shells give to what a Ctrl-C ends."""


def interrupted(remedy: str = "") -> int:
    """Report a Ctrl-C, and what to do, and return the exit code."""
    print(f"plm-embed: interrupted{remedy}", file=sys.stderr, flush=True)
    return INTERRUPTED
