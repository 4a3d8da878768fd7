"""Calls of Snakemake beside results: those that run no job change nothing, and those that do a part
or meet other jobs do not call the result whole.
"""

import os
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import pytest
from plm_embed.workflow.run_note import note_start

from plm_embed.reporting.screen.watch import Watch
from plm_embed.sequences.summary import read_summary, write_summary
from support.campaign_runs import snakemake, snakemake_command
from support.demo import MASTER, MODEL, ONE_THREAD

pytestmark = pytest.mark.workflow
OTHER = {"buckets": 3, "embedding": {"storage_dtype": "float32"}}


def files(folder: Path) -> dict[str, int]:
    """Results, with their times."""
    found = folder.glob("results/**/*")
    return {str(path): path.stat().st_mtime_ns for path in found if path.is_file()}


@pytest.mark.parametrize(
    "options",
    [
        ("--dag",),
        ("--list-rules",),
        ("--detailed-summary",),
        ("--cleanup-metadata", MASTER),
        ("--list-changes", "params"),
        ("--report", "report.zip"),
    ],
    ids=" ".join,
)
def test_a_look_with_other_settings_changes_nothing(copy: Path, options: tuple[str, ...]) -> None:
    before = files(copy)
    snakemake(copy, *options, **OTHER)
    assert files(copy) == before


def test_a_call_that_a_lock_refuses_changes_nothing(copy: Path) -> None:
    before, locks = files(copy), copy / ".snakemake/locks"
    locks.mkdir(parents=True, exist_ok=True)
    (locks / "0.output.lock").write_text(f"results/{MODEL}/gathered.json\n", encoding="utf-8")
    refused = snakemake(copy, *ONE_THREAD, **OTHER)
    assert refused.returncode == 1 and "cannot be locked" in refused.stdout, refused.stdout
    assert files(copy) == before
    # who says that the lock means nothing gets what the settings ask for
    insisted = snakemake(copy, "--nolock", *ONE_THREAD, **OTHER)
    assert insisted.returncode == 0 and "validated" in insisted.stdout, insisted.stdout


def test_a_call_beside_a_run_changes_nothing(copy: Path) -> None:
    """It is seen without Snakemake's lock, which is of the folder of the call, and which another
    campaign that ends there takes away.
    """
    note_start(copy / "results", [MODEL])
    before = files(copy)
    refused = snakemake(copy, *ONE_THREAD, **OTHER)
    assert refused.returncode == 1 and "Traceback" not in refused.stdout, refused.stdout
    assert f"results: a run is at work here (process {os.getpid()}, " in refused.stdout
    assert files(copy) == before
    assert "Nothing to be done" in snakemake(copy, "-n").stdout


def test_a_part_of_a_run_leaves_a_campaign_unfinished(copy: Path) -> None:
    with (copy / "config/demo/proteins.fasta").open("a", encoding="utf-8") as fasta:
        fasta.write(">new\nMKVLAAGIVGLLLAQWERTY\n")
    run = snakemake(copy, *ONE_THREAD, "--until", "deduplicate")
    assert run.returncode == 0, run.stdout
    assert f"{MODEL}: no validated result of these sequences and settings yet" in run.stdout
    assert "validated:" not in run.stdout
    look = Watch(copy / "results").look()
    assert not look.finished
    assert next(step.name for step in look.models[0].steps if step.status == "waits") == "embed"


def test_sequences_that_a_job_of_an_earlier_call_replaced_fail_the_run(copy: Path) -> None:
    note, sequences = copy / "results/run.json", copy / "results/sequences"
    before, summary = note.read_bytes(), read_summary(sequences)
    other = replace(summary, inputs=(replace(summary.inputs[0], path="other.fasta"),))
    command = snakemake_command(copy, *ONE_THREAD, "--forcerun", f"results/{MODEL}/report.html")
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as run:
        while note.read_bytes() == before:
            assert run.poll() is None
            time.sleep(0.002)
        write_summary(sequences, other)
        assert run.stdout
        said = run.stdout.read().decode()
    assert run.returncode == 1, said
    assert "sequences has the sequences of other inputs now" in said
    assert "run the same command again" in said and "Traceback" not in said
    again = snakemake(copy, *ONE_THREAD)
    assert again.returncode == 0 and "validated:" in again.stdout, again.stdout
