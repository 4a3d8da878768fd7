import errno
import fcntl
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import NoReturn

import pytest
import yaml

import plm_embed
from plm_embed.errors import unusable_path
from plm_embed.io.files import (
    atomic_path,
    exclusive,
    read_shipped,
    remove_abandoned,
    size,
    whole_files,
)


def test_a_file_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    final = tmp_path / "deep" / "file.txt"
    with atomic_path(final) as temporary:
        temporary.write_text("new")
        assert not final.exists()
    assert final.read_text() == "new"
    with pytest.raises(RuntimeError), atomic_path(final) as temporary:
        temporary.write_text("half")
        raise RuntimeError
    assert final.read_text() == "new"
    assert [path.name for path in final.parent.iterdir()] == ["file.txt"]


def test_a_place_where_no_folder_can_be_made() -> None:
    """As below a folder that an automounter fills: the system says that it is not there."""
    with pytest.raises(OSError) as raised, atomic_path(Path("/proc/nobody/file")):
        raise AssertionError
    said = "/proc/nobody: no folder can be made there; name another place"
    assert unusable_path(raised.value) == said


def test_a_killed_writer_leaves_the_old_file(tmp_path: Path) -> None:
    (tmp_path / "file.txt").write_text("old")
    code = """
import os, signal
from pathlib import Path
from plm_embed.io.files import atomic_path
with atomic_path(Path("file.txt")) as temporary:
    temporary.write_text("half")
    os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=False)
    assert done.returncode == -9
    assert (tmp_path / "file.txt").read_text() == "old"


def test_who_lists_a_folder_does_not_see_what_is_being_written_there(tmp_path: Path) -> None:
    for name in ("b.json", "a.json"):
        (tmp_path / name).touch()
    with atomic_path(tmp_path / "c.json") as temporary:
        temporary.write_text("half")
        assert [path.name for path in whole_files(tmp_path, "*.json")] == ["a.json", "b.json"]
    assert [path.name for path in whole_files(tmp_path, "*.json")] == ["a.json", "b.json", "c.json"]
    assert whole_files(tmp_path / "absent", "*.json") == []


def test_a_size_counts_all_files_of_a_folder(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "five").write_text("12345")
    (tmp_path / "three").write_text("123")
    (tmp_path / "gone").symlink_to("nowhere")
    assert (size(tmp_path), size(tmp_path / "three"), size(tmp_path / "absent")) == (8, 3, 0)


def test_one_process_at_a_time_makes_a_file(tmp_path: Path) -> None:
    """Also after one that was killed."""
    code = """
import os, signal
from pathlib import Path
from plm_embed.io.files import exclusive
for _ in range(200):
    with exclusive(Path("new/folder")):
        Path("mine").open("x").close()
        Path("mine").unlink()
with exclusive(Path("new/folder")):
    os.kill(os.getpid(), signal.SIGKILL)
"""
    processes = [subprocess.Popen([sys.executable, "-c", code], cwd=tmp_path) for _ in range(3)]
    assert [process.wait() for process in processes] == [-9, -9, -9]
    assert [path.name for path in (tmp_path / "new").iterdir()] == [".folder.lock"]


def test_a_lock_that_one_may_only_read_is_waited_for(tmp_path: Path) -> None:
    lock = tmp_path / ".folder.lock"
    lock.touch(0o444)
    with exclusive(tmp_path / "folder"), lock.open() as other, pytest.raises(BlockingIOError):
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)


@pytest.mark.parametrize("call", ["os.open", "fcntl.flock"])
def test_nobody_waits_where_no_lock_can_be_made(
    call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> NoReturn:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(call, refuse)
    with exclusive(tmp_path / "folder"), exclusive(tmp_path / "folder"):
        pass


def test_what_killed_processes_left_is_removed_after_a_day(tmp_path: Path) -> None:
    def left(name: str, hours: float, content: float = 0) -> Path:
        """A file, or a folder with content, that last changed so many hours ago."""
        path = tmp_path / name
        path.mkdir() if content else path.touch()
        for changed, age in ((path / "content", content), (path, hours)):
            if age:
                changed.touch()
                os.utime(changed, (0, time.time() - 3600 * age))
        return path

    left(f".tmp-{1:016x}-old", 25)
    left(f".tmp-{2:016x}-old folder", 25, 25)
    kept = {
        left(f".tmp-{3:016x}-live", 23),
        left(f".tmp-{4:016x}-live folder", 25, 1),
        left(".tmp-of-somebody", 25),
    }
    remove_abandoned(tmp_path, tmp_path, tmp_path / "absent")
    assert set(tmp_path.iterdir()) == kept


def test_shipped_files_say_the_same_to_libyaml_and_to_python() -> None:
    found = list(Path(plm_embed.__file__).parent.rglob("*.yaml"))
    assert found
    for path in found:
        assert read_shipped(path) == yaml.safe_load(path.read_text(encoding="utf-8"))
