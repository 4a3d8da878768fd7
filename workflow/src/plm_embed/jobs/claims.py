"""Claims: a file per bucket that says who computes it, so that two live jobs do not compute the
same for long.

Nothing depends on them for correctness (two jobs that compute the same keys do no harm); they only
save time. A file made with O_EXCL is one owner's on every filesystem, where flock is not (Lustre,
NFS).
"""

import json
import os
import secrets
import socket
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from plm_embed.sites.scheduler import job_id
from plm_embed.typed_json import from_json, to_plain

SECONDS_BETWEEN_BEATS = 15.0
STALE_AFTER_SECONDS = 120.0
"""Longer than network filesystems keep old attributes (60 s) plus a beat."""
_held: set[str] = set()
"""Tokens of the claims that this process holds."""


@dataclass(frozen=True)
class Owner:
    """Who holds a claim: what its file says."""

    host: str
    pid: str
    job: str
    """The scheduler's id, or ''."""
    start: str
    """Which start of the job: another one after it was requeued."""
    token: str
    """Of this claim alone."""


class Claim:
    """A claim that is held; its file's modification time is renewed until `release`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.owner = _myself()
        self._released = threading.Event()

    @classmethod
    def take(cls, path: Path) -> Self | None:
        """Claim `path`; None while another live owner has it. The claim of a dead owner is taken
        over.

        Raises OSError when the folder cannot be written to.
        """
        claim = cls(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        if not claim._create():
            if not is_stale(path):
                return None
            path.unlink(missing_ok=True)
            if not claim._create():
                return None
        _held.add(claim.owner.token)
        threading.Thread(target=claim._beat, daemon=True).start()
        return claim

    def release(self) -> None:
        """Give the claim back. A claim that was taken over meanwhile is left alone."""
        self._released.set()
        _held.discard(self.owner.token)
        if _owner(self.path) == self.owner:
            with suppress(OSError):  # left behind it only costs others a wait
                self.path.unlink()

    def _create(self) -> bool:
        try:
            descriptor = os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
        except FileExistsError:
            return False
        try:
            with os.fdopen(descriptor, "w") as handle:
                json.dump(to_plain(self.owner), handle)
        except OSError:  # a full disk: an empty claim would be waited for
            self.path.unlink()
            raise
        return True

    def _beat(self) -> None:
        while not self._released.wait(SECONDS_BETWEEN_BEATS):
            # after a claim was taken over or deleted the work goes on, since it does no harm
            with suppress(OSError):  # of a filesystem that does not answer now
                if (owner := _owner(self.path)) is not None and owner != self.owner:
                    return
                os.utime(self.path)


def is_stale(path: Path) -> bool:
    """Whether the owner of a claim is gone: its process on this host, its earlier start of this
    job, or its beats.

    Raises OSError when the folder cannot be written to.
    """
    owner = _owner(path)
    if owner is None:
        return not path.exists() or _age(path) > STALE_AFTER_SECONDS
    me = _myself()
    if owner.host == me.host and owner.pid == me.pid and owner.token not in _held:
        return True  # this process has released it, but could not remove it
    if owner.host == me.host and not (
        owner.pid.isdecimal() and len(owner.pid) < 10 and alive(int(owner.pid))
    ):
        return True
    if owner.job and owner.job == me.job and owner.start != me.start:
        return True  # this very job was requeued: its earlier start is over
    return _age(path) > STALE_AFTER_SECONDS


def _myself() -> Owner:
    return Owner(
        host=socket.gethostname(),
        pid=str(os.getpid()),
        job=job_id(),
        # Snakemake's plugin for SLURM hides the count of restarts from the step; its port is
        # another at each start
        start=os.environ.get("SLURM_RESTART_COUNT")
        or os.environ.get("SLURM_SRUN_COMM_PORT")
        or "0",
        token=secrets.token_hex(8),
    )


def _owner(path: Path) -> Owner | None:
    """What a claim says; None when it is gone or not yet written."""
    try:
        return from_json(Owner, path.read_bytes())
    except (OSError, ValueError):
        return None


def alive(pid: int) -> bool:
    """Whether a process of this host lives."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _age(path: Path) -> float:
    """Seconds since the last beat, by the clock of the filesystem itself: hosts' clocks may
    differ.
    """
    probe = path.with_name(f".tmp-{secrets.token_hex(8)}")
    probe.touch()
    try:
        return probe.stat().st_mtime - path.stat().st_mtime
    except FileNotFoundError:
        return 0.0  # released meanwhile
    finally:
        probe.unlink(missing_ok=True)
