"""The GPUs of this node that a job may use and takes, without touching CUDA."""

import fcntl
import logging
import os
import re
import time
from collections.abc import Sequence
from contextlib import suppress
from itertools import takewhile
from pathlib import Path

from plm_embed.errors import PlmEmbedError
from plm_embed.inference.settings import Settings
from plm_embed.kernels.devices import nvidia_gpus

log = logging.getLogger(__name__)
LOCKS = Path("/tmp")
"""Folder of the locks: one for all users of a machine, who share its GPUs."""
SECONDS_BETWEEN_LOOKS = 1.0
"""Pause between two looks at GPUs that are taken: short beside a job."""


def visible_gpus() -> list[str]:
    """Return what CUDA_VISIBLE_DEVICES may be set to for one worker each."""
    if "CUDA_VISIBLE_DEVICES" not in os.environ:
        return [gpu.id for gpu in nvidia_gpus()]
    names = map(str.strip, os.environ["CUDA_VISIBLE_DEVICES"].split(","))
    # CUDA too stops at what names none: -1, or SLURM's NoDevFiles
    return list(takewhile(re.compile(r"\d+$|GPU-|MIG-").match, names))


def take_gpus(count: int) -> None:
    """Take `count` GPUs for as long as this process lives: wait until so many are free, and set
    CUDA_VISIBLE_DEVICES to them.

    Nothing changes where a scheduler, or the user, gave the job no more than it takes, nor where
    there are fewer. Other jobs of this program are kept off by a lock for each GPU, which the
    kernel releases when the process ends, however it ends.
    """
    names = visible_gpus()
    if len(names) < count or (len(names) == count and "CUDA_VISIBLE_DEVICES" in os.environ):
        return
    uuids = {gpu.id: gpu.uuid for gpu in nvidia_gpus()}
    waiting = False
    while True:
        locks: dict[str, int] = {}
        for name in names:
            lock = _lock(uuids.get(name, name)) if len(locks) < count else None
            if lock is not None:
                locks[name] = lock
        if len(locks) == count:
            os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(locks)
            return
        for lock in locks.values():
            os.close(lock)
        if not waiting:
            log.info("waiting for %d of %d GPUs: other jobs have taken them", count, len(names))
        waiting = True
        time.sleep(SECONDS_BETWEEN_LOOKS)


def assign(count: int, settings: Settings) -> Sequence[str | None]:
    """Return CUDA_VISIBLE_DEVICES for each of so many workers; None leaves it as it is."""
    if count == 1 or settings.device == "cpu":
        return [None] * count
    gpus = visible_gpus()
    if len(gpus) < count and (not gpus or "CUDA_VISIBLE_DEVICES" in os.environ):
        raise PlmEmbedError(
            f"{count} workers for {len(gpus)} visible GPUs ({', '.join(gpus) or 'none'})\n"
            "request as many GPUs as the rule's resource `gpu` says"
        )
    if len(gpus) < count:
        log.warning("this node shows only %d of %d GPUs: going on with those", len(gpus), count)
    return gpus[:count]


def _lock(name: str) -> int | None:
    """Lock a GPU; return the open file that does, None where another process has it."""
    path = LOCKS / f"plm-embed-{name.replace('/', '-')}.lock"
    options = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
    # created or opened, never both: the kernel refuses that to other users in a folder like /tmp
    with suppress(FileExistsError):
        new = os.open(path, options | os.O_CREAT | os.O_EXCL, 0o644)
        os.fchmod(new, 0o644)  # whatever the umask: others must be able to open it
        os.close(new)
    file = os.open(path, options)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(file)
        return None
    return file
