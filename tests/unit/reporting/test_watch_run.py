"""The lines of watch about the run of Snakemake itself, whose note lies beside the logs."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from plm_embed.reporting import watch
from plm_embed.workflow.run_note import note_end, note_start
from support.watched import MODEL, beat, campaign, finish, prove, shown, written

WAITS = "queued or starting (on a cluster, see squeue --me)"
START = """
import sys
from pathlib import Path
from plm_embed.workflow.run_note import note_start
note_start(Path(sys.argv[1]), ["esm2_t33_650M_UR50D"], ["snakemake.log"])
print(flush=True)
sys.stdin.read()
"""


def test_what_waits_in_a_queue_is_not_taken_for_the_end(tmp_path: Path) -> None:
    model, logs = campaign(tmp_path, 2), tmp_path / "logs" / MODEL
    written(model / "weights.json")
    written(logs / "embed" / "0000.log", "plm-embed: error: of the run before\n", at=-100)
    note_start(tmp_path, [MODEL], [], local=False)
    text = shown(tmp_path)
    assert f"  {WAITS}\n" in text and "0 at work, 2 queued\n" in text
    assert "Snakemake has not ended: process " in text and "FAILED" not in text
    finish(model, 0)
    finish(model, 1)
    text = shown(tmp_path)
    assert f"  {WAITS}\n" in text and "✓embed ·gather" in text
    note_start(tmp_path, [MODEL], [])
    assert "  starting or between two steps\n" in shown(tmp_path), "it is on no cluster"
    other = written(tmp_path / "logs/prot_bert/weights.log", "plm-embed: error: wrong\n", at=1)
    note_start(tmp_path, [MODEL, "prot_bert"], [])
    written(other, other.read_text(), at=1)
    present = watch.look(tmp_path)
    assert present.failures and not present.over, "the other model goes on"
    note_end(tmp_path, [])
    assert watch.look(tmp_path).over


@pytest.mark.parametrize(
    "words",
    [
        "    message: PartitionTimeLimit For further error details see\n    message: None\n",
        'MissingOutputException in rule weights in file "x.smk", line 1:\nPartitionTimeLimit\nX\n',
    ],
)
def test_a_step_that_never_started_fails_with_its_run(words: str, tmp_path: Path) -> None:
    log = written(tmp_path / "snakemake.log", words)
    for begun in (False, True):  # an executor may have touched its log
        note_start(tmp_path, [MODEL], [str(log)])
        if begun:
            written(tmp_path / "logs" / "deduplicate.log")
        assert "✗" not in shown(tmp_path)
        note_end(tmp_path, [str(log)])
        text = shown(tmp_path)
        assert "nothing is running" in text and "FAILED" in text and "PartitionTimeLimit\n" in text
        assert ("✗sequences" in text) == begun
        assert watch.watch(tmp_path, once=True) == watch.FAILED


def test_a_run_that_ended_leaves_nothing_at_work(tmp_path: Path) -> None:
    """Somebody stopped it, or it was for a part of the campaign."""
    model = campaign(tmp_path, 1)
    stopped = tmp_path / "snakemake.log"
    note_start(tmp_path, [MODEL], [str(stopped)])
    written(tmp_path / "logs" / MODEL / "weights.log", "fetches\n", at=1)
    assert f"{tmp_path}  at work" in shown(tmp_path)
    for signal_words in (
        "Terminating processes on user request",
        "Will exit after finishing currently running jobs (scheduler).",
        "",
    ):
        written(stopped, f"{signal_words}\nRuleException:\n")
        note_end(tmp_path, [str(stopped)] if signal_words else None)
        present = watch.look(tmp_path)
        assert present.over and not present.failures and not present.finished
        text = shown(tmp_path)
        assert "nothing is running" in text
        assert ("  stopped; " in text) == bool(signal_words)
        assert "next: if the run has ended, rerun the same command; if it is locked" in text
    assert model.exists()


def test_a_job_that_was_killed_is_named_by_its_own_log(tmp_path: Path) -> None:
    campaign(tmp_path, 1)
    log = tmp_path / "logs" / MODEL / "embed" / "0000.log"
    error = "Error in rule embed:\n    message: {}\n    jobid: 3\n    output: x\n"
    for text, reason in (
        (
            error.format("SLURM job 9: out of main memory (mem_mb=300). For further error details")
            + f"    log: {log}, /slurm_logs/9.log (check log file(s) for error details)\n",
            "SLURM job 9: out of main memory (mem_mb=300).",
        ),
        (f"Command 'x &> {log}' died with <Signals.SIGKILL: 9>.\n", "killed; out of memory?"),
    ):
        snakemake = str(written(tmp_path / "snakemake.log", text))
        note_start(tmp_path, [MODEL], [snakemake])
        log.unlink(missing_ok=True)
        note_end(tmp_path, [snakemake])
        assert f"FAILED {snakemake}\n  {reason}\n" in shown(tmp_path), "it never began"
        written(log, "# plm-embed embed\n")
        note_end(tmp_path, [snakemake])
        assert f"FAILED {log}\n  {reason}\n" in shown(tmp_path)
    inner = "Will exit after finishing currently running jobs (scheduler)."
    written(tmp_path / "snakemake.log", f"{text}{inner}\n{'=' * 80}\n")
    note_end(tmp_path, [snakemake])
    assert "FAILED" in shown(tmp_path), "a Snakemake within the job was stopped"


def test_a_killed_run_has_failed_when_its_workers_are_silent(tmp_path: Path) -> None:
    model = campaign(tmp_path, 1)
    written(model / "weights.json")
    with subprocess.Popen(
        [sys.executable, "-c", START, tmp_path], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as run:
        assert run.stdout and run.stdout.readline()
        beat(model, 0)
        assert "at work" in shown(tmp_path)
        run.kill()
        run.wait()
    present = watch.look(tmp_path)
    assert present.at_work and not present.over, "its jobs go on"
    beat(model, 0, updated=300)
    text = shown(tmp_path)
    assert watch.look(tmp_path).over and "Snakemake was killed: rerun" in text
    assert "--unlock" in text and "cluster" not in text


def test_a_run_that_was_just_started_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Snakemake plans before it notes itself; until then the note is of the run before."""
    waits: list[float] = []
    monkeypatch.setattr(watch.time, "sleep", waits.append)
    assert watch.watch(tmp_path / "never", once=False) == watch.UNFINISHED
    text = "There is no such folder.\nWaiting a minute for a run to start; Ctrl-C ends this.\n"
    assert sum(waits) == 60 and capsys.readouterr().out.endswith(text)
    waits.clear()
    campaign(tmp_path, 1)
    log = written(tmp_path / "snakemake.log", "    message: out of memory\n    message: None\n")
    note_start(tmp_path, [MODEL], [str(log)])
    note_end(tmp_path, [str(log)])
    assert watch.watch(tmp_path, once=False) == watch.FAILED
    assert sum(waits) == 60, "none was started"
    begins_and_ends(tmp_path, monkeypatch)
    capsys.readouterr()
    assert watch.watch(tmp_path, once=False) == watch.UNFINISHED
    text = capsys.readouterr().out
    assert text.count(f"{tmp_path}  ") == 3, "one for each change, whole lines"
    assert text.count("starting or between two steps") == 1 and "nothing is running" in text


def begins_and_ends(results: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[object]:
    """Let a run begin while watch sleeps for the first time, and end at the third time."""
    turns = iter([
        lambda: note_start(results, [MODEL], []), lambda: None, lambda: note_end(results)
    ])  # fmt: skip
    monkeypatch.setattr(watch.time, "sleep", lambda _: next(turns)())
    return turns


def test_a_finished_campaign_may_just_have_been_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By `plm-embed run`, which writes the configuration before Snakemake plans."""
    model = campaign(tmp_path, 1)
    written(model / "weights.json")
    finish(model, 0)
    prove(model)
    note_start(tmp_path, [MODEL], [])
    note_end(tmp_path)
    turns = begins_and_ends(tmp_path, monkeypatch)
    assert watch.watch(model, once=False) == watch.VALID
    assert "finished" in capsys.readouterr().out and len(list(turns)) == 3, "nothing was waited for"
    written(tmp_path / "config.yaml", at=1)
    turns = begins_and_ends(tmp_path, monkeypatch)
    assert watch.watch(model, once=False) == watch.VALID
    assert "starting or between two steps" in capsys.readouterr().out and not list(turns)


def test_attempts_that_are_tried_again_are_counted(tmp_path: Path) -> None:
    campaign(tmp_path, 1)
    log = tmp_path / "snakemake.log"
    note_start(tmp_path, [MODEL], [str(log)])
    assert "failed" not in shown(tmp_path), "there is no log yet"
    written(log, "Error in rule embed:\n    message: out of memory\n    message: None\n" * 2)
    assert "2 attempts failed; the last: out of memory" in shown(tmp_path)


def test_models_are_those_of_the_run(tmp_path: Path) -> None:
    written(tmp_path / "logs/prot_bert/weights.log", "plm-embed: error: wrong weights\n")
    campaign(tmp_path, 1)
    assert [model.folder.name for model in watch.look(tmp_path).models] == [MODEL, "prot_bert"]
    note_start(tmp_path, ["esmc_300m"], [])
    assert [model.folder.name for model in watch.look(tmp_path).models] == ["esmc_300m"]
