"""The call of Snakemake that is a campaign: what it says, and what is in its way."""

import re
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import click

from plm_embed.cli.campaign_progress import progress_told
from plm_embed.cli.campaign_run import Command
from plm_embed.errors import PlmEmbedError
from plm_embed.io.terminal import printable
from plm_embed.workflow.ending import AGAIN
from plm_embed.workflow.failures import failures
from plm_embed.workflow.run_note import NOTE, read_call

_SHOWN = re.compile(r"plm-embed: |\d+ of \d+ steps \(")
_FAILED = re.compile(r"plm-embed: [^:]+ failed: (?!.*; it is tried again$)")
_STOPPED = ("stopped ", "next ")
_NOTHING = "Nothing to be done"
_ERROR = re.compile(r"\w*(Error|Exception)\b")
_IN_SNAKEFILE = re.compile(r'WorkflowError in file "|  File "')
"""Around what the workflow refuses in words: of no use to who did not write it."""
_FORCE = re.compile("`snakemake(?=`| --forcerun )")
_LOCKED = "Directory cannot be locked"
_LINES = 400
_CAUSE_LINES = 8


def execute(command: Command, results: Path) -> bool:
    """Run it to its end, and show how far it is; False when there was nothing to do.

    PlmEmbedError with the cause and the log of the step that failed.
    """
    began = time.time_ns()
    with progress_told(results):
        code, lines, held = _snakemake(command)
    if code and any(_LOCKED in line for line in lines):
        raise _locked(command, results)
    if code:
        cause = _cause(lines, results, began)
        if held and cause.partition("\n")[0] not in held:
            click.echo(printable(held), err=True)
        raise PlmEmbedError(in_full(cause, command), path=results)
    return not any(line.startswith(_NOTHING) for line in lines)


def _snakemake(command: Command) -> tuple[int, list[str], str]:
    """Its exit code, the last lines that it says, and of these the one that was not shown: a
    failure after which nothing else came, as the error of the run is likely to say the same.
    """
    program = [sys.executable, "-m", "snakemake", *command.words, "--quiet", "host", "rules"]
    lines: list[str] = []
    held = ""
    with subprocess.Popen(
        program, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, errors="replace",
    ) as process:  # fmt: skip
        assert process.stdout
        try:
            for line in process.stdout:
                lines = [*lines[-_LINES:], line.rstrip()]
                if not _SHOWN.match(line):
                    continue
                if held:
                    click.echo(printable(held), err=True)
                held = lines[-1] if _FAILED.match(lines[-1]) else ""
                if not held:
                    click.echo(printable(lines[-1]), err=True)
        except KeyboardInterrupt:  # Snakemake has it too, ends its jobs, and says what is stored
            for line in process.stdout:
                if line.startswith(_STOPPED):
                    click.echo(printable(line.rstrip()), err=True)
            raise
    return process.returncode, lines, held


def _locked(command: Command, results: Path) -> PlmEmbedError:
    """What to do about a lock. Nobody takes it away unasked: it is that of all campaigns of the
    working folder.
    """
    call = read_call(results / NOTE)
    where = f" on {call.host}" if call and call.at_work else ""
    return PlmEmbedError(
        f"{results}: another Snakemake works in this folder{where}, or was killed",
        path=results,
        remedy=f"wait for it, or stop it; if there is none: "
        f"`{shlex.join([*command.shown, '--unlock'])}`, then the same command again",
    )


def _cause(lines: Sequence[str], results: Path, began: int) -> str:
    """What the first step to fail says, and its log; else the end of what Snakemake says."""
    logs = results / "logs"
    models = [folder.name for folder in logs.glob("*") if folder.is_dir()]
    if found := failures(results, models, began):
        first = found[0]
        reason = with_weights(first.reason, ["plm-embed", *sys.argv[1:]])
        after = AGAIN if reason == first.reason else "what is finished stays"
        return f"{reason}\nlog: {first.log}; {after}"
    errors = [number for number, line in enumerate(lines) if _ERROR.match(line)]
    last = lines[errors[-1] if errors else -_CAUSE_LINES :]
    said = [line for line in last if line and not _IN_SNAKEFILE.match(line)]
    return "\n".join(["Snakemake stopped:", *said[:_CAUSE_LINES]])


def in_full(cause: str, command: Command) -> str:
    """A failure in which what to force is a whole command, for who never gave one to Snakemake."""
    shown = shlex.join(command.shown)
    return _FORCE.sub(lambda _: f"`{shown}", cause)


def with_weights(reason: str, words: Sequence[str]) -> str:
    """A failure in which the next command, made of the words of this one, stands in place of what
    to write into a configuration about weights.
    """
    from plm_embed.models.sources.fetch_weights import IN_CONFIG

    several = sum(word.partition("=")[0] == "--model" for word in words) > 1

    def command(found: re.Match[str]) -> str:
        model, path = found.groups()
        named = f"--set weights.{model}={path}" if several else f"--weights {path}"
        return f"run: {shlex.join(words)} {named}"

    return IN_CONFIG.sub(command, reason)
