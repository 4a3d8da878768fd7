"""The note of a campaign's last run of Snakemake, in the folder of its logs.

Hooks of the Snakefile write it: a job that waits, or that a scheduler refuses, leaves no other
trace. No result depends on it.
"""

import re
import socket
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import msgspec

from plm_embed.io.json_files import write_json

_WHY = re.compile(
    r"^(?:    message: (?!None$)|Job \d+ \(.*\) is not submitted: "
    r"|\w+(?:Error|Exception) in rule .*:\n)(.*?)"
    r"(?: For further error details.*)?$"
    r"(?:(?:\n    (?:jobid|input|output): .*)*\n    log: (.+?)(?:, .*)? \(check log)?",
    re.M,
)
"""Why a job failed, and its log."""
_KILLED_HERE = re.compile(
    r" &> (.+)' (?:died with <Signals.SIGKILL: 9>|returned non-zero exit status 137)"
)
_LOGS_END = 80 * "="
"""The line below the last log that Snakemake shows, which may be of a Snakemake within a job."""
_KILLED = (
    "Snakemake was killed{}rerun the same command. If Snakemake says that the folder is locked, "
    "give the command with --unlock first."
)
_JOBS_GO_ON = "; its jobs on a cluster go on.\nWhen they have ended or are cancelled, "


@dataclass(frozen=True)
class Run:
    """A run of Snakemake: its process and when that began, in seconds; the models of its
    configuration; its log, or that of the job by which it failed; whether its jobs run beside it.
    ended: in order; stopped: by somebody; reason: why it failed, else ''.
    """

    host: str
    pid: int
    began: float
    models: tuple[str, ...]
    log: str
    local: bool = False
    ended: bool = False
    stopped: bool = False
    reason: str = ""

    @property
    def alive(self) -> bool:
        """Return whether it goes on. Another host's does unless it has ended in order."""
        if self.ended or self.host != host():
            return not self.ended
        try:
            import psutil  # comes with Snakemake

            process = psutil.Process(self.pid)
            same = abs(process.create_time() - self.began) < 60  # the clock may have been set
            return bool(same and process.status() != psutil.STATUS_ZOMBIE)
        except ModuleNotFoundError:
            return True
        except psutil.NoSuchProcess:
            return False

    @property
    def killed(self) -> bool:
        """Return whether it ended without a word."""
        return not self.ended and not self.alive

    @property
    def failure(self) -> str:
        """Return why it failed; '' while it goes on, or if it did not fail."""
        if self.killed:
            return _KILLED.format(": " if self.local else _JOBS_GO_ON)
        return self.reason


def run_note(results: Path) -> Path:
    """Return the path of the note. While the run goes on, it is as old as the run."""
    return results / "logs" / "run.json"


def note_start(
    results: Path, models: Iterable[str], logs: Sequence[str], *, local: bool = True
) -> None:
    """Write that a run begins in this process. local: its jobs go to no scheduler."""
    import psutil

    process, log = psutil.Process(), "".join(logs[:1])
    _write(results, Run(host(), process.pid, process.create_time(), tuple(models), log, local))


def note_end(results: Path, logs: Sequence[str] | None = None) -> None:
    """Write that the run has ended. logs: Snakemake's, if it failed; they name the reason."""
    if not (run := read_run(results)):
        return
    text = "".join(Path(log).read_text(errors="replace") for log in logs or ())
    terminated = "Will exit after finishing currently running" in text.rpartition(_LOGS_END)[2]
    run = replace(run, ended=True, stopped=terminated or "on user request" in text)
    if logs is not None and not run.stopped:
        killed = [("killed; out of memory?", log) for log in _KILLED_HERE.findall(text)]
        reason, log = (_WHY.findall(text) or killed or [("Snakemake ended with an error", "")])[-1]
        begun = Path(log).is_file() and Path(log).stat().st_size
        run = replace(run, reason=reason, log=log if begun else run.log)
    _write(results, run)


def _write(results: Path, run: Run) -> None:
    with suppress(OSError):  # a full disk
        write_json(run_note(results), asdict(run))


def read_run(results: Path) -> Run | None:
    """Return the last run; None where none was noted."""
    try:
        return msgspec.json.decode(run_note(results).read_bytes(), type=Run)
    except (OSError, ValueError):
        return None


def failed_attempts(run: Run) -> list[str]:
    """Return why attempts of jobs failed so far, or were not submitted, by Snakemake's log."""
    try:
        return [why for why, _ in _WHY.findall(Path(run.log).read_text(errors="replace"))]
    except OSError:
        return []


def host() -> str:
    """Return the name of this host, and of the container on it, which sees other processes."""
    container = Path("/proc/self/ns/pid")
    return f"{socket.gethostname()} {container.readlink() if container.is_symlink() else ''}"
