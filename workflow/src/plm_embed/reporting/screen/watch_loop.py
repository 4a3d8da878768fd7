"""`plm-embed watch`: looks at a campaign until it is over; its exit code says how it ended."""

import time
from pathlib import Path

from rich.live import Live

from plm_embed.io.console import Terminal
from plm_embed.reporting.screen.watch import Look, Watch
from plm_embed.reporting.screen.watch_view import plain, view

SECONDS_BETWEEN_LOOKS = 10.0
"""As often as workers write their heartbeats."""
PLAIN_WIDTH = 120
VALID, FAILED, UNFINISHED = 0, 1, 3


def watch(results: Path, *, once: bool) -> int:
    """Show the campaign until it is over or Ctrl-C; with `once`, print one look at it as plain
    text. The exit code: VALID, FAILED or UNFINISHED.
    """
    looker = Watch(results)
    if once:
        look = looker.look()
        Terminal(width=PLAIN_WIDTH, no_color=True, highlight=False).print(plain(look))
        return _code(look)
    console = Terminal()
    look = looker.look()
    with Live(console=console, auto_refresh=False, vertical_overflow="crop") as live:
        try:
            while True:
                live.update(view(look, console), refresh=True)
                if look.over:
                    break
                time.sleep(SECONDS_BETWEEN_LOOKS)
                look = looker.look()
        except KeyboardInterrupt:
            pass
    return _code(look)


def _code(look: Look) -> int:
    return VALID if look.finished else FAILED if look.failed else UNFINISHED
