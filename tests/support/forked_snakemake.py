"""Snakemake without its start: each run is a fork of a process that has imported it, and does what
the command does from there on.

That process has no threads, and is started when a test first needs it.
"""

import atexit
import multiprocessing
import os
import subprocess
import sys
import tempfile
from pathlib import Path

_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(["snakemake.cli", "pandas"])  # which the plain SLURM plugin takes


def run(arguments: list[str]) -> "subprocess.CompletedProcess[str]":
    """What `snakemake` with these arguments prints, standard output and error together in
    `stdout`, and its exit status.
    """
    with tempfile.NamedTemporaryFile() as said:
        process = _FORKS.Process(target=_main, args=(arguments, dict(os.environ), said.name))
        process.start()
        process.join()
        text = Path(said.name).read_text(encoding="utf-8")
    assert process.exitcode is not None
    return subprocess.CompletedProcess(arguments, process.exitcode, text)


def _main(arguments: list[str], environment: dict[str, str], said: str) -> None:
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = ["snakemake", *arguments]
    with Path(said).open("w", encoding="utf-8", buffering=1) as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    from snakemake.cli import main

    try:
        main()
    finally:
        atexit._run_exitfuncs()
