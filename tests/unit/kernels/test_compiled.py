"""C code that is compiled when it is needed, and kept."""

from pathlib import Path

import pytest

from plm_embed.kernels import compiled

NAME = "compiled_attention"
pytestmark = pytest.mark.skipif(compiled.compiler() is None, reason="no C compiler here")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "plm-embed" / "kernels"


def made(*definitions: str) -> object:
    return compiled.library.__wrapped__(NAME, *definitions).attend


def without_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "COMPILERS", ("no-such-compiler",))


def test_what_was_compiled_is_kept_for_each_kind(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert made("WIDTH=8")
    assert made("WIDTH=16")
    assert len(list(folder.iterdir())) == 2
    without_compiler(monkeypatch)
    assert made("WIDTH=8")
    with pytest.raises(RuntimeError, match=r"no C compiler \(no-such-compiler\)"):
        made("WIDTH=24")
    monkeypatch.setattr(compiled, "cpu_features", lambda: "another processor")
    with pytest.raises(RuntimeError, match="no C compiler"):
        made("WIDTH=8")


def test_a_damaged_library_is_made_again(
    folder: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert made("WIDTH=8")
    (kept,) = folder.iterdir()
    whole = kept.read_bytes()
    kept.unlink()  # it is in use: its bytes must not change
    kept.write_bytes(whole[:5000])
    assert made("WIDTH=8")
    assert kept.read_bytes() == whole
    assert f"{kept} is damaged" in caplog.text
    without_compiler(monkeypatch)
    assert made("WIDTH=8")


def test_code_that_the_compiler_refuses(folder: Path) -> None:
    with pytest.raises(RuntimeError, match=rf"cannot compile {NAME}.c: .*error: "):
        made("WIDTH=%")
    assert not folder.exists()


def test_a_cache_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert made("WIDTH=8")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
