"""What the system says of paths that are of no use, in words."""

import errno
import os
from pathlib import Path

import pytest

from plm_embed.io.paths import unusable_path


def test_a_folder_that_cannot_be_written_to_is_named_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = tmp_path / "store" / "parts"
    monkeypatch.setattr(os, "access", lambda *_: False)
    said = f"{tmp_path}: cannot be written to; change its permissions"
    assert unusable_path(PermissionError(13, "Permission denied", str(wanted))).startswith(said)


def test_other_paths_are_named_with_what_the_system_says(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(OSError) as raised:
        (file / "x").mkdir()
    assert unusable_path(raised.value) == f"{file / 'x'}: Not a directory"
    unreadable = PermissionError(errno.EACCES, "Permission denied", str(file))
    assert unusable_path(unreadable) == f"{file}: Permission denied"
    renamed = FileExistsError(errno.EEXIST, "File exists", ".tmp-x", None, str(file))
    assert unusable_path(renamed) == f"{file}: File exists"
    assert unusable_path(PermissionError(errno.EPERM, "no")) == "[Errno 1] no"
    assert unusable_path(OSError(errno.EIO, "broken", "x")) == unusable_path(ValueError()) == ""
