import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from plm_embed.errors import PlmEmbedError, no_space
from plm_embed.jobs import scratch
from plm_embed.jobs.scratch import filesystem, scratch_folder, unfit

MOUNTS = """\
/dev/sda1 / ext4 rw 0 0
tmpfs /dev/shm tmpfs rw 0 0
10.0.0.1@tcp:/eagle /lus/eagle lustre rw,flock 0 0
home:/vol /home nfs4 rw 0 0
/dev/nvme0n1 /local/scratch xfs rw 0 0
/dev/sdb /with\\040blank btrfs rw 0 0
"""


def test_filesystem_is_that_of_the_longest_mount_point(tmp_path: Path) -> None:
    mounts = tmp_path / "mounts"
    assert filesystem("/tmp", mounts) == ""
    mounts.write_text(MOUNTS)
    for path, kind in (
        ("/tmp/x", "ext4"),
        ("/dev/shm", "tmpfs"),
        ("/dev/shmother", "ext4"),
        ("/lus/eagle/project/me", "lustre"),
        ("/home/me", "nfs4"),
        ("/local/scratch", "xfs"),
        ("/with blank/x", "btrfs"),
    ):
        assert filesystem(path, mounts) == kind


def test_unfit_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "variable in it is not set" in unfit("$SLURM_TMPDIR", 0)
    assert "absolute" in unfit("tmp/x", 0)
    assert "no such folder" in unfit(str(tmp_path / "absent"), 0)
    assert "too small" in unfit("/tmp", 1 << 60)
    long = tmp_path / ("x" * 60)
    long.mkdir()
    assert "too long" in unfit(str(long), 0)
    monkeypatch.setattr(scratch, "filesystem", lambda _: "lustre")
    assert "network filesystem (lustre)" in unfit("/tmp", 0)
    monkeypatch.setattr(scratch, "filesystem", lambda _: "tmpfs")
    assert "in memory" in unfit("/tmp", 0)
    assert unfit("/tmp", 0, memory_allowed=True) == ""
    if os.getuid():
        assert "not writable" in unfit("/etc", 0)
    assert unfit("/proc/self", 0)  # root may write anywhere but into the kernel's own filesystems


def test_auto_takes_the_first_fit_candidate(
    short_tmp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node, second = short_tmp / "node", short_tmp / "second"
    node.mkdir()
    second.mkdir()
    monkeypatch.setattr(
        scratch, "CANDIDATES", ("$UNSET_FOLDER", "relative", "$NODE_FOLDER", str(second))
    )
    monkeypatch.setenv("NODE_FOLDER", str(node))
    with scratch_folder("auto", 10, short_tmp / "fallback") as folder:
        assert folder.parent == node
        (folder / "part.h5").write_text("x")
    assert list(node.iterdir()) == []
    assert not (short_tmp / "$UNSET_FOLDER").exists()


def test_nothing_fit_falls_back_beside_the_store(
    short_tmp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scratch, "CANDIDATES", ("$UNSET_FOLDER",))
    for wanted in ("auto", ""):
        with scratch_folder(wanted, 10, short_tmp / "fallback") as folder:
            assert folder.parent == short_tmp / "fallback"


def test_a_named_folder_must_be_fit(tmp_path: Path) -> None:
    for setting, words in (
        (str(tmp_path / "absent"), "no such folder"),
        ("$UNSET_FOLDER", "variable in it is not set"),
    ):
        with (
            pytest.raises(PlmEmbedError, match=words),
            scratch_folder(setting, 0, tmp_path),
        ):
            pass


def test_what_killed_jobs_left_is_removed_and_what_lives_is_not(
    short_tmp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scratch, "SECONDS_TO_LOCK", 0)
    code = f"""
import os, signal, sys
from pathlib import Path
from plm_embed.jobs.scratch import scratch_folder
with scratch_folder({str(short_tmp)!r}, 0, Path("/")) as folder:
    print(folder, flush=True)
    sys.stdin.read(1)
    os.kill(os.getpid(), signal.SIGKILL)
"""
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin and process.stdout
        theirs = Path(process.stdout.readline().strip())
        with scratch_folder(str(short_tmp), 0, short_tmp):
            assert theirs.exists()
        process.stdin.write("x")
        process.stdin.flush()
        process.wait()
    assert theirs.exists()
    with scratch_folder(str(short_tmp), 0, short_tmp):
        assert not theirs.exists()


def test_without_locks_nobodys_folder_is_removed(
    short_tmp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")  # what some network filesystems answer

    monkeypatch.setattr(scratch, "SECONDS_TO_LOCK", 0)
    monkeypatch.setattr(scratch.fcntl, "flock", refuse)
    with scratch_folder(str(short_tmp), 0, short_tmp) as mine:
        with scratch_folder(str(short_tmp), 0, short_tmp) as other:
            assert mine.exists() and other.exists() and mine != other
        assert mine.exists()
    assert list(short_tmp.iterdir()) == []


def test_a_full_scratch_is_named(tmp_path: Path) -> None:
    """A write that fails does not say where; the store's own errors keep their path."""
    for path in (None, "/store/part.h5"):
        with (
            pytest.raises(OSError, match="No space") as raised,
            scratch_folder("", 0, tmp_path / "scratch") as folder,
        ):
            raise OSError(errno.ENOSPC, "No space left on device", path)
        assert f"({path or folder})" in no_space(raised.value)
