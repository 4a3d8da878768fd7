"""Campaigns in trouble: kills, damage, and mistakes, and how they go on."""

import gzip
import random
import re
import shlex
import shutil
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import h5py
import psutil
import pytest

from plm_embed.reading.diff import compare
from plm_embed.reporting.screen.watch import Watch
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


@pytest.mark.parametrize(
    ("settings", "damaged"),
    [
        ({}, "buckets/0000.parquet"),  # which embed reads
        ({"deduplicate": "by_input", "buckets": 1}, "members/0000.parquet"),  # which gather reads
    ],
    ids=["one_job", "by_input"],
)
def test_what_is_said_about_a_damaged_sequence_file_makes_the_campaign_whole(
    settings: dict[str, Any], damaged: str, copy: Path
) -> None:
    before = digests(copy)
    made = snakemake(copy, "results/sequences/summary.json", *ONE_THREAD, **settings)
    assert made.returncode == 0, made.stdout
    path = copy / "results/sequences" / damaged
    content = bytearray(path.read_bytes())
    content[len(content) // 3] ^= 4
    path.write_bytes(content)
    again = ("--forcerun", f"results/{MODEL}/embedded/0000.json")
    run = snakemake(copy, GATHERED, *ONE_THREAD, *again, **settings)
    assert run.returncode == 1
    logs = "".join(
        log.read_text(encoding="utf-8") for log in copy.glob(f"results/logs/{MODEL}/**/*.log")
    )
    (said,) = set(re.findall(rf"results/sequences/{damaged}: .*; run `snakemake ([^`]*)`", logs))
    healed = snakemake(copy, GATHERED, *ONE_THREAD, *shlex.split(said), **settings)
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
    folder = working_folder(tmp_path / "work", weights_of=demo)
    # one sequence or so per batch and a part per batch, so that there is an instant to hit
    settings: dict[str, Any] = {
        "buckets": 1,
        "speed": {"toks_per_batch": 600, "flush_minutes": 1e-6},
    }
    for victim in ("the embed job", "everything"):
        wanted = len(parts(folder)) + random.randint(1, 20)
        run = subprocess.Popen(
            snakemake_command(folder, *ONE_THREAD, **settings),
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
    again = snakemake(folder, GATHERED, *ONE_THREAD, **settings)
    assert again.returncode == 0, again.stdout
    (record,) = completion_records(folder)
    assert record.found == kept
    assert record.computed == record.unique - kept
    # other batches and another number of buckets than the demo's leave no trace either
    assert digests(folder) == digests(demo)


def test_damage_fails_the_run_names_itself_and_leaves_the_report(copy: Path) -> None:
    proof = copy / f"results/{MODEL}/checksums.sha256"
    with h5py.File(copy / MASTER, "r+") as master:
        master["emb"][5] = 0
    look = snakemake(copy, "-n")
    assert f"{MASTER} has changed since it was proven" in look.stdout and proof.exists()
    run = snakemake(copy, *ONE_THREAD)
    assert run.returncode != 0
    assert "is not valid" in run.stdout
    assert report(copy).status == "failed"
    assert not proof.exists()


def test_weights_that_were_deleted_are_made_again_unless_the_campaign_is_proven(copy: Path) -> None:
    shutil.rmtree(copy / "resources")
    said = f"resources/weights/{MODEL} holds no weights now"
    done = snakemake(copy, *ONE_THREAD)
    assert "Nothing to be done" in done.stdout and said not in done.stdout
    (copy / "config/demo/proteins.fasta").touch()
    touched = snakemake(copy, "-n", "--rerun-triggers", "params")
    assert "Nothing to be done" in touched.stdout and said not in touched.stdout
    (copy / MASTER).touch()  # younger than its proof
    made = snakemake(copy, f"results/{MODEL}/weights.json", *ONE_THREAD)
    assert made.returncode == 0 and said in made.stdout
    assert (copy / "resources/weights" / MODEL / "manifest.json").exists()


def test_weights_that_were_deleted_are_made_again_for_a_record_that_was_added(copy: Path) -> None:
    weights = copy / "resources/weights" / MODEL
    shutil.rmtree(copy / "resources")
    forced = snakemake(copy, *ONE_THREAD, "--forcerun", f"results/{MODEL}/embedded/0000.json")
    (said,) = set(re.findall(f"{MODEL}: there is no such folder; run `([^`]*)`", forced.stdout))
    assert said == f"snakemake --forcerun results/{MODEL}/weights.json"
    made = snakemake(copy, *said.split()[1:], *ONE_THREAD)
    assert made.returncode == 0 and (weights / "manifest.json").exists(), made.stdout
    shutil.rmtree(copy / "resources")
    with (copy / "config/demo/proteins.fasta").open("a", encoding="utf-8") as fasta:
        fasta.write(">new\nMKVLAAGIVGLLLAQWERTY\n")
    grown = snakemake(copy, *ONE_THREAD)
    assert grown.returncode == 0 and f"{MODEL} holds no weights now" in grown.stdout, grown.stdout


def test_a_damaged_and_a_missing_part_are_named_by_gather_and_healed_by_what_it_says(
    copy: Path, tmp_path: Path
) -> None:
    master, folder = copy / MASTER, f"results/{MODEL}"
    before, old = digests(copy), Path(shutil.copy(master, tmp_path))
    part, missing = parts(copy)[:2]
    with h5py.File(part, "r+") as file:
        next(iter(file["representations"].values()))[0, 0] = 7
    fingerprint = part.parents[1] / "fingerprint.json"
    fingerprint.write_text(fingerprint.read_text().replace("esm2", "esm3"))
    refused = snakemake(copy, *ONE_THREAD, "--forcerun", "gather")
    assert (
        refused.returncode
        and f"its bytes are not those that were written; remove {folder}/embedded and run"
        in refused.stdout
    )
    assert digests(copy) == before
    missing.unlink()
    refused = snakemake(copy, *ONE_THREAD)  # gather is not taken for finished
    assert refused.returncode and missing.name in refused.stdout
    assert digests(copy) == before
    shutil.rmtree(copy / folder / "embedded")
    healed = snakemake(copy, *ONE_THREAD)
    assert healed.returncode == 0, healed.stdout
    assert compare(old, master, 0).equal and report(copy).status == "passed"
    assert part.with_name(f"{part.name}.damaged").exists()
    # of the same sequences; it says when it was computed, so that its bytes are others
    assert len(list(part.parent.glob(f"{part.name.rpartition('-')[0]}-*.h5"))) == 1
    assert "Nothing to be done" in snakemake(copy, "-n").stdout


def test_a_failed_job_shows_its_error_and_its_log(demo: Path, tmp_path: Path) -> None:
    folder = working_folder(tmp_path / "work", weights_of=demo)
    fasta = folder / "config/demo/proteins.fasta"
    fasta.write_bytes(gzip.compress(fasta.read_bytes())[:-100])
    run = snakemake(folder, *ONE_THREAD)
    assert run.returncode != 0
    assert "results/logs/deduplicate.log" in run.stdout
    assert re.search(r"plm-embed: error: .*proteins\.fasta", run.stdout)
    last = re.search(
        r"^failed   .*proteins\.fasta.*\n(?:  .*\n)?log +(.*)\nnext ", run.stdout, re.M
    )
    assert last and last[1] == "results/logs/deduplicate.log"
    found = Watch(folder / "results").look()
    assert found.over and found.run and found.run.outcome == "failed"


def test_a_wrong_configuration_ends_before_anything_runs(tmp_path: Path) -> None:
    folder = working_folder(tmp_path / "work")
    run = snakemake(folder, *ONE_THREAD, inputs=["protein.fasta"], bukets=3)
    assert run.returncode != 0
    assert "bukets: 3: there is no such key; did you mean buckets?" in run.stdout
    assert "inputs: protein.fasta: not found" in run.stdout
    assert not (folder / "results").exists()


def test_a_monstrous_setting_is_refused_in_words(tmp_path: Path) -> None:
    folder = working_folder(tmp_path / "work")
    for value in ("[" * 2000 + "]" * 2000, "[" * 20_000):
        done = snakemake(folder, "--cores", "1", "-n", buckets=value)
        assert done.returncode == 1 and "Traceback" not in done.stdout
        assert "buckets: " in done.stdout and len(done.stdout) < 2000


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


def test_what_failed_in_a_finished_campaign_fails_again_until_it_is_mended(copy: Path) -> None:
    """Snakemake takes the outputs of a step that failed; what there was is no answer any more."""
    table = copy / "config/demo/proteins.csv"
    whole = table.read_bytes()
    table.write_bytes(whole + b'x,new,y,"MKTAYIAKQ\n')
    for _ in range(2):
        run = snakemake(copy, *ONE_THREAD)
        assert run.returncode == 1 and "never closed" in run.stdout, run.stdout
    table.write_bytes(whole)
    mended = snakemake(copy, *ONE_THREAD)
    assert mended.returncode == 0 and "validated" in mended.stdout, mended.stdout
    assert "Nothing to be done" in snakemake(copy, *ONE_THREAD).stdout


def test_a_setting_whose_vectors_failed_is_computed_by_the_next_run(copy: Path) -> None:
    wanted = {"embedding": {"storage_dtype": "float32"}}
    failed = snakemake(copy, *ONE_THREAD, speed={"device": "cuda"}, **wanted)
    assert failed.returncode == 1, failed.stdout
    done = snakemake(copy, *ONE_THREAD, **wanted)
    assert done.returncode == 0, done.stdout
    with h5py.File(copy / MASTER) as file:
        assert file["emb"].dtype == "float32"


def test_a_proof_that_names_other_bytes_is_made_again(copy: Path) -> None:
    proof = copy / "results" / MODEL / "checksums.sha256"
    good = proof.read_text()
    proof.write_text("0" * 64 + good[64:])
    run = snakemake(copy, *ONE_THREAD)
    assert run.returncode == 0 and "rule validate" in run.stdout.replace("localrule", "rule")
    subprocess.run(["sha256sum", "--check", proof.name], cwd=proof.parent, check=True)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"embedding": {"pooling": ["max"]}}, "has vectors of other settings (pooling is "),
        ({"inputs": ["config/demo/proteins.fasta"]}, "has the sequences of other inputs"),
        ({"table": {"keep": []}}, "has sequences that were read with other settings"),
        ({"table": {"id": "assembly_id"}}, "has sequences that were read with other settings"),
        ({"weights": str(GOLDEN), "weights_folder": "other"}, "has vectors of other weights"),
    ],
)
def test_results_without_snakemakes_notes_are_those_of_the_configuration_or_made_so(
    copy: Path, change: dict[str, Any], said: str
) -> None:
    shutil.rmtree(copy / ".snakemake")
    assert "Nothing to be done" in snakemake(copy, *ONE_THREAD).stdout
    looked = snakemake(copy, "-n", **change)
    assert said in looked.stdout and "a run makes" in looked.stdout, looked.stdout
    run = snakemake(copy, *ONE_THREAD, **change)
    assert run.returncode == 0 and said in run.stdout, run.stdout
    assert "rule gather" in run.stdout.replace("localrule", "rule")
    again = snakemake(copy, *ONE_THREAD, **change)
    assert "Nothing to be done" in again.stdout and said not in again.stdout
