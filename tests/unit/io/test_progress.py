import io
import logging

import pytest

from plm_embed.io import progress as module
from plm_embed.io.progress import progress


def test_a_log_gets_a_line_now_and_then(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stderr", io.StringIO())
    with caplog.at_level(logging.INFO), progress("embed", 100_000, "tokens") as meter:
        meter.advance(25_000)
        assert caplog.text == ""
        monkeypatch.setattr(module, "SECONDS_BETWEEN_LINES", 0.0)
        meter.advance(25_000)
    assert "embed: 50 % (50,000 of 100,000 tokens)" in caplog.text
    assert "s left" in caplog.text


def test_a_terminal_gets_a_bar(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    screen = io.StringIO()
    screen.isatty = lambda: True  # type: ignore[method-assign]
    monkeypatch.setattr("sys.stderr", screen)
    with progress("embed", 4, "tokens") as meter:
        meter.advance(4)
    assert "100%" in screen.getvalue()
    assert capfd.readouterr().err == ""
    before = screen.getvalue()
    with progress("embed", 4, "tokens", bar=False) as meter:
        meter.advance(4)
    assert screen.getvalue() == before
