"""The watch: what it says of a campaign at work, and of dead workers."""

import os
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from plm_embed.cli.main import group
from plm_embed.errors import PlmEmbedError
from plm_embed.io.sealed_json import write_sealed
from plm_embed.jobs.submission import Submission
from plm_embed.reporting.screen.watch import Watch
from plm_embed.wording import duration
from support.watched import MODEL, ago, beat, campaign, finish, look, prove, screen, shown, written


def test_the_time_left_counts_what_is_queued(tmp_path: Path) -> None:
    model = campaign(tmp_path, 8)
    finish(model, 0)
    beat(model, 1)
    beat(model, 2, tokens=250)
    state = look(tmp_path)
    assert (state.done, len(state.workers), state.queued) == (1, 2, 5)
    assert state.fraction == pytest.approx((1000 + 500 + 250) / 8000)
    assert state.eta == pytest.approx((5000 + 500 + 750) / 100)
    assert not state.finished


def test_nothing_runs_yet(tmp_path: Path) -> None:
    assert "There is no such folder yet" in shown(tmp_path / "later")
    assert Watch(tmp_path).look().models == () and "Nothing has begun" in shown(tmp_path)
    written(campaign(tmp_path, 2) / "weights.json")
    assert look(tmp_path).eta is None and "no worker is at work" in shown(tmp_path)


def test_a_campaign_is_finished_when_every_step_is(tmp_path: Path) -> None:
    model = campaign(tmp_path, 2)
    written(model / "weights.json", at=-100)
    finish(model, 0)
    (model / "submissions").mkdir()
    os.utime(model / "submissions", (time.time() - 90, time.time() - 90))
    assert "embed 50.0 % waits" in shown(tmp_path)
    finish(model, 1)
    logs = tmp_path / "logs" / MODEL
    for name, file, said in (
        ("gather", "gathered.json", "12:00:00 gathered 2 vectors"),
        ("validate", "checksums.sha256", ""),
        ("report", "report.html", ""),
    ):
        assert f"{name} has not begun" in shown(tmp_path)
        written(logs / f"{name}.log", f"# plm-embed {name}\n{said}\n", at=-30)
        text = shown(tmp_path)
        assert f"{name} is at work, last word 30 s ago{': ' * bool(said)}{said}\n" in text
        assert "finished:" not in text and not look(tmp_path).finished
        written(model / file, at=-30)
    assert look(tmp_path).finished and "finished: every step is done" in shown(tmp_path)
    os.utime(model / "submissions", (time.time() - 20, time.time() - 20))  # more is embedded since
    assert "gather has not begun" in shown(tmp_path)


def test_several_models_stand_side_by_side(tmp_path: Path) -> None:
    campaign(tmp_path, 2)
    other = tmp_path / "prot_bert"
    (other / "embedded").mkdir(parents=True)
    finish(other, 0)
    (tmp_path / "esmc_300m").mkdir()
    (tmp_path / "esmc_300m" / "weights.json").touch()  # its turn comes later
    states = Watch(tmp_path).look().models
    assert [state.folder.name for state in states] == [MODEL, "esmc_300m", "prot_bert"]
    beat(other, 1)
    head, *rows = shown(tmp_path).splitlines()[1:5]
    assert head.split()[:4] == ["model", "step", "embedded", "buckets"]
    assert [row.split()[:4] for row in rows] == [
        [MODEL, "weights", "waits", "0.0"],
        ["esmc_300m", "embed", "waits", "0.0"],
        ["prot_bert", "embed", "75.0", "%"],
    ]
    for width in (60, 80, 120, 200):
        lines = screen(tmp_path, width)
        assert all(len(line) <= width for line in lines)
        rows = [line.split()[0] for line in lines if "embed" in line or "weights" in line]
        assert rows == ["model", MODEL, "esmc_300m", "prot_bert"]


def test_a_model_of_an_earlier_campaign_is_left_out(tmp_path: Path) -> None:
    """Its buckets are none of these, and nobody will ever finish them."""
    earlier = tmp_path / "esm2_t6_8M_UR50D"
    (earlier / "embedded").mkdir(parents=True)
    (earlier / "checksums.sha256").touch()
    os.utime(earlier / "checksums.sha256", (1, 1))
    finish(campaign(tmp_path, 1), 0)
    assert look(tmp_path).folder.name == MODEL
    written(tmp_path / MODEL / "weights.json")
    prove(tmp_path / MODEL)
    assert look(tmp_path).finished


def test_stalled_workers_stand_out(tmp_path: Path) -> None:
    model = campaign(tmp_path, 8)
    beat(model, 1)
    beat(model, 2, updated=300)  # killed
    beat(model, 3, progressed=3000)  # its GPU hangs
    beat(model, 4, updated=300)
    finish(model, 4)  # by somebody else since
    beat(model, 5, updated=30, started=ago(900))
    beat(model, 6, bucket="0005")  # its successor, after a kill that is not yet silence
    beat(model, 7)
    finish(model, 7)  # and published just now
    state = look(tmp_path)
    assert [(worker.beat.pid, worker.trouble) for worker in state.workers] == [
        *((2, "silent"), (3, "stuck"), (1, ""), (6, "")),
    ]
    assert state.tokens_per_second == 100
    text = shown(tmp_path)
    assert "node1 GPU 1" in text and "A100" in text and "12 min" in text
    assert "2 stalled" in text and "5 min ago" in text and "SILENT" in text and "STUCK" in text


def test_records_of_earlier_buckets_do_not_count(tmp_path: Path) -> None:
    model = campaign(tmp_path, 2)
    finish(model, 0)
    finish(model, 1)
    finish(model, 7)
    for name in ("0000", "0001"):  # cut anew since
        os.utime(
            tmp_path / "sequences" / "buckets" / f"{name}.parquet",
            (time.time() + 60, time.time() + 60),
        )
    assert look(tmp_path).done == 0
    write_sealed(model / "submissions" / "0000.json", Submission(buckets=("0000",), workers=()))
    assert look(tmp_path).done == 1


def test_a_heartbeat_that_is_being_replaced_is_left_out(tmp_path: Path) -> None:
    model = campaign(tmp_path, 4)
    beat(model, 1).write_text('{"host": "no')
    (model / "workers" / ".tmp-node1-2.json").write_text("{}")
    beat(model, 3)
    assert len(look(tmp_path).workers) == 1


def test_one_look_on_the_command_line(tmp_path: Path) -> None:
    model = campaign(tmp_path, 4)
    for bucket in range(3):
        beat(model, bucket)
    text = CliRunner().invoke(group, ["watch", str(tmp_path), "--once"]).output
    assert "0 of 4 buckets finished, 3 workers, 1 bucket queued" in text and "\x1b" not in text
    for bucket in range(4):
        beat(model, bucket)
    assert "and 1 worker more " in screen(tmp_path, 140, height=9)[-1]


@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_every_line_fits_the_terminal(tmp_path: Path, width: int) -> None:
    model = campaign(tmp_path, 8)
    written(model / "weights.json")
    finish(model, 0)
    beat(model, 1)
    beat(model, 2, updated=300, tokens_total=None)
    written(tmp_path / "logs" / MODEL / "embed" / "0003.log", "plm-embed: error: no space\n")
    lines = screen(tmp_path, width)
    assert all(len(line) <= width for line in lines) and len(lines) < 24
    text = " ".join(" ".join(lines).split())
    assert "✓weights ✓sequences ✗embed 18.7 % ·gather ·validate ·report" in text
    assert "1 of 8 buckets finished, 2 workers, 6 buckets queued, 50 tokens/s, 1 stalled" in text
    assert ", 1 failed; about 2 min left at this speed" in text and "FAILED" in text
    (row,) = [line for line in lines if "SILENT" in line]
    assert row.split()[:3] == ["node1", "GPU", "2"] and "loading" in row and "5 min ago" in row
    (title,) = [line for line in lines if line.startswith("worker")]
    assert ("memory" in title) == (width >= 120) and "…" not in title + row


def test_a_file_is_no_results_folder(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(PlmEmbedError, match="is no folder"):
        Watch(tmp_path / "file")


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(35, "35 s"), (720, "12 min"), (12_000, "3 h 20 min"), (190_800, "2 d 5 h")],
)
def test_durations_in_words(seconds: float, words: str) -> None:
    assert duration(seconds) == words
