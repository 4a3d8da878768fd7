"""Snakemake run to its end, and the lock that a run leaves when it is killed."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from plm_embed.cli import interrupted
from plm_embed.errors import PlmEmbedError, missing_extra
from plm_embed.io.terminal import printable
from plm_embed.reporting.failures import alike, failures, run_failure
from plm_embed.wording import count
from plm_embed.workflow.call import SNAKEFILE, shell_line
from plm_embed.workflow.run_note import host

RUN = Path(".snakemake", "plm-embed-run.json")
"""Note of the run in this folder: its host, when it began, and whether its jobs run there. Each
line of Snakemake's output renews its time. An orderly end deletes it.
"""
_JOB = re.compile(r"(local)?rule \w+:$|\[\w{3} \w{3} .*\]$")
"""The line above what Snakemake tells of a job that begins, and the time above that."""
_AGAIN = "rerun the same command; finished work is kept"
_TRACEBACK = ("Traceback (most recent call last)", "Exception ignored in", "Exception in thread")


def execute(options: Sequence[str], results: Path, models: Sequence[str]) -> None:
    """Run Snakemake with these options, and print its output. PlmEmbedError when it fails, with the
    errors of the steps that failed.

    The lock of an earlier run that was killed is removed first, if none of its processes is left.
    It stays where jobs went to a scheduler, for they may still run.
    """
    if find_spec("snakemake") is None:
        raise PlmEmbedError(missing_extra(ModuleNotFoundError(name="snakemake")))
    if _lock_is_stale():
        print("plm-embed: the last run was killed: removing its lock", file=sys.stderr)
        _snakemake([*options, "--unlock"])
    RUN.parent.mkdir(exist_ok=True)
    RUN.touch()
    began = RUN.stat().st_mtime_ns  # of the clock of this filesystem, as the lock's
    run = {"host": host(), "began": began, "local": "--profile" not in options}
    RUN.write_text(json.dumps(run), encoding="utf-8")
    code, locked = _snakemake(options)
    if code < 0:
        raise PlmEmbedError(f"Snakemake was killed ({signal.Signals(-code).name})", remedy=_AGAIN)
    RUN.unlink(missing_ok=True)
    if code and locked:
        raise PlmEmbedError(
            "another Snakemake works in this folder, or was killed",
            remedy=f"wait for it; if there is none: `{shell_line([*options, '--unlock'])}`, then "
            "the same command again",
        )
    if code:
        failed = [
            failure
            for failure in failures(results, models) or filter(None, [run_failure(results)])
            if failure.log.stat().st_mtime_ns >= began
        ]
        lines = [
            f"{same[0].log}: {same[0].reason}"
            + (f" (and {count(len(same) - 1, 'similar step')})" if same[1:] else "")
            for same in alike(failed)
        ]
        lines = lines or ["Snakemake's messages are above"]
        raise PlmEmbedError("\n".join(["a step failed", *lines, f"Fix the problem and {_AGAIN}"]))


def _snakemake(options: Sequence[str]) -> tuple[int, bool]:
    """Run Snakemake; return its exit code, and whether it found this folder locked. After a Ctrl-C,
    which it gets too, it ends in order, and then this process does; where it ends by a traceback,
    that is not shown.
    """
    # "rules" also hides why a scheduler refused or ended a job: its lines are left out here
    quiet = ["host"] if "--profile" in options else ["host", "rules"]
    locked, hidden, shown, interrupts = False, False, True, list[int]()
    handler = signal.signal(signal.SIGINT, lambda number, _: interrupts.append(number))
    try:
        with subprocess.Popen(
            # -P: a user's file that has the name of a module is none
            [sys.executable, "-P", "-m", "snakemake", "--snakefile", str(SNAKEFILE), *options,
             "--quiet", *quiet],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, errors="replace", env={**os.environ, "PYTHONSAFEPATH": "1"},
        ) as process:  # fmt: skip
            assert process.stdout
            for line in process.stdout:
                if RUN.exists():
                    RUN.touch()
                shown = not _JOB.match(line) and (shown or not line.startswith((" ", "\n")))
                hidden = bool(interrupts) and (hidden or line.startswith(_TRACEBACK))
                with suppress(BrokenPipeError):  # the campaign goes on unseen
                    if shown and not hidden:
                        print(printable(line.rstrip()), file=sys.stderr, flush=True)
                hidden = hidden and not line.startswith("KeyboardInterrupt")
                locked = locked or "Directory cannot be locked" in line
    finally:
        signal.signal(signal.SIGINT, handler)
    if interrupts:
        RUN.unlink(missing_ok=True)
        sys.exit(interrupted("; rerun the same command to continue"))
    return process.returncode, locked


def _lock_is_stale() -> bool:
    """Return whether a run that was killed on this host left the lock of this folder: there is no
    other lock, it was made during that run, and neither Snakemake nor a step works here.
    """
    try:
        run, last_line = json.loads(RUN.read_text(encoding="utf-8")), RUN.stat().st_mtime_ns
    except (OSError, ValueError):
        return False
    locks = list(Path(".snakemake", "locks").glob("*.lock"))  # {number}.{input,output}.lock
    return (
        run["local"]
        and run["host"] == host()
        and len({lock.name.partition(".")[0] for lock in locks}) == 1
        and all(run["began"] <= lock.stat().st_mtime_ns <= last_line for lock in locks)
        and not _is_working()
    )


def _is_working() -> bool:
    """Return whether a Snakemake, or a step of a campaign, works in this folder."""
    import psutil  # comes with Snakemake

    this = psutil.Process()
    ancestors = {process.pid for process in (this, *this.parents())}
    return any(
        {"snakemake", "plm_embed"} & {Path(word).name for word in process.info["cmdline"] or ()}
        for process in psutil.process_iter(["cmdline", "cwd"])
        if process.info["cwd"] == str(Path.cwd()) and process.pid not in ancestors
    )
