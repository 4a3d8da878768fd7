"""A small disk of its own for results, which can be filled up and can fail, as host and nodes see
it.
"""

import contextlib
import functools
import subprocess
from pathlib import Path
from typing import Self

from cluster import Cluster
from daemons import NODES, ClusterError


class Disk:
    """An ext4 file system in a file, mounted on `folder` of this machine and of every virtual
    node.
    """

    def __init__(self, cluster: Cluster, folder: Path, megabytes: int = 48) -> None:
        self.folder = folder
        self._cluster = cluster
        self._image = folder.with_name(f"{folder.name}.img")
        self._ballast = folder / "ballast"
        # --pid: umount looks up mounts in /proc/self, and each node has a /proc of its own
        self._there = [(), *((*cluster.inside(node), "--pid") for node in NODES)]
        folder.mkdir(parents=True)
        with self._image.open("wb") as image:
            image.truncate(megabytes << 20)
        _run("mkfs.ext4", "-q", "-F", "-m", "0", str(self._image))
        self._device = _run("losetup", "--find", "--show", str(self._image)).strip()
        self._mount()

    def fill(self) -> None:
        """Leave not one free byte."""
        with self._ballast.open("wb") as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(1 << 16))
                file.flush()

    def free(self) -> None:
        self._ballast.unlink(missing_ok=True)

    def fail(self) -> None:
        """Make it read-only at once, whoever is writing, as the kernel does after an error of the
        device.
        """
        _run("mount", "-o", "remount,abort", str(self.folder))

    def repair(self) -> None:
        """Unmount, check and mount again; all that uses it must have ended."""
        self._unmount()
        # 1: errors corrected
        subprocess.run(["fsck.ext4", "-y", self._device], check=False, capture_output=True)
        self._mount()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._unmount()
        _run("losetup", "--detach", self._device)
        self._image.unlink()

    def _mount(self) -> None:
        for enter in self._there:
            _run(*enter, "mount", "-t", "ext4", self._device, str(self.folder))
        with contextlib.suppress(FileNotFoundError):  # fsck makes it again, if it finds anything
            (self.folder / "lost+found").rmdir()

    def _unmount(self) -> None:
        with contextlib.suppress(ClusterError, StopIteration):  # no controller runs
            # one that was started again has a mount of its own
            inside = (*self._cluster.inside("slurmctld"), "--pid")
            _succeeds([*inside, "umount", str(self.folder)])
        for enter in reversed(self._there):
            command = [*enter, "umount", str(self.folder)]
            unmounted = functools.partial(_succeeds, command)
            self._cluster.wait_for(f"{self.folder} to be unmounted", unmounted)


def _succeeds(command: list[str]) -> bool:
    return subprocess.run(command, check=False, capture_output=True).returncode == 0


def _run(*command: str) -> str:
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode != 0:
        raise OSError(f"{' '.join(command)}: exit status {done.returncode}: {done.stderr.strip()}")
    return done.stdout
