"""Whole campaigns as users run them: the demo, configurations of their own, growing inputs."""

import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import yaml

import plm_embed
from plm_embed.errors import PlmEmbedError
from plm_embed.models.manifest import read_manifest, read_record
from plm_embed.models.registry import MODELS
from plm_embed.reading.diff import compare
from plm_embed.reporting.screen.watch import Watch
from plm_embed.sequences.summary import read_summary
from support import checkpoints
from support.campaign_runs import ROOT, snakemake, snakemake_command, working_folder
from support.demo import (
    GATHERED,
    INDEX,
    MASTER,
    MODEL,
    ONE_THREAD,
    completion_records,
    digests,
    rows_in_store,
)

pytestmark = pytest.mark.workflow


def test_the_demo_ends_with_a_proven_master(demo: Path) -> None:
    counts = read_summary(demo / "results/sequences")
    records = pq.read_table(demo / f"results/{MODEL}/records.parquet").to_pylist()
    assert len(records) == counts.records == counts.accepted + counts.skipped.total()
    assert (
        sum(record["status"] != "skipped" for record in records)
        == pq.read_metadata(demo / INDEX).num_rows
    )
    assert sum(record.computed for record in completion_records(demo)) == counts.unique
    assert Watch(demo / "results").look().finished
    command = ["sha256sum", "--check", "--strict", "checksums.sha256"]
    checks = subprocess.run(command, cwd=demo / "results" / MODEL, capture_output=True, check=False)
    assert checks.returncode == 0, checks.stderr
    with plm_embed.open(demo / MASTER) as embeddings:
        assert len(embeddings) == counts.unique
        assert embeddings.dim == 32


def test_a_second_run_has_nothing_to_do(copy: Path) -> None:
    run = snakemake(copy, *ONE_THREAD)
    assert run.returncode == 0
    assert "Nothing to be done" in run.stdout
    assert re.search(
        rf"^plm-embed: {MODEL} \(random numbers, [^)]*\), 2 buckets; \d+ records "
        r"with \d+ unique sequences; 2 parts in",
        run.stdout,
        re.MULTILINE,
    )


def test_every_log_starts_with_the_command_that_repeats_its_step(copy: Path) -> None:
    logs = sorted(path for path in copy.glob("results/logs/**/*.log"))
    commands = {path.stem: path.read_text(encoding="utf-8").splitlines()[0] for path in logs}
    steps = [words.split()[2] for words in commands.values() if words.startswith("# plm-embed ")]
    assert sorted(steps) == [
        "deduplicate",
        "embed",
        "embed",
        "gather",
        "reference",
        "report",
        "validate",
        "weights",
    ]
    before = digests(copy)
    code = """
import sys
from plm_embed.cli.main import main
main()
sys.exit("torch" in sys.modules)  # only what computes loads it, for a second
"""
    for step in ("reference", "0000", "gather", "validate"):
        words = shlex.split(commands[step].removeprefix("# plm-embed "))
        subprocess.run([sys.executable, "-c", code, *words], cwd=copy, check=True)
    assert digests(copy) == before


def test_a_configuration_of_ones_own_stands_alone(demo: Path, tmp_path: Path) -> None:
    folder = working_folder(tmp_path / "work", weights_of=demo)
    (folder / "mine.csv").write_text("id,sequence\na,MKTAYIAKQR\nb,MKV\na,MKTAYIAKQR\n")
    mine = {"inputs": ["mine.csv"], "model": MODEL, "weights": "config/demo/esm2_t3_untrained.pt"}
    (folder / "mine.yaml").write_text(
        yaml.safe_dump(mine | {"buckets": 1, "speed": {"scratch": ""}})
    )
    run = snakemake(folder, GATHERED, "--cores", "2", "--configfile", str(folder / "mine.yaml"))
    assert run.returncode == 0, run.stdout
    records = pq.read_table(folder / f"results/{MODEL}/records.parquet")
    assert "assembly_id" not in records.column_names
    assert records["status"].to_pylist() == ["embedded"] * 3


def test_campaigns_share_weights_and_leave_each_other_alone(demo: Path, tmp_path: Path) -> None:
    folder = working_folder(tmp_path / "work", weights_of=demo)
    (folder / "a.fasta").write_text(">a\nMKTAYIAKQR\n")
    (folder / "b.fasta").write_text(">b\nMKV\n")
    state = checkpoints.random_state(MODELS[MODEL], 5)
    checkpoints.write_fair_esm(folder / "other.pt", MODELS[MODEL], state)
    shared = folder / "resources" / "weights" / MODEL

    def keys(name: str) -> dict[str, Any]:
        return {"inputs": [f"{name}.fasta"], "results": name, "buckets": 1}

    def run(name: str, *options: str, **config: Any) -> str:
        done = snakemake(folder, "--cores", "1", *options, **keys(name) | config)
        return f"{done.returncode} {done.stdout}"

    def files() -> dict[str, tuple[int, int]]:
        return {
            path.name: (path.stat().st_ino, path.stat().st_mtime_ns) for path in shared.iterdir()
        }

    before = files()
    assert sorted(before) == ["manifest.json", "model.safetensors", "self_test.npz"]
    goals = {"a": "gather", "b": "weights"}
    both = [
        subprocess.Popen(
            snakemake_command(folder, goal, "--cores", "1", **keys(name)),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        for name, goal in goals.items()
    ]
    for job in both:
        assert job.communicate()[1] and job.returncode == 0
    assert "Nothing to be done" in run("a", "--dry-run", "gather")
    refused = run("b", "weights", weights="other.pt")
    assert refused.startswith("1 ")
    assert f"weights_folder: resources/weights/{MODEL} holds other weights" in refused
    assert files() == before
    # what it says to do: a folder of its own
    own = {"weights": "other.pt", "weights_folder": "own"}
    assert run("b", "weights", **own).startswith("0 ")
    assert read_record(folder / "b" / MODEL) == read_manifest(folder / "own" / MODEL)
    # damage to a manifest or its copy, and what the messages say to do
    (folder / "b" / MODEL / "weights.json").write_text("{}")
    (folder / "own" / MODEL / "manifest.json").write_text("{}")
    for read in (
        lambda: read_record(folder / "b" / MODEL),
        lambda: read_manifest(folder / "own" / MODEL),
    ):
        with pytest.raises(PlmEmbedError, match=r"snakemake --forcerun .*weights\.json"):
            read()
    again = ("--forcerun", f"b/{MODEL}/weights.json")
    assert run("b", "weights", *again, **own).startswith("0 ")
    assert read_record(folder / "b" / MODEL) == read_manifest(folder / "own" / MODEL)
    assert files() == before


def test_a_campaign_without_a_single_vector_ends_in_words(demo: Path, tmp_path: Path) -> None:
    folder = working_folder(tmp_path / "work", weights_of=demo)
    (folder / "all.fasta").write_text(">a\nJJJJ\n>b\n123\n")
    run = snakemake(folder, "--cores", "2", inputs=["all.fasta"], buckets=1)
    assert run.returncode == 0, run.stdout
    assert pq.read_metadata(folder / INDEX).num_rows == 0
    assert "skipped when read" in (folder / f"results/{MODEL}/report.html").read_text(
        encoding="utf-8"
    )
    said = subprocess.run(
        [sys.executable, "-m", "plm_embed", "summary", "results"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert "2 records (2 unknown_residues)" in said
    assert "warning     none of the 2 records" in said


def test_a_grown_input_and_another_number_of_buckets_compute_only_what_is_new(copy: Path) -> None:
    (copy / "more.fasta").write_text(
        ">new\nMKVLAAGIVGLLLAQWERTY\n>known\n" + first_sequence(copy) + "\n", encoding="utf-8"
    )
    before = rows_in_store(copy)
    inputs = ["config/demo/proteins.fasta", "config/demo/proteins.csv", "more.fasta"]
    run = snakemake(copy, GATHERED, *ONE_THREAD, inputs=inputs, buckets=1)
    assert run.returncode == 0, run.stdout
    record = completion_records(copy)[0]
    assert (record.found, record.computed) == (before, 1)
    assert rows_in_store(copy) == before + 1
    index = pq.read_table(copy / INDEX).to_pylist()
    assert {row["id"] for row in index if row["source"] == "more.fasta"} == {"new", "known"}


def test_a_campaign_takes_everything_from_an_earlier_one(demo: Path, tmp_path: Path) -> None:
    later = working_folder(tmp_path / "later", buckets=1, weights_of=demo)
    run = snakemake(later, GATHERED, *ONE_THREAD, reuse=[str(demo / MASTER)])
    assert run.returncode == 0, run.stdout
    (record,) = completion_records(later)
    assert (record.computed, record.found) == (0, 0)
    assert record.reused == record.unique > 0
    assert compare(demo / MASTER, later / MASTER, 0).equal
    plan = snakemake(later, GATHERED, "-n")
    assert "taken from earlier results" in plan.stdout and "Nothing to be done" in plan.stdout
    other = {
        "embedding": {"pooling": ["max"]},
        "reuse": [str(demo / f"results/{MODEL}/store")],
    }
    refused = snakemake(later, "-n", **other)
    assert refused.returncode and "pooling is ['mean'] there, ['max'] here" in refused.stdout


def first_sequence(folder: Path) -> str:
    bucket = pq.read_table(folder / "results/sequences/buckets/0000.parquet")
    sequence: str = bucket["sequence"][0].as_py()
    return sequence


def test_empty_buckets_and_skipped_records_are_no_error(demo: Path, tmp_path: Path) -> None:
    folder = working_folder(tmp_path / "work", weights_of=demo)
    (folder / "few.fasta").write_text(">good\nMKV\n>bad\nMJV\n>empty\n", encoding="utf-8")
    one_job = {"buckets": 2, "speed": {"buckets_per_submission": 2}}
    run = snakemake(folder, GATHERED, *ONE_THREAD, inputs=["few.fasta"], **one_job)
    assert run.returncode == 0, run.stdout
    assert sorted(record.unique for record in completion_records(folder)) == [0, 1]
    fates = [
        (row["id"], row["status"])
        for row in pq.read_table(folder / f"results/{MODEL}/records.parquet").to_pylist()
    ]
    assert fates == [("good", "embedded"), ("bad", "skipped"), ("empty", "skipped")]


def test_the_demo_reads_from_any_folder(demo: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-m", "plm_embed", "summary", str(demo / "results")],
        capture_output=True,
        text=True,
        check=True,
    )
    assert str(ROOT) not in run.stdout
    assert "records" in run.stdout


@pytest.mark.parametrize("mode", ["one_job", "by_input"])
def test_inputs_and_columns_may_look_like_options_and_wildcards(mode: str, tmp_path: Path) -> None:
    folder = working_folder(tmp_path / "work")
    for name, residues in (("-x.csv", "MKV"), ("--help", "MKVA")):
        (folder / name).write_text(
            f"{{id}},<results>,-k{{y}}\n{name},{residues},1\n", encoding="utf-8"
        )
    table = {"id": "{id}", "sequence": "<results>", "keep": ["-k{y}"]}
    settings = {"inputs": ["-x.csv", "--help"], "table": table, "deduplicate": mode, "buckets": 1}
    goal = "results/sequences/records.parquet"
    done = snakemake(folder, "--cores", "2", goal, **settings)
    assert done.returncode == 0, done.stdout
    records = pq.read_table(folder / goal).to_pylist()
    assert [(one["id"], one["length"], one["-k{y}"]) for one in records] == [
        ("-x.csv", 3, "1"),
        ("--help", 4, "1"),
    ]
