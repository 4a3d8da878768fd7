"""What a run says while a step is at work, and after Ctrl-C."""

import time
from pathlib import Path

import pytest
from plm_embed.cli.campaign_progress import progress_told

from plm_embed.cli import campaign_call, campaign_progress
from plm_embed.cli.campaign_run import Command
from support.watched import MODEL, beat, campaign, written


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(campaign_progress, "IN_LOG", 0.02)


def told(results: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """The first line."""
    with progress_told(results):
        said, until = "", time.monotonic() + 20
        while not said and time.monotonic() < until:
            time.sleep(0.05)
            said = capsys.readouterr().err
    return said.partition("\n")[0]


def test_the_buckets_at_work_and_the_time_left_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = campaign(tmp_path, 4)
    written(model / "weights.json")
    beat(model, 1)
    said = told(tmp_path, capsys)
    assert said.startswith("embed 12.5 %: 0 of 4 buckets finished, 1 worker, 3 buckets queued")
    assert "50 tokens/s; about 70 s left at this speed, until" in said


def test_a_step_without_workers_is_told_by_its_log(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written(tmp_path / "logs" / MODEL / "weights.log", "# plm-embed weights\n12:00:00 half of it\n")
    said = told(tmp_path, capsys)
    assert said.startswith("weights is at work, last word") and said.endswith("12:00:00 half of it")


def test_nothing_is_said_of_what_is_idle_or_damaged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = tmp_path / "results"
    with progress_told(results):
        time.sleep(0.2)
        campaign(results, 2)
        time.sleep(0.2)
        (results / "sequences" / "summary.json").write_text("{")
        time.sleep(0.2)
    assert capsys.readouterr().err == ""


SNAKEMAKE = """#!/bin/sh
echo 'plm-embed: to follow this run'
echo 'Terminating processes on user request'
echo 'stopped  by you (Ctrl-C); stored: 32 of 158 sequences'
echo 'next     give the same command again: it goes on where it was'
"""


def test_what_snakemake_says_after_ctrl_c_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []

    def echo(text: str, **_: bool) -> None:
        if "to follow" in text:
            raise KeyboardInterrupt
        said.append(text)

    (tmp_path / "snakemake").write_text(SNAKEMAKE)
    (tmp_path / "snakemake").chmod(0o755)
    monkeypatch.setattr(campaign_call.sys, "executable", str(tmp_path / "snakemake"))
    monkeypatch.setattr(campaign_call.click, "echo", echo)
    with pytest.raises(KeyboardInterrupt):
        campaign_call._snakemake(Command(()))
    assert said == [
        "stopped  by you (Ctrl-C); stored: 32 of 158 sequences",
        "next     give the same command again: it goes on where it was",
    ]
