"""The watch: what it says of a campaign at work, of dead workers and failures; and what it
costs.
"""

import json
import os
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from rich.console import Console

from plm_embed.cli.main import group
from plm_embed.errors import PlmEmbedError
from plm_embed.io.sealed_json import write_sealed
from plm_embed.jobs.submission import Submission
from plm_embed.reporting.watch import State, Watch
from plm_embed.reporting.watch_view import view
from plm_embed.sequences.summary import write_summary
from plm_embed.wording import duration
from support.campaigns import counted

MODEL = "esm2_t33_650M_UR50D"


def ago(seconds: float) -> str:
    return (datetime.now(UTC) - timedelta(seconds=seconds)).isoformat(timespec="seconds")


def campaign(results: Path, buckets: int) -> Path:
    """Buckets of 1,000 bytes and 1,000 residues each; returns the model's folder."""
    folder = results / "sequences" / "buckets"
    folder.mkdir(parents=True)
    for number in range(buckets):
        (folder / f"{number:04d}.parquet").write_bytes(b"x" * 1000)
    write_summary(results / "sequences", counted(buckets=buckets, residues=1000 * buckets))
    (results / MODEL / "embedded").mkdir(parents=True)
    return results / MODEL


def finish(model: Path, bucket: int) -> None:
    (model / "embedded" / f"{bucket:04d}.json").write_text("{}")


def beat(
    model: Path, number: int, *, updated: float = 1.0, progressed: float = 1.0, **fields: Any
) -> Path:
    note = {"host": "node1", "pid": number, "job": "17", "device": "NVIDIA A100", "gpu": number % 4}
    note |= {
        "bucket": f"{number:04d}",
        "tokens": 500,
        "tokens_total": 1000,
        "tokens_per_second": 50.0,
    }
    note |= {"sequences": 12, "memory_bytes": 3_000_000_000, "utilization": 97, "started": ago(100)}
    note |= {"eta_seconds": 700.0, "updated": ago(updated), "progressed": ago(progressed)} | fields
    path = model / "workers" / f"node1-{number}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(note))
    return path


def look(results: Path) -> State:
    (state,) = Watch(results).look()
    return state


def shown(results: Path, rows: int | None = None) -> str:
    console = Console(width=140, force_terminal=False)
    with console.capture() as capture:
        console.print(view(Watch(results).look(), rows=rows, plain=True))
    return capture.get()


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


def test_nothing_runs_yet_or_everything_is_done(tmp_path: Path) -> None:
    assert Watch(tmp_path).look() == []
    assert "in the queue" in shown(tmp_path)
    model = campaign(tmp_path, 2)
    assert look(tmp_path).eta is None and "no worker is at work" in shown(tmp_path)
    finish(model, 0)
    finish(model, 1)
    assert not look(tmp_path).finished and "100.0 %  embedded; master and" in shown(tmp_path)
    (model / "checksums.sha256").touch()
    assert look(tmp_path).finished and "100.0 %  finished" in shown(tmp_path)
    later = time.time() + 60
    (model / "submissions").mkdir()
    os.utime(model / "submissions", (later, later))  # more is embedded since
    assert not look(tmp_path).finished


def test_several_models_stand_side_by_side(tmp_path: Path) -> None:
    campaign(tmp_path, 2)
    other = tmp_path / "prot_bert"
    (other / "embedded").mkdir(parents=True)
    finish(other, 0)
    (tmp_path / "esmc_300m").mkdir()
    (tmp_path / "esmc_300m" / "weights.json").touch()  # its turn comes later
    states = Watch(tmp_path).look()
    assert [state.folder.name for state in states] == [MODEL, "esmc_300m", "prot_bert"]
    head, *rows = shown(tmp_path).splitlines()[:4]
    assert head.split()[:3] == ["model", "done", "buckets"]
    assert [row.split()[:5] for row in rows] == [
        [MODEL, "0.0", "%", "0", "of"],
        ["esmc_300m", "0.0", "%", "0", "of"],
        ["prot_bert", "50.0", "%", "1", "of"],
    ]


def test_a_model_of_an_earlier_campaign_is_left_out(tmp_path: Path) -> None:
    """Its buckets are none of these, and nobody will ever finish them."""
    earlier = tmp_path / "esm2_t6_8M_UR50D"
    (earlier / "embedded").mkdir(parents=True)
    (earlier / "checksums.sha256").touch()
    os.utime(earlier / "checksums.sha256", (1, 1))
    finish(campaign(tmp_path, 1), 0)
    assert look(tmp_path).folder.name == MODEL
    (tmp_path / MODEL / "checksums.sha256").touch()
    assert look(tmp_path).finished


def test_stalled_workers_stand_out(tmp_path: Path) -> None:
    model = campaign(tmp_path, 8)
    beat(model, 1)
    beat(model, 2, updated=300)  # killed
    beat(model, 3, progressed=3000)  # its GPU hangs
    beat(model, 4, updated=300)
    finish(model, 4)  # by somebody else since
    beat(model, 5, updated=300)
    beat(model, 6, bucket="0005")  # taken over
    state = look(tmp_path)
    assert [(worker.beat.pid, worker.trouble) for worker in state.workers] == [
        *((2, "silent"), (3, "stuck"), (1, ""), (6, "")),
    ]
    assert state.tokens_per_second == 100
    text = shown(tmp_path)
    assert "node1 GPU 1 (A100)" in text and "12 min" in text
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


def test_failures_are_named_with_their_logs(tmp_path: Path) -> None:
    model = campaign(tmp_path, 2)
    logs = tmp_path / "logs" / MODEL / "embed"
    logs.mkdir(parents=True)
    watch = Watch(tmp_path)
    (logs / "0000.log").write_text(
        "12:00:00 published\nplm-embed: error: no space on /scratch\nmake room\nmore\n"
    )
    (logs / "0001.log").write_text(
        "Traceback (most recent call last):\n  File ...\nValueError: broken\n"
    )
    (state,) = watch.look()
    assert [(failure.log.name, failure.reason) for failure in state.failures] == [
        ("0000.log", "no space on /scratch\nmake room"),
        ("0001.log", "ValueError: broken"),
    ]
    text = shown(tmp_path)
    assert "2 failed" in text and f"FAILED {logs}/0000.log" in text.replace("\n", "")
    (logs / "0000.log").write_text("# plm-embed embed: the next attempt\n")
    (model / "submissions").mkdir()
    (model / "submissions" / "0001.json").write_text("{}")
    (state,) = watch.look()
    assert not state.failures


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
    assert "and 2 workers more" in shown(tmp_path, rows=1)


def test_no_such_folder(tmp_path: Path) -> None:
    with pytest.raises(PlmEmbedError, match="no such folder"):
        Watch(tmp_path / "absent")


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(35, "35 s"), (720, "12 min"), (12_000, "3 h 20 min"), (190_800, "2 d 5 h")],
)
def test_durations_in_words(seconds: float, words: str) -> None:
    assert duration(seconds) == words
