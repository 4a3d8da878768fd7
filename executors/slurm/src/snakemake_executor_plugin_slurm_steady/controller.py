"""Whether slurmctld answers, asked before each submission, and the last word to it after Ctrl-C."""

import subprocess
import threading
import time
from logging import Logger

from .states import SHORTEST_INTERVAL

PATIENCE = 600.0
"""Seconds that a submission waits for a controller that does not answer."""
SECONDS_FOR_AN_ANSWER = 60


class Controller:
    """The controller, as two threads that submit jobs see it."""

    def __init__(self, logger: Logger) -> None:
        self._logger = logger
        self._lock = threading.Lock()
        self._given_up = threading.Event()

    def wait(self) -> bool:
        """Return when it answers, or after PATIENCE: then sbatch says what is wrong.

        False once the run has been given up: nothing more may be submitted.
        """
        with self._lock:
            began = time.monotonic()
            while not self._given_up.is_set() and not _answers():
                if time.monotonic() - began > PATIENCE:
                    break
                self._logger.warning("SLURM does not answer (scontrol ping); waiting to submit.")
                self._given_up.wait(SHORTEST_INTERVAL)
        return not self._given_up.is_set()

    def give_up(self) -> None:
        """Let `wait` return, now and from now on."""
        self._given_up.set()


def cancel_named(name: str, all_clusters: bool) -> None:
    """Cancel what still waits or runs under a run's name; Snakemake does not know all of it."""
    clusters = ["--clusters=all"] if all_clusters else []
    _run("scancel", f"--name={name}", *clusters)


def _answers() -> bool:
    """True also without scontrol: there is nobody to ask, and sbatch says the rest."""
    said = _run("scontrol", "ping")
    return said is None or " is UP" in said


def _run(*command: str) -> str | None:
    """What a command printed, "" when it was silent for too long; None when it is not here."""
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=False,
            timeout=SECONDS_FOR_AN_ANSWER,
            start_new_session=True,  # a Ctrl-C is not meant for it
        )
    except subprocess.TimeoutExpired:
        return ""
    except OSError:
        return None
    return done.stdout
