"""The watch: what it says of a campaign at work, of dead workers and failures; and what it
costs.
"""

import os
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from plm_embed.cli.main import group
from plm_embed.reporting import watch
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


def test_tokens_are_those_that_the_jobs_count(tmp_path: Path) -> None:
    """Masked passes of a pseudo-perplexity take hundreds of times those of the sequences."""
    beat(campaign(tmp_path, 4), 1, tokens=20_000, tokens_total=100_000)
    assert look(tmp_path).eta == pytest.approx((80_000 + 3 * 100_000) / 50)


def test_the_nodes_of_a_job_share_its_bucket(tmp_path: Path) -> None:
    model = campaign(tmp_path, 1)
    beat(model, 1, bucket="0000", tokens=250)
    beat(model, 2, bucket="0000", node=1, tokens=750, started=ago(90))
    assert look(tmp_path).fraction == 0.5 and look(tmp_path).eta == 1000 / 100


def test_nothing_runs_yet(tmp_path: Path) -> None:
    assert "There is no such folder." in shown(tmp_path / "later")
    assert watch.look(tmp_path).models == [] and "Nothing has begun" in shown(tmp_path)
    written(campaign(tmp_path, 2) / "weights.json")
    assert look(tmp_path).eta is None and "✓weights ✓sequences ·embed ·gather" in shown(tmp_path)
    assert "0.0 %; 0 of 2 buckets done, 0 at work, 2 left\n" in shown(tmp_path)


def test_a_killed_run_says_how_to_go_on(tmp_path: Path) -> None:
    model = campaign(tmp_path, 4)
    written(model / "weights.json")
    finish(model, 0)
    beat(model, 0, updated=300)
    beat(model, 1, updated=300)
    text = shown(tmp_path)
    assert "nothing is running" in text and "rerun the same command" in text
    beat(model, 2)
    assert "next: " not in shown(tmp_path)


def test_several_models_stand_side_by_side(tmp_path: Path) -> None:
    campaign(tmp_path, 2)
    other = tmp_path / "prot_bert"
    (other / "embedded").mkdir(parents=True)
    finish(other, 0)
    written(tmp_path / "logs" / "esmc_300m" / "weights.log")  # its turn comes later
    states = watch.look(tmp_path).models
    assert [state.folder.name for state in states] == [MODEL, "esmc_300m", "prot_bert"]
    beat(other, 1)
    text = shown(tmp_path)
    assert f"{MODEL}  ·weights ✓sequences ·embed" in text
    assert "esmc_300m  ▶weights ✓sequences ·embed" in text
    assert "prot_bert  ·weights ✓sequences ▶embed" in text
    assert "75.0 %; 1 of 2 buckets done, 1 at work, 0 queued; 50 tokens/s" in text
    for width in (60, 80, 120, 200):
        lines = screen(tmp_path, width)
        assert all(len(line) <= width for line in lines)
        shares = [line for line in lines if " %; " in line]
        assert len(shares) == 3, "one for each"
        assert any("0001" in line for line in lines)


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
    assert [(worker.info.pid, worker.trouble) for worker in state.workers] == [
        *((1, ""), (2, "silent"), (3, "stuck"), (6, ""))
    ]
    assert state.tokens_per_second == 100
    text = shown(tmp_path)
    assert "node1 GPU 1" in text and "12 min" in text
    assert (
        "2 workers stalled" in text and "5 min ago" in text and "SILENT" in text and "STUCK" in text
    )


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


def test_failures_are_named_with_their_logs(tmp_path: Path) -> None:
    model = campaign(tmp_path, 2)
    logs = tmp_path / "logs" / MODEL / "embed"
    logs.mkdir(parents=True)
    (logs / "0000.log").write_text(
        "12:00:00 published\nplm-embed: error: no space on /scratch\nmake room\nmore\n"
    )
    (logs / "0001.log").write_text(
        "Traceback (most recent call last):\n  File ...\nValueError: broken\n"
    )
    (logs / "0002.log").write_text(
        "Usage: plm-embed embed [OPTIONS]\n\nError: Invalid value: Path 'w' does not exist.\n"
    )
    (state,) = watch.look(tmp_path).models
    assert [(failure.log.name, failure.reason) for failure in state.failures] == [
        ("0000.log", "no space on /scratch\nmake room"),
        ("0001.log", "ValueError: broken"),
        ("0002.log", "Invalid value: Path 'w' does not exist."),
    ]
    (logs / "0002.log").unlink()
    text = shown(tmp_path)
    assert "2 failed" in text and f"FAILED {logs}/0000.log" in text.replace("\n", "")
    (logs / "0000.log").write_text("# plm-embed embed: the next attempt\n")
    finish(model, 1)
    (state,) = watch.look(tmp_path).models
    assert not state.failures


def test_a_heartbeat_that_is_being_replaced_is_left_out(tmp_path: Path) -> None:
    model = campaign(tmp_path, 4)
    beat(model, 1).write_text('{"host": "no')
    (model / "embedded" / "jobs" / ".tmp-node1-2.json").write_text("{}")
    beat(model, 3)
    assert len(look(tmp_path).workers) == 1


def test_one_look_on_the_command_line(tmp_path: Path) -> None:
    model = campaign(tmp_path, 4)
    for bucket in range(3):
        beat(model, bucket)
    text = CliRunner().invoke(group, ["watch", str(tmp_path), "--once"]).output
    assert "0 of 4 buckets done, 3 at work, 1 queued" in text and "\x1b" not in text


@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_every_line_fits_the_terminal(tmp_path: Path, width: int) -> None:
    model = campaign(tmp_path, 8)
    written(model / "weights.json")
    finish(model, 0)
    beat(model, 1)
    beat(model, 2, updated=300, rate=None)
    written(tmp_path / "logs" / MODEL / "embed" / "0003.log", "plm-embed: error: no space\n")
    lines = screen(tmp_path, width)
    assert all(len(line) <= width for line in lines) and len(lines) < 24
    text = " ".join(" ".join(lines).split())
    assert "✓weights ✓sequences ✗embed ·gather ·validate ·report" in text
    assert "1 of 8 buckets done, 1 at work, 5 queued, 1 failed, 1 worker stalled" in text
    assert "; 50 tokens/s, about 2 min left, until" in text and "FAILED" in text
    if width >= 80:
        (row,) = [line for line in lines if "SILENT" in line]
        assert row.split()[:3] == ["node1", "GPU", "2"] and "loading" in row and "5 min" in row


def test_failures_of_a_kind_are_said_once(tmp_path: Path) -> None:
    campaign(tmp_path, 12)
    logs = tmp_path / "logs" / MODEL / "embed"
    for bucket in range(12):
        written(logs / f"{bucket:04d}.log", f"plm-embed: error: {bucket:04d}: damaged weights\n")
    text = shown(tmp_path)
    assert text.count("damaged weights") == 1 and "0000.log (and 11 similar steps)" in text
    assert "12 failed" in text


@pytest.mark.parametrize("log", ["deduplicate.log", f"{MODEL}/weights.log"])
def test_steps_before_embed_fail_aloud(tmp_path: Path, log: str) -> None:
    (tmp_path / MODEL / "embedded").mkdir(parents=True)
    written(tmp_path / "logs" / log, "# plm-embed\nplm-embed: error: no column 'nope'\n", at=1)
    present = watch.look(tmp_path)
    assert present.failures and present.over
    text = shown(tmp_path)
    assert "✗" in text and "no column 'nope'" in text
    assert "next: Fix the problem and rerun the same command" in text


def test_exit_codes_say_how_it_ended(tmp_path: Path) -> None:
    def code(*options: str) -> int:
        return CliRunner().invoke(group, ["watch", str(tmp_path / "out"), *options]).exit_code

    written(tmp_path / "out", "a file")
    assert code() == 2
    (tmp_path / "out").unlink()
    assert code("--once") == 3
    model = campaign(tmp_path / "out", 1)
    written(model / "weights.json")
    finish(model, 0)
    written(model / "master_esm2_embeddings.h5")
    log = written(tmp_path / "out" / "logs" / MODEL / "validate.log", "plm-embed: error: no\n", 1)
    assert code("--once") == 1
    log.unlink()
    prove(model)
    assert code() == 0


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(35, "35 s"), (720, "12 min"), (12_000, "3 h 20 min"), (190_800, "2 d 5 h")],
)
def test_durations_in_words(seconds: float, words: str) -> None:
    assert duration(seconds) == words
