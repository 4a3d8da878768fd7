"""Calls of qsub, qselect, qstat and qdel that never hang, never see Ctrl-C and never raise for
PBS's sake.
"""

import getpass
import re
import shutil
from dataclasses import dataclass

from snakemake_interface_common.exceptions import WorkflowError

from .call import call

# Exit codes are PBS error numbers modulo 256: 104 try again, 162 no connection, 183 and 185
# protocol and too many connections; qstat says 255 where the others say 162; 160 is a host name
# that does not resolve just now.
_AWAY = frozenset({104, 160, 162, 183, 185, 255})
_NUMBER = re.compile(r"\d+")
# Torque and Grid Engine have commands of the same names, and other options.
_OTHER_SCHEDULER = re.compile(r"^\s*(version:|\w*GE \d).*", re.IGNORECASE | re.MULTILINE)


class AwayError(Exception):
    """PBS says nothing about jobs, and the text says why. `refused`: a server answers, but it, or
    the command, does not take these options; no waiting helps.
    """

    def __init__(self, words: str, refused: bool = False) -> None:
        super().__init__(words)
        self.refused = refused


@dataclass(frozen=True)
class Answer:
    """Exit code and output of one command; no code where it gave no answer or could not start."""

    code: int | None
    out: str
    err: str

    @property
    def away(self) -> bool:
        """Return whether no server was behind the command: its output says nothing of jobs."""
        return self.code is None or self.code in _AWAY

    @property
    def words(self) -> str:
        """Return the last line of stderr that says something (usage texts follow the message of
        exit code 2).
        """
        lines = [
            line.strip() for line in self.err.split("\nusage:")[0].splitlines() if line.strip()
        ]
        return lines[-1] if lines else f"exit code {self.code}, no message"


def number(job_id: str) -> str:
    """Return the part of an id that is the same everywhere: `12` of `12.pbs01`, `12.pbs` (cut by a
    table) and `12`.
    """
    match = _NUMBER.match(job_id)
    return match.group() if match else job_id


class Pbs:
    """The commands of one user, with one time-out (seconds) for all."""

    def __init__(self, timeout: float) -> None:
        self.timeout = timeout
        self.user = getpass.getuser()

    def check(self) -> None:
        """Raise WorkflowError when a command is missing here, or belongs to another scheduler."""
        missing = [
            name for name in ("qsub", "qselect", "qstat", "qdel") if shutil.which(name) is None
        ]
        if missing:
            raise WorkflowError(
                f"PBS commands not found: {', '.join(missing)}. Start Snakemake on a login node of "
                "the cluster (or load the module that brings PBS)."
            )
        version = self.call("qstat", "--version")
        text = version.out + version.err
        if "pbs_version" not in text and (other := _OTHER_SCHEDULER.search(text)):
            raise WorkflowError(
                f"`qstat --version` says {other[0].strip()!r}: this is not PBS Pro or OpenPBS but "
                "another scheduler, such as Torque or Grid Engine, which this executor can't use. "
                "Use --executor cluster-generic."
            )

    def call(self, *words: str) -> Answer:
        """Run one command."""
        code, out, err = call(*words, timeout=self.timeout)
        return Answer(code, out, f"{words[0]}: {err}" if code is None else err)

    def live(self) -> dict[str, str]:
        """Return {number: id} of all jobs of the user that have not ended. Raises AwayError."""
        return self._select()

    def held(self) -> frozenset[str]:
        """Return the numbers of the user's jobs that the system holds; none when the server cannot
        say.
        """
        try:
            return frozenset(self._select("-h", "s"))
        except AwayError:
            return frozenset()

    def named(self, name: str) -> list[str]:
        """Return the ids of the user's living jobs of this name, oldest first. Raises AwayError."""
        ids = self._select("-N", name)
        return [ids[key] for key in sorted(ids, key=int)]

    def _select(self, *words: str) -> dict[str, str]:
        command = ("qselect", "-u", self.user, *words)
        answer = self.call(*command)
        if answer.away:
            raise AwayError(answer.words)
        if answer.code:
            raise AwayError(f"`{' '.join(command)}` fails: {answer.words}", refused=True)
        return {
            number(line): line.strip() for line in answer.out.splitlines() if line[:1].isdigit()
        }
