"""Calls of qsub, qselect, qstat and qdel that never hang and never see a Ctrl-C."""

import getpass
import re
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass

from snakemake_interface_common.exceptions import WorkflowError

from .call import call

# Exit codes are PBS error numbers modulo 256: 104 try again, 160 a host name that does not resolve
# just now, 162 no connection, 183 and 185 protocol and too many connections; qstat says 255 where
# the others say 162.
_AWAY = frozenset({104, 160, 162, 183, 185, 255})
_NUMBER = re.compile(r"\d+")
# Torque and Grid Engine have commands of the same names, and other options.
_OTHER_SCHEDULER = re.compile(r"^\s*(version:|\w*GE \d).*", re.IGNORECASE | re.MULTILINE)
_REPEAT_AFTER = 1800.0


class AwayError(Exception):
    """No server answered. `hung`: it may do all the same what it was asked to."""

    def __init__(self, words: str, *, hung: bool = False) -> None:
        super().__init__(words)
        self.hung = hung


class Notices:
    """Messages to the user, each once, and again after half an hour."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self.say = say
        self._told: dict[str, float] = {}

    def __call__(self, words: str, key: str = "") -> None:
        """Tell something, unless a message of this key (default: of these words) is recent."""
        now, key = time.monotonic(), key or words
        if now - self._told.get(key, -_REPEAT_AFTER) >= _REPEAT_AFTER:
            self._told[key] = now
            self.say(words)


@dataclass(frozen=True)
class Answer:
    """Exit code and output of one command."""

    code: int
    out: str
    err: str

    @property
    def words(self) -> str:
        """Return the last line of stderr before a usage text."""
        lines = [*filter(None, map(str.strip, self.err.split("\nusage:")[0].splitlines()))]
        return lines[-1] if lines else f"exit code {self.code}, no message"


def number(job_id: str) -> str:
    """Return the part of an id that is the same everywhere: `12` of `12.pbs01`, `12.pbs` (cut by a
    table) and `12`.
    """
    match = _NUMBER.match(job_id)
    return match.group() if match else job_id


class Pbs:
    """The commands of one user, with one time-out (seconds) for all."""

    def __init__(self, timeout: float, notices: Notices) -> None:
        self.timeout = timeout
        self.notices = notices
        self.user = getpass.getuser()
        self._away: tuple[str, float] | None = None  # the command that met no server, and when

    def check(self) -> None:
        """Raise WorkflowError when a command is missing here, or belongs to another scheduler."""
        commands = ("qsub", "qselect", "qstat", "qdel")
        missing = [name for name in commands if shutil.which(name) is None]
        if missing:
            raise WorkflowError(
                f"PBS commands not found: {', '.join(missing)}. Start Snakemake on a login node of "
                "the cluster (or load the module that brings PBS)."
            )
        try:
            version = self.call("qstat", "--version")
            select = self.call(*self._qselect())
        except AwayError:
            return
        text = version.out + version.err
        if "pbs_version" not in text and (match := _OTHER_SCHEDULER.search(text)):
            raise WorkflowError(
                f"`qstat --version` says {match[0].strip()!r}. This executor needs PBS Pro or "
                "OpenPBS, not another scheduler such as Torque or Grid Engine: use --executor "
                "cluster-generic."
            )
        if select.code:
            raise WorkflowError(
                f"`{' '.join(self._qselect())}` fails: {select.words}. The PBS executor needs the "
                "commands of PBS Pro or OpenPBS; are these on PATH?"
            )

    def call(self, *words: str) -> Answer:
        """Run one command. Raises AwayError, and tells the user when the server goes and comes."""
        code, out, err = call(*words, timeout=self.timeout)
        if code is None or code in _AWAY:
            reason = f"{words[0]}: {err}" if code is None else Answer(code, out, err).words
            self._away = self._away or (words[0], time.monotonic())
            self.notices(
                f"PBS does not answer ({reason}). Jobs that run go on; asking again until it does.",
                key="away",
            )
            raise AwayError(reason, hung=code is None)
        if self._away and self._away[0] == words[0]:
            seconds = time.monotonic() - self._away[1]
            self.notices.say(f"PBS answers again, after {seconds:.0f} s.")
            self._away = None
        return Answer(code, out, err)

    def living(self, *words: str) -> list[str]:
        """Return the ids of the user's jobs that have not ended, oldest first, of those that
        qselect finds by these words. Raises AwayError.
        """
        answer = self.call(*self._qselect(*words))
        if answer.code:
            reason = f"`{' '.join(self._qselect(*words))}` fails: {answer.words}"
            self.notices(f"PBS does not say which jobs live: {reason}. Asking again.")
            raise AwayError(reason)
        ids = [line.strip() for line in answer.out.splitlines() if line[:1].isdigit()]
        return sorted(ids, key=lambda job_id: int(number(job_id)))

    def named(self, name: str) -> list[str]:
        """Return the ids of the user's living jobs of this name, oldest first. Raises AwayError."""
        return self.living("-N", name)

    def _qselect(self, *words: str) -> tuple[str, ...]:
        return "qselect", "-u", self.user, *words
