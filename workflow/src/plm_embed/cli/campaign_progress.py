"""How far a run is while one of its steps is at work, for which Snakemake has no word."""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import click

from plm_embed.errors import PlmEmbedError
from plm_embed.io.terminal import printable

ON_TERMINAL = 30.0
"""Seconds between two words to somebody who waits."""
IN_LOG = 600.0
"""Seconds between two words to a file, which must not grow by them."""


@contextmanager
def progress_told(results: Path) -> Iterator[None]:
    """While the `with` block lasts, say now and then, as often as stderr bears, what is at work in
    this results folder, and the time left.

    What cannot be read is left out: no run fails for it.
    """
    between = ON_TERMINAL if sys.stderr.isatty() else IN_LOG
    ended = threading.Event()
    thread = threading.Thread(target=_tell, args=(results, between, ended), daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _tell(results: Path, between: float, ended: threading.Event) -> None:
    watch = None
    while not ended.wait(between):
        # only now, as most runs of a few sequences are over by then
        from plm_embed.reporting.screen.watch import Watch
        from plm_embed.reporting.screen.watch_view import at_work

        with suppress(OSError, PlmEmbedError):
            watch = watch or Watch(results)
            for line in at_work(watch.look()):
                click.echo(printable(line), err=True)
