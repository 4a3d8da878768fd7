"""C code that is compiled when it is needed, and kept."""

import shutil
from pathlib import Path
from typing import NoReturn

import pytest
import torch

from plm_embed.errors import PassingError
from plm_embed.kernels import attention, compiled, compiled_attention
from plm_embed.kernels.attention import Kernel

NAME = "compiled_attention"
CPU = torch.device("cpu")
pytestmark = pytest.mark.skipif(
    not (attention._in_c(torch.float32) and any(map(shutil.which, compiled.COMPILERS))),
    reason="no AVX-512 or no C compiler here",
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "plm-embed" / "kernels"


def made(*definitions: str) -> object:
    return compiled.load.__wrapped__(NAME, *definitions).attend


def script(path: Path, line: str) -> Path:
    path.write_text(f"#!/bin/sh\n{line}\n")
    path.chmod(0o755)
    return path


def without_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(compiled, "COMPILERS", ("no-such-compiler",))


def test_what_was_compiled_is_kept_for_each_kind(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert made("-DWIDTH=8")
    assert made("-DWIDTH=16")
    assert len(list(folder.iterdir())) == 2
    without_compiler(monkeypatch)
    assert made("-DWIDTH=8")
    with pytest.raises(RuntimeError, match=r"no C compiler \(no-such-compiler\)"):
        made("-DWIDTH=24")


@pytest.mark.parametrize("again", [True, False], ids=["the same bytes", "another compiler"])
def test_a_damaged_library_is_made_again(
    folder: Path, again: bool, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert made("-DWIDTH=8")
    (kept,) = folder.iterdir()
    whole = kept.read_bytes()
    kept.unlink()  # it is in use: its bytes must not change
    damaged = kept if again else kept.with_name(kept.name[:-19] + "0" * 16 + ".so")
    damaged.write_bytes(whole[:5000])
    assert made("-DWIDTH=8")
    assert [path.read_bytes() for path in folder.iterdir()] == [whole]
    assert f"{damaged} is damaged" in caplog.text
    without_compiler(monkeypatch)
    assert made("-DWIDTH=8")


def test_code_that_the_compiler_refuses(folder: Path) -> None:
    with pytest.raises(RuntimeError, match=rf"cannot compile {NAME}.c: .*error: "):
        made("-DWIDTH=%")
    assert not folder.exists()


@pytest.mark.usefixtures("folder")
def test_the_next_compiler_serves_when_one_cannot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = script(tmp_path / "old", "echo 'error: unknown option' >&2; exit 1")
    monkeypatch.setenv("CC", f"{old} -pipe")
    assert made("-DWIDTH=8")
    monkeypatch.setattr(compiled, "COMPILERS", ())
    with pytest.raises(RuntimeError, match=f"{old} cannot compile {NAME}.c: error: unknown option"):
        made("-DWIDTH=16")


@pytest.mark.usefixtures("folder")
def test_a_job_whose_compiler_hangs_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = script(tmp_path / "slow", "exec sleep 3600")
    monkeypatch.setenv("CC", str(slow))
    monkeypatch.setattr(compiled, "SECONDS_TO_COMPILE", 0.1)
    with pytest.raises(PassingError, match=f"{slow} could not compile"):
        made("-DWIDTH=8")
    monkeypatch.setattr(compiled_attention.compiled, "load", compiled.load.__wrapped__)
    qkv = torch.zeros((1, 3, 1, 8))
    with pytest.raises(PassingError):
        attention._problem(Kernel("", "in C", compiled_attention.attend), CPU, qkv.dtype, 1, 8)


@pytest.mark.parametrize("unusable", ["a file", "not to be read"])
def test_a_cache_that_cannot_be_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unusable: str
) -> None:
    if unusable == "a file":
        (tmp_path / "file").touch()
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    else:
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        monkeypatch.setattr(Path, "glob", refused)
        monkeypatch.setattr(compiled, "atomic_path", refused)
    assert made("-DWIDTH=8")
    assert not (tmp_path / "plm-embed").exists()


def refused(*_: object) -> NoReturn:
    raise PermissionError(13, "Permission denied")
