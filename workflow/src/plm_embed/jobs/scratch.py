"""Node-local scratch: where a job may write quickly, and what it leaves there (nothing)."""

import fcntl
import hashlib
import logging
import os
import shutil
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from plm_embed.errors import ConfigError, NodeError

log = logging.getLogger(__name__)
CANDIDATES = (
    *("$SLURM_TMPDIR", "$PBS_JOBFS", "$SLURM_SCRATCH", "$LOCAL_SCRATCH", "/local/scratch"),
    *("$TMPDIR", "/tmp"),
)
"""Tried in this order by `auto`. On Polaris `$TMPDIR` is not the NVMe, `/local/scratch` is."""
NETWORK = {
    *("lustre", "nfs", "nfs4", "gpfs", "beegfs", "cifs", "smb3", "ceph", "afs", "panfs"),
    *("fuse.sshfs", "dvs"),
}
MEMORY = {"tmpfs", "ramfs"}
PREFIX = f"plm.{hashlib.sha256(socket.gethostname().encode()).hexdigest()[:8]}."
"""It tells hosts apart, by a hash of their whole name: on a shared filesystem the locks of another
host cannot be seen.
"""
LONGEST = 60 - len(PREFIX) - 9
"""Longest folder for one of ours: Unix sockets of libraries below it have paths of 107 bytes."""
SECONDS_TO_LOCK = 60
"""A younger folder may belong to a job that is just about to lock it."""


@contextmanager
def scratch_folder(setting: str, needed: int, fallback: Path) -> Iterator[Path]:
    """Yield an empty private folder with room for `needed` bytes; remove it at the end.

    `auto` tries CANDIDATES; a path must be fit, or an error says why it is not: ConfigError for one
    that is not absolute or too long, else NodeError; "" takes `fallback`, a folder beside the
    store, as `auto` does when nothing else is fit. Folders that killed jobs left behind are
    removed.
    """
    base = Path(os.path.expandvars(setting) or fallback)
    if setting == "auto":
        folders = map(os.path.expandvars, CANDIDATES)
        base = next((Path(path) for path in folders if not unfit(path, needed)), fallback)
    elif setting and (reason := unfit(str(base), needed, memory_allowed=True)):
        remedy = "name another folder, or `auto`, or `''` to write beside the store"
        if not base.is_absolute() or reason.startswith("too long"):
            raise ConfigError(f"scratch: {setting}: {reason}\n{remedy}", key="scratch")
        words = f"{socket.gethostname()}: scratch: {base}: {reason}"
        raise NodeError(words, path=base, remedy=remedy)
    if base == fallback:
        base.mkdir(parents=True, exist_ok=True)
    _remove_abandoned(base)
    with TemporaryDirectory(prefix=PREFIX, dir=base, ignore_cleanup_errors=True) as name:
        folder = Path(name)
        log.info("scratch: %s", folder)
        try:
            with (folder / ".lock").open("w") as handle:
                # held as long as this process lives: the sign that the folder is in use. Some
                # network filesystems know no locks; then nobody cleans up there either
                with suppress(OSError):
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                yield folder
        except OSError as error:
            error.filename = error.filename or name  # a write that fails does not say where
            raise


def unfit(path: str, needed: int, *, memory_allowed: bool = False) -> str:
    """Return why `path` cannot be scratch for `needed` bytes, in words; '' when it can."""
    if not path.startswith("/"):
        return "not an absolute path, or an environment variable in it is not set"
    if not Path(path).is_dir():
        return "no such folder"
    if not os.access(path, os.W_OK | os.X_OK):
        return "not writable"
    kind = filesystem(path)
    if kind in NETWORK:
        return f"a network filesystem ({kind}), not local to the node"
    if kind in MEMORY and not memory_allowed:
        return f"in memory ({kind})"
    free = shutil.disk_usage(path).free
    if free < needed * 1.2:
        return f"too small: {free / 1e9:.1f} GB free, {needed * 1.2 / 1e9:.1f} GB needed"
    if len(path) > LONGEST:
        return f"too long a path ({len(path)} characters, {LONGEST} at most)"
    return ""


def filesystem(path: str, mounts: Path = Path("/proc/mounts")) -> str:
    """Return the type of the filesystem that holds `path`, as the kernel names it ("ext4",
    "lustre"); '' if unknown.
    """
    kinds = {}
    with suppress(OSError):
        for line in mounts.read_text(encoding="utf-8", errors="replace").splitlines():
            _, point, kind, *_ = line.split()
            kinds[Path(point.replace("\\040", " "))] = kind  # of two at one point the last counts
    real = Path(os.path.realpath(path))
    return next((kinds[folder] for folder in (real, *real.parents) if folder in kinds), "")


def _remove_abandoned(base: Path) -> None:
    """Remove what killed jobs of this user left: the kernel drops a lock when its process ends."""
    for lock in base.glob(f"{PREFIX}*/.lock"):
        with suppress(OSError):
            status = lock.stat()
            if status.st_uid == os.getuid() and time.time() - status.st_mtime >= SECONDS_TO_LOCK:
                with lock.open("r+") as handle:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(lock.parent, ignore_errors=True)
