"""C code that is compiled when it is needed, and kept."""

import hashlib
import re
import shutil
from pathlib import Path

import pytest

from plm_embed.errors import PassingError
from plm_embed.io import compiled

pytestmark = pytest.mark.skipif(
    not any(map(shutil.which, compiled.COMPILERS)), reason="no C compiler here"
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "plm-embed" / "kernels"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "number.c"
    path.write_text("int number(void) { return NUMBER; }")
    return path


def made(source: Path, number: str) -> int:
    found: int = compiled.load.__wrapped__(source, f"-DNUMBER={number}").number()
    return found


def script(path: Path, line: str) -> Path:
    path.write_text(f"#!/bin/sh\n{line}\n")
    path.chmod(0o755)
    return path


def without_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(compiled, "COMPILERS", ("no-such-compiler",))


def test_what_was_compiled_is_kept_for_each_kind(
    folder: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert [made(source, number) for number in "12"] == [1, 2]
    assert len(list(folder.iterdir())) == 2
    without_compiler(monkeypatch)
    assert made(source, "1") == 1
    with pytest.raises(RuntimeError, match=r"no C compiler \(no-such-compiler\)"):
        made(source, "3")
    source.write_text("int number(void) { return NUMBER + 1; }")
    with pytest.raises(RuntimeError, match=r"no C compiler"):
        made(source, "1")


@pytest.mark.parametrize("again", [True, False], ids=["the same bytes", "another compiler"])
def test_a_damaged_library_is_made_again(
    folder: Path, source: Path, again: bool, caplog: pytest.LogCaptureFixture
) -> None:
    assert made(source, "8") == 8
    (kept,) = folder.iterdir()
    whole = kept.read_bytes()
    kept.unlink()  # it is in use: its bytes must not change
    damaged = kept if again else kept.with_name(kept.name[:-19] + "0" * 16 + ".so")
    damaged.write_bytes(whole[:5000])
    assert made(source, "8") == 8
    assert [path.read_bytes() for path in folder.iterdir()] == [whole]
    assert f"{damaged} is damaged" in caplog.text


def test_a_library_that_cannot_be_loaded_hides_no_other(
    folder: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file of another kind of machine, say, that looked alike."""
    assert made(source, "8") == 8
    (kept,) = folder.iterdir()
    for text in (b"%d" % number for number in range(20)):  # of which some come before it
        digest = hashlib.sha256(text).hexdigest()[:16]
        kept.with_name(f"{kept.name[:-19]}{digest}.so").write_bytes(text)
    without_compiler(monkeypatch)
    assert made(source, "8") == 8


def test_compilers_that_cannot_compile(
    folder: Path, tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(RuntimeError, match=r"cannot compile number.c: .*error: "):
        made(source, "%")
    assert not folder.exists()
    old = script(tmp_path / "old", "echo 'error: unknown option' >&2; exit 1")
    monkeypatch.setenv("CC", f"{old} -pipe")
    assert made(source, "8") == 8  # by the next one
    monkeypatch.setattr(compiled, "COMPILERS", ())
    why = f"{old} cannot compile number.c: error: unknown option"
    with pytest.raises(RuntimeError, match=re.escape(why)):
        made(source, "16")
    slow = script(tmp_path / "slow", "exec sleep 3600")
    monkeypatch.setenv("CC", str(slow))
    monkeypatch.setattr(compiled, "SECONDS_TO_COMPILE", 0.1)
    with pytest.raises(PassingError, match=f"{slow} could not compile"):
        made(source, "16")


def test_a_cache_that_cannot_be_used(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert made(source, "8") == 8
