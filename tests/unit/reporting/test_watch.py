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
from support.watched import (
    MODEL,
    PRODUCTS,
    ago,
    beat,
    campaign,
    finish,
    look,
    prove,
    shown,
    written,
)


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
    lines = shown(tmp_path, 60).splitlines()
    assert max(map(len, lines)) <= 60 and sum(" %; " in line for line in lines) == 3
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
    for words in ("node1 GPU 1", "12 min", "2 workers stalled", "5 min ago", "SILENT", "STUCK"):
        assert words in text


def test_failures_are_named_with_their_logs(tmp_path: Path) -> None:
    model = campaign(tmp_path, 2)
    logs = tmp_path / "logs" / MODEL / "embed"
    reasons = ["no space on /scratch\nmake room", "ValueError: broken", "Invalid value: No 'w'."]
    words = (
        f"12:00:00 published\nplm-embed: error: {reasons[0]}\nmore\n",
        f"Traceback (most recent call last):\n  File ...\n{reasons[1]}\n",
        f"Usage: plm-embed embed [OPTIONS]\n\nError: {reasons[2]}\n",
    )
    for bucket, text in enumerate(words):
        written(logs / f"{bucket:04d}.log", text)
    assert [failure.reason for failure in look(tmp_path).failures] == reasons
    (logs / "0002.log").unlink()
    text = shown(tmp_path)
    assert "2 failed" in text and f"FAILED {logs}/0000.log" in text.replace("\n", "")
    (logs / "0000.log").write_text("# plm-embed embed: the next attempt\n")
    finish(model, 1)
    assert not look(tmp_path).failures


@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_every_line_fits_the_terminal(tmp_path: Path, width: int) -> None:
    model = campaign(tmp_path, 8)
    written(model / "weights.json")
    finish(model, 0)
    beat(model, 1)
    beat(model, 2, updated=300, rate=None)
    written(tmp_path / "logs" / MODEL / "embed" / "0003.log", "plm-embed: error: no space\n")
    lines = shown(tmp_path, width).splitlines()
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
    text = shown(tmp_path)
    assert "✗" in text and "no column 'nope'" in text and watch.look(tmp_path).over
    assert "next: Fix the problem and rerun the same command" in text


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(35, "35 s"), (720, "12 min"), (12_000, "3 h 20 min"), (190_800, "2 d 5 h")],
)
def test_durations_in_words(seconds: float, words: str) -> None:
    assert duration(seconds) == words


def test_a_log_and_an_exit_code_say_how_it_ended(tmp_path: Path) -> None:
    def code(*options: str) -> int:
        done = CliRunner().invoke(group, ["watch", str(tmp_path / "out"), *options])
        assert "\x1b" not in done.output
        return done.exit_code

    written(tmp_path / "out", "a file")
    assert code() == 2
    (tmp_path / "out").unlink()
    assert code("--once") == 3
    model = begun(tmp_path / "out", 1)
    written(model / "master_esm2_embeddings.h5")
    log = written(tmp_path / "out" / "logs" / MODEL / "validate.log", "plm-embed: error: no\n", 1)
    assert code("--once") == 1
    log.unlink()
    prove(model)
    assert code() == 0


def begun(folder: Path, buckets: int) -> Path:
    """A model's campaign of which the first bucket was finished a while ago."""
    model = campaign(folder, buckets)
    written(model / "weights.json", at=-100)
    for path in (folder / "sequences").rglob("*"):
        os.utime(path, (time.time() - 100, time.time() - 100))
    finish(model, 0, at=-90)
    return model


def test_a_campaign_is_finished_when_every_step_is(tmp_path: Path) -> None:
    model = begun(tmp_path, 2)
    assert "·embed" in shown(tmp_path)
    record, logs = finish(model, 1, at=-80), tmp_path / "logs" / MODEL
    for name, file in zip(("gather", "validate", "report"), PRODUCTS, strict=True):
        assert f"·{name}" in shown(tmp_path)
        written(logs / f"{name}.log", f"# plm-embed {name}\n", at=-30)
        text = shown(tmp_path)
        assert f"▶{name}" in text
        assert "finished:" not in text and not watch.look(tmp_path).finished
        written(model / file, at=-30)
    assert watch.look(tmp_path).finished and "finished: every step is done" in shown(tmp_path)
    os.utime(record, (time.time() - 20, time.time() - 20))  # more is embedded since
    assert "·gather" in shown(tmp_path)


def test_weights_that_could_not_be_made_again_leave_a_campaign_unfinished(tmp_path: Path) -> None:
    """Snakemake has removed the record of the earlier ones; their vectors are all there."""
    model = begun(tmp_path, 1)
    prove(model, at=-30)
    assert watch.look(tmp_path).finished
    (model / "weights.json").unlink()
    log = tmp_path / "logs" / MODEL / "weights.log"
    written(log, "# plm-embed weights\nplm-embed: error: cannot be fetched\n", at=-10)
    assert not watch.look(tmp_path).finished and "✗weights" in shown(tmp_path)


def test_records_of_earlier_buckets_do_not_count(tmp_path: Path) -> None:
    model = campaign(tmp_path, 2)
    buckets = tmp_path / "sequences" / "buckets"
    written(buckets / "0007.parquet", at=-60)
    for bucket in (0, 1, 7):
        finish(model, bucket)
    assert look(tmp_path).done == 2
    written(buckets / "0001.parquet", "x", at=60)  # cut anew since
    os.utime(tmp_path / "sequences" / "summary.json", (time.time() + 60, time.time() + 60))
    assert look(tmp_path).done == 1
