"""Ids, file names and columns are foreign text: whatever they hold, no process sends a control
character of theirs.
"""

import io
import logging
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.table import Table
from rich.text import Text

from plm_embed.io import terminal as module
from plm_embed.io.terminal import printable, progress, terminal
from support.campaign_runs import snakemake, working_folder
from support.campaigns import gathered_campaign
from support.made_up_sequences import make_records

EVIL = "a\x1b]0;owned\x07\x9b2J\rb"
SHOWN = r"a\x1b]0;owned\x07\x9b2J\rb"
CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")


@given(st.text(st.characters()))
def test_only_line_ends_and_tabs_control_anything(text: str) -> None:
    found = printable(text)
    found.encode("utf-8")  # without an error
    assert not CONTROL.search(found)
    assert printable(found) == found
    if text.isprintable():
        assert found == text


def test_a_console_keeps_its_own_styles_alone() -> None:
    table = Table("worker")
    table.add_row(EVIL, style="bold red")
    console = terminal(force_terminal=True, width=80)
    with console.capture() as capture:
        console.print(table)
        console.print(Text(EVIL, style="bold"))
        console.print(EVIL, markup=False)
    styled = capture.get()
    plain = re.sub(r"\x1b\[[0-9;]*m", "", styled)
    assert "\x1b[1;31m" in styled and plain.count(r"a\x1b") == 3
    assert not CONTROL.search(plain)


def plm_embed(*arguments: str | Path) -> str:
    command = [sys.executable, "-m", "plm_embed", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, check=False)
    said = (done.stdout + done.stderr).decode()
    assert "Traceback" not in said, said
    assert not CONTROL.search(said), said
    return said


@pytest.mark.workflow
def test_errors_logs_and_answers_of_commands(tmp_path: Path) -> None:
    evil = tmp_path / f"{EVIL}.csv"
    evil.write_text(f"id,{EVIL}\n1,2\n", encoding="utf-8")
    said = plm_embed("deduplicate", evil, "--output", tmp_path / "out")
    first = said.splitlines()[0]
    assert first.startswith("# ") and " deduplicate " in first and SHOWN in first
    assert "no column 'sequence'" in said
    assert SHOWN in plm_embed(EVIL)
    fasta = tmp_path / f"{EVIL}.fasta"
    fasta.write_text(f">{EVIL[:-2]}\nMetLysThrAla\n", encoding="utf-8", newline="")
    assert "warning: " in plm_embed("deduplicate", fasta, "--output", tmp_path / "sequences")
    records = [record | {"id": EVIL} for record in make_records()]
    campaign = gathered_campaign(tmp_path / EVIL, records=records)
    assert SHOWN in plm_embed("summary", campaign.results)
    log = campaign.results / "logs" / campaign.fingerprint.model / "embed" / "0000.log"
    log.parent.mkdir(parents=True)
    log.write_text(f"plm-embed: error: {EVIL}\n", encoding="utf-8", newline="")
    campaign.master.unlink()
    (campaign.embedded / "0000.json").unlink()
    assert r"a\x1b" in plm_embed("watch", campaign.results, "--once")
    plm_embed("report", campaign.results)
    page = campaign.master.with_name("report.html").read_text(encoding="utf-8")
    assert SHOWN in page and not {"\x1b", "\x07", "\x9b"} & set(page)


@pytest.mark.workflow
def test_what_snakemake_says_for_us(tmp_path: Path) -> None:
    folder = working_folder(tmp_path)
    os.mkfifo(folder / EVIL)
    done = snakemake(folder, "--cores", "1", inputs=[EVIL], model=EVIL)
    assert done.returncode == 1 and "Traceback" not in done.stdout
    # a value is shown as Python writes it
    assert not CONTROL.search(done.stdout) and r"a\x1b]0;owned\x07" in done.stdout, done.stdout


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
