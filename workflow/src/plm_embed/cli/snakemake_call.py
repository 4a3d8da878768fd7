"""Snakemake, run to its end in a process of its own."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from click import Abort

from plm_embed.errors import PlmEmbedError, missing_extra
from plm_embed.io.files import cache_folder
from plm_embed.io.terminal import printable
from plm_embed.reporting.failures import AGAIN, alike, changed, failures, run_failure
from plm_embed.reporting.outputs import CONFIG
from plm_embed.workflow.call import SNAKEFILE, shell_line
from plm_embed.workflow.run_note import host, read_run

_CONTINUE = "rerun the same command to continue"
_HIDDEN = re.compile(
    r"(local)?rule \w+:$|\[\w{3} \w{3} .*\]$"
    r"|RuleException:|CalledProcessError in|Command '|Exiting because"
)
"""The first lines of Snakemake's details of a job that begins, and of its words for a step that
failed, of which the step says more in its log.
"""
_TRACEBACK = re.compile("Traceback|KeyboardInterrupt|Exception ignored|Exception in thread")


def execute(options: Sequence[str], results: Path, models: Sequence[str]) -> None:
    """Run Snakemake with these options, and print its progress. PlmEmbedError when it fails, with
    the errors of the steps that failed; Abort when somebody stopped it.

    The lock of an earlier run here that was killed is removed first, if none of its processes is
    left. It stays where jobs went to a scheduler, for they may still run.
    """
    if find_spec("snakemake") is None:
        raise PlmEmbedError(missing_extra(ModuleNotFoundError(name="snakemake")))
    try:  # Snakemake writes beside it, before anything else
        cache_folder().mkdir(parents=True, exist_ok=True)
    except OSError as error:
        remedy = "set XDG_CACHE_HOME to a folder that can be written"
        raise PlmEmbedError(f"{cache_folder()}: {error.strerror}", remedy=remedy) from None
    if _lock_is_stale(results):
        print("plm-embed: the last run was killed: removing its lock", file=sys.stderr)
        _snakemake([*options, "--unlock"])
    status, locked = _snakemake(options)
    if status < 0:
        first = "wait until its jobs have ended, then " if "--profile" in options else ""
        raise PlmEmbedError(
            f"Snakemake was killed ({signal.Signals(-status).name})",
            remedy=f"{first}rerun the same command; finished work is kept",
        )
    if locked:
        raise PlmEmbedError(
            "another Snakemake works in this folder, or was killed",
            remedy="wait for it and its jobs; if there are none: "
            f"`{shell_line([*options, '--unlock'])}`, then the same command again",
        )
    if status and (run := read_run(results)) and run.stopped:
        raise Abort(_CONTINUE)
    if status:
        began = changed(results / CONFIG)  # written for this run
        failed = failures(results, models, began) or run_failure(results, began)
        lines = [f"{first.log}: {first.reason}{others}" for first, others in alike(failed)]
        words = ["a step failed", *lines] if lines else ["Snakemake failed"]
        raise PlmEmbedError("\n".join([*words, AGAIN]))


def _snakemake(options: Sequence[str]) -> tuple[int, bool]:
    """Run Snakemake and print its progress; return its exit status, and whether the folder is
    locked.

    After a Ctrl-C, which it gets too, it ends in order, and Abort is raised; where it ends by a
    traceback, that is not shown. A SIGTERM is passed on to it and its jobs here.
    """
    import psutil  # comes with Snakemake

    def interrupt(number: int, _: object) -> None:
        interrupts.append(number)
        below = psutil.Process().children(recursive=True) if number == signal.SIGTERM else []
        for process in below:
            with suppress(psutil.NoSuchProcess):
                process.terminate()

    # "rules" also hides why a scheduler refused or ended a job: its lines are left out here
    quiet = ["host"] if "--profile" in options else ["host", "rules"]
    interrupts, shown, locked = list[int](), False, False
    signals = (signal.SIGINT, signal.SIGTERM)
    handlers = [(number, signal.signal(number, interrupt)) for number in signals]
    # -P: a user's file that has the name of a module is none
    command = [sys.executable, "-P", "-m", "snakemake", "--snakefile", str(SNAKEFILE), *options]
    try:
        with subprocess.Popen(
            [*command, "--quiet", *quiet],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, errors="replace", env={**os.environ, "PYTHONSAFEPATH": "1"},
        ) as process:  # fmt: skip
            assert process.stdout
            for line in process.stdout:
                locked = locked or line.startswith("LockException:")
                if not line.startswith((" ", "\n")):  # else it belongs to the line above
                    shown = not (_HIDDEN.match(line) or (interrupts and _TRACEBACK.match(line)))
                with suppress(BrokenPipeError):  # the campaign goes on unseen
                    if shown and not locked:
                        print(printable(line.rstrip()), file=sys.stderr, flush=True)
    finally:
        for number, handler in handlers:
            signal.signal(number, handler)
    if interrupts:
        raise Abort(_CONTINUE)
    return process.returncode, locked


def _lock_is_stale(results: Path) -> bool:
    """Return whether the last run of this campaign was killed on this host and left the only lock
    of this folder, where neither Snakemake nor a step works.
    """
    run = read_run(results)
    if not run or not run.local or run.host != host() or run.ended or run.alive:
        return False
    import psutil  # comes with Snakemake

    this = psutil.Process()
    ancestors = {process.pid for process in (this, *this.parents())}
    locks = Path(".snakemake", "locks").glob("*.lock")  # {number}.{input,output}.lock
    return len({lock.name.partition(".")[0] for lock in locks}) == 1 and not any(
        {"snakemake", "plm_embed"} & {Path(word).name for word in process.info["cmdline"] or ()}
        for process in psutil.process_iter(["cmdline", "cwd"])
        if process.info["cwd"] == str(Path.cwd()) and process.pid not in ancestors
    )
