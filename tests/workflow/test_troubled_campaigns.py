"""Campaigns in trouble: kills, damage, and mistakes, and how they go on."""

import gzip
import random
import re
import shutil
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import psutil
import pytest

from plm_embed.io.json_files import write_sealed
from plm_embed.models.weights import read_record
from plm_embed.reading.diff import compare
from plm_embed.reporting.watch import look
from support.campaign_runs import ROOT, snakemake, snakemake_command, working_folder
from support.demo import (
    GATHERED,
    MASTER,
    MODEL,
    ONE_THREAD,
    completion_records,
    digests,
    parts,
    report,
    rows_in_store,
)

GOLDEN = ROOT / "tests/data/esm2_golden/esm2_t3_tiny_random.pt"
pytestmark = pytest.mark.workflow


@pytest.mark.parametrize("damaged", ["buckets/0000.parquet", "members/0000.parquet"])
def test_what_is_said_about_a_damaged_sequence_file_makes_the_campaign_whole(
    damaged: str, copy: Path
) -> None:
    """embed reads the first file, gather the second one."""
    before = digests(copy)
    path = copy / "results/sequences" / damaged
    content = bytearray(path.read_bytes())
    content[len(content) // 3] ^= 4
    path.write_bytes(content)
    again = ("--forcerun", f"results/{MODEL}/embedded/0000.json")
    run = snakemake(copy, GATHERED, *ONE_THREAD, *again)
    assert run.returncode == 1
    logs = "".join(
        log.read_text(encoding="utf-8") for log in copy.glob(f"results/logs/{MODEL}/**/*.log")
    )
    assert f"results/sequences/{damaged}: changed since it was written; delete " in logs
    delete_what_is_named(copy, logs)
    healed = snakemake(copy, GATHERED, *ONE_THREAD)
    assert healed.returncode == 0, healed.stdout
    assert digests(copy) == before


def kill_all_in(folder: Path, but: int) -> None:
    """SIGKILL for every process that works in `folder` except one; returns when they are gone."""

    def victims() -> list[psutil.Process]:
        processes = [
            process
            for process in psutil.process_iter(["cwd"])
            if process.info["cwd"] == str(folder)
        ]
        return [process for process in processes if process.pid != but]

    while found := victims():  # one may just have started another
        for process in found:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(found, timeout=300)


def test_kill_9_loses_only_what_no_part_holds(demo: Path, tmp_path: Path) -> None:
    folder = working_folder(tmp_path / "work")
    # one sequence or so per batch and a part per batch, so that there is an instant to hit
    small = ("--set-resources", "embed:toks_per_batch=600", "embed:flush_minutes='1e-6'")
    for victim in ("the embed job", "everything"):
        wanted = len(parts(folder)) + random.randint(1, 5)  # nearly all is still to do
        run = subprocess.Popen(
            snakemake_command(folder, *ONE_THREAD, *small, buckets=1),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        while len(parts(folder)) < wanted:
            assert run.poll() is None, "the embed job ended before it could be killed"
            time.sleep(0.002)
        if victim == "everything":
            run.kill()
        kill_all_in(folder, but=run.pid)
        failed = run.wait(timeout=300)
        assert failed
        assert not (folder / MASTER).exists()
        kept = rows_in_store(folder)
        assert kept >= wanted

    assert snakemake(folder, "--unlock").returncode == 0
    again = snakemake(folder, GATHERED, *ONE_THREAD, *small, buckets=1)
    assert again.returncode == 0, again.stdout
    (record,) = completion_records(folder)
    assert record.found == kept
    assert record.computed == record.unique - kept
    # other batches and another number of buckets than the demo's leave no trace either
    assert digests(folder) == digests(demo)


def test_damage_fails_the_run_and_names_itself(copy: Path) -> None:
    with h5py.File(copy / MASTER, "r+") as master:
        master["emb"][5] = 0
    for _ in range(2):
        run = snakemake(copy, *ONE_THREAD)
        assert run.returncode != 0 and "is not valid" in run.stdout, run.stdout
        assert not (copy / f"results/{MODEL}/checksums.sha256").exists()
    (copy / MASTER).unlink()
    assert snakemake(copy, *ONE_THREAD).returncode == 0
    assert report(copy).status == "passed"


def test_weights_that_were_deleted_are_made_again_when_they_are_needed(copy: Path) -> None:
    record = read_record(copy / "results" / MODEL)
    assert record and record.folder
    gone = copy / "gone"
    again = replace(record, folder=str(gone / "here"))
    write_sealed(copy / f"results/{MODEL}/weights.json", again)
    with (copy / "config/demo/proteins.fasta").open("a", encoding="utf-8") as fasta:
        fasta.write(">new\nMKVLAAGIVGLLLAQWERTY\n")
    by = ("--rerun-triggers", "mtime")
    grown = snakemake(copy, *ONE_THREAD, *by, "--forcerun", "deduplicate")
    assert grown.returncode == 0, grown.stdout
    assert list(gone.glob("*/manifest.json"))


def test_parts_that_are_damaged_after_the_end_are_healed_by_what_validate_says(
    copy: Path, tmp_path: Path
) -> None:
    old = Path(shutil.copy(copy / MASTER, tmp_path))
    part, missing = parts(copy)[:2]
    with h5py.File(part, "r+") as file:
        next(iter(file["representations"].values()))[0, 0] = 7
    missing.unlink()
    command = [sys.executable, "-m", "plm_embed", "validate", "results", "--spot-checks", "0"]
    refused = subprocess.run(command, cwd=copy, stderr=subprocess.PIPE, text=True, check=False)
    assert refused.returncode == 1
    assert f"{part.name}: its bytes are not those that were written" in refused.stderr
    assert f"{missing.name}: missing, but " in refused.stderr
    delete_what_is_named(copy, refused.stderr)
    assert not part.exists()
    healed = snakemake(copy, *ONE_THREAD)
    assert healed.returncode == 0, healed.stdout
    assert compare(old, copy / MASTER, 0).equal and report(copy).status == "passed"
    # of the same sequences; it says when it was computed, so that its bytes are others
    assert len(list(part.parent.glob(f"{part.name.rpartition('-')[0]}-*.h5"))) == 1
    assert "Nothing to be done" in snakemake(copy, "-n").stdout


def delete_what_is_named(folder: Path, message: str) -> None:
    """Do what a message says before the campaign is run again."""
    named = re.search(r"; delete (.*?) and run the campaign again", message)
    assert named, message
    for path in named[1].split(" and "):
        (folder / path).unlink()


def test_a_failed_job_shows_its_error_and_its_log(tmp_path: Path) -> None:
    folder = working_folder(tmp_path / "work")
    fasta = folder / "config/demo/proteins.fasta"
    fasta.write_bytes(gzip.compress(fasta.read_bytes())[:-100])
    run = snakemake(folder, *ONE_THREAD)
    assert run.returncode != 0
    assert "results/logs/deduplicate.log" in run.stdout
    assert re.search(r"plm-embed: error: .*proteins\.fasta", run.stdout)
    found = look(folder / "results")
    assert found.over and found.failures


def test_files_of_the_report_that_were_deleted_come_back(copy: Path) -> None:
    folder = copy / "results" / MODEL
    names = ["skipped.tsv", "config.yaml", "ro-crate-metadata.json"]
    before = (folder / "skipped.tsv").read_bytes()
    for name in names:
        (folder / name).unlink()
    run = snakemake(copy, *ONE_THREAD)
    assert run.returncode == 0, run.stdout
    assert "rule report" in run.stdout.replace("localrule", "rule")
    assert "rule validate" not in run.stdout and "rule gather" not in run.stdout
    assert all((folder / name).is_file() for name in names)
    assert (folder / "skipped.tsv").read_bytes() == before
    assert "Nothing to be done" in snakemake(copy, *ONE_THREAD).stdout


def test_what_failed_in_a_finished_campaign_fails_again_until_it_is_fixed(copy: Path) -> None:
    """Snakemake takes the outputs of a step that failed; what there was is no answer any more."""
    table = copy / "config/demo/proteins.csv"
    whole = table.read_bytes()
    table.write_bytes(whole + b'x,new,y,"MKTAYIAKQ\n')
    for _ in range(2):
        run = snakemake(copy, *ONE_THREAD)
        assert run.returncode == 1 and "never closed" in run.stdout, run.stdout
    table.write_bytes(whole)
    healed = snakemake(copy, *ONE_THREAD)
    assert healed.returncode == 0, healed.stdout
    assert "Nothing to be done" in snakemake(copy, *ONE_THREAD).stdout


def test_a_setting_whose_vectors_failed_is_computed_by_the_next_run(copy: Path) -> None:
    wanted = {"embedding": {"storage_dtype": "float32"}}
    cuda = ("--set-resources", "embed:device=cuda")
    failed = snakemake(copy, *ONE_THREAD, *cuda, **wanted)
    assert failed.returncode == 1, failed.stdout
    done = snakemake(copy, *ONE_THREAD, **wanted)
    assert done.returncode == 0, done.stdout
    with h5py.File(copy / MASTER) as file:
        assert file["emb"].dtype == "float32"


@pytest.mark.parametrize(
    ("change", "said", "rule"),
    [
        ({"embedding": {"pooling": ["max"]}}, "(pooling ['mean'])", "embed"),
        ({"inputs": ["config/demo/proteins.fasta"]}, "of other inputs or settings", "deduplicate"),
        ({"residues": {"gaps": "skip"}}, "of other inputs or settings", "deduplicate"),
    ],
)
def test_results_of_other_settings_are_named_where_snakemakes_notes_are_lost(
    copy: Path, change: dict[str, Any], said: str, rule: str
) -> None:
    shutil.rmtree(copy / ".snakemake")
    assert "Nothing to be done" in snakemake(copy, *ONE_THREAD).stdout
    looked = snakemake(copy, "-n", **change)
    assert "Nothing to be done" in looked.stdout
    (line,) = [line for line in looked.stdout.splitlines() if line.startswith("plm-embed: ")]
    assert said in line and line.endswith(f"add --forcerun {rule}")
    run = snakemake(copy, *ONE_THREAD, "--forcerun", rule, **change)
    assert run.returncode == 0, run.stdout
    again = snakemake(copy, "-n", **change)
    assert "Nothing to be done" in again.stdout and said not in again.stdout


def test_settings_that_go_back_compute_nothing(copy: Path) -> None:
    before = digests(copy)
    for changes in ({"embedding": {"storage_dtype": "float32"}}, {}):
        run = snakemake(copy, *ONE_THREAD, **changes)
        assert run.returncode == 0, run.stdout
    assert digests(copy) == before
    assert [record.computed for record in completion_records(copy)] == [0, 0]


def test_records_of_two_settings_are_not_gathered(copy: Path) -> None:
    """As a job leaves them that was submitted before the configuration was edited."""
    one = f"results/{MODEL}/embedded/0000.json"
    other = {"embedding": {"storage_dtype": "float32"}}
    made = snakemake(copy, one, *ONE_THREAD, **other)
    assert made.returncode == 0, made.stdout
    by_time = ("--rerun-triggers", "mtime")
    refused = snakemake(copy, *ONE_THREAD, *by_time, "--forcerun", "gather_esm2", **other)
    assert refused.returncode == 1 and "storage_dtype" in refused.stdout
    healed = snakemake(copy, *ONE_THREAD, **other)
    assert healed.returncode == 0, healed.stdout


def test_an_input_that_is_gone_is_named_after_a_finished_run(copy: Path) -> None:
    (copy / "config/demo/proteins.csv").unlink()
    done = snakemake(copy, "-n")
    assert done.returncode == 1 and "inputs: config/demo/proteins.csv: not found" in done.stdout


def test_files_in_the_working_folder_are_not_imported(copy: Path) -> None:
    for name in ("random", "plm_embed", "torch"):
        (copy / f"{name}.py").write_text(f"raise SystemExit('{name}.py was executed')\n")
    (copy / MASTER).unlink()
    again = ("--forcerun", f"results/{MODEL}/embedded/0000.json")
    run = snakemake(copy, *ONE_THREAD, *again)
    assert run.returncode == 0, run.stdout
