"""Whole campaigns as users run them: the demo, configurations of their own, growing inputs."""

import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import h5py
import pyarrow.parquet as pq
import pytest
import yaml

import plm_embed
from plm_embed.errors import PlmEmbedError
from plm_embed.models.registry import MODELS
from plm_embed.models.weights import read_manifest, read_record
from plm_embed.reading.diff import compare
from plm_embed.reporting.watch import look
from plm_embed.sequences.summary import read_summary
from support import checkpoints
from support.campaign_runs import ROOT, snakemake, snakemake_command, working_folder
from support.demo import (
    GATHERED,
    INDEX,
    MASTER,
    MODEL,
    ONE_THREAD,
    TABLE,
    completion_records,
    digests,
    rows_in_store,
)

pytestmark = pytest.mark.workflow


def test_the_demo_ends_with_a_proven_master(demo: Path) -> None:
    counts = read_summary(demo / "results/sequences")
    records = pq.read_table(demo / f"results/{MODEL}/records.parquet").to_pylist()
    assert len(records) == counts.records == counts.accepted + sum(counts.skipped.values())
    assert (
        sum(record["status"] != "skipped" for record in records)
        == pq.read_metadata(demo / INDEX).num_rows
    )
    assert sum(record.computed for record in completion_records(demo)) == counts.unique
    assert look(demo / "results").finished
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


def test_every_log_starts_with_the_command_that_repeats_its_step(copy: Path) -> None:
    logs = sorted(path for path in copy.glob("results/logs/**/*.log"))
    first = {path.stem: path.read_text(encoding="utf-8").splitlines()[0] for path in logs}
    commands = {name: line.partition("plm-embed ")[2] for name, line in first.items()}
    assert all(line.startswith("# ") for line in first.values())
    assert sorted(words.split()[0] for words in commands.values()) == [
        "deduplicate",
        "embed",
        "embed",
        "gather",
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
    for step in ("0000", "gather"):
        words = shlex.split(commands[step])
        subprocess.run([sys.executable, "-c", code, *words], cwd=copy, check=True)
    assert digests(copy) == before


def test_a_configuration_of_ones_own_needs_only_what_differs(tmp_path: Path) -> None:
    folder = working_folder(tmp_path / "work", buckets=1)
    (folder / "mine.csv").write_text("id,sequence\na,MKTAYIAKQR\nb,MKV\na,MKTAYIAKQR\n")
    (folder / "mine.yaml").write_text(yaml.safe_dump({"inputs": ["mine.csv"]}))
    mine = ("--cores", "2", "--configfile", str(folder / "mine.yaml"))
    refused = snakemake(folder, "-n", *mine)
    assert refused.returncode == 1 and "model: missing: only the demo takes" in refused.stdout
    (folder / "mine.yaml").write_text(yaml.safe_dump({"inputs": ["mine.csv"], "model": MODEL}))
    run = snakemake(folder, GATHERED, *mine)
    assert run.returncode == 0, run.stdout
    records = pq.read_table(folder / f"results/{MODEL}/records.parquet")
    assert "assembly_id" not in records.column_names
    assert records["status"].to_pylist() == ["embedded"] * 3
    assert len(completion_records(folder)) == 1


def test_campaigns_at_once_share_prepared_weights_and_other_ones_lie_beside_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = working_folder(tmp_path / "work")
    monkeypatch.setenv("PLM_EMBED_WEIGHTS", str(folder / "cache"))
    (folder / "a.fasta").write_text(">a\nMKTAYIAKQR\n")
    state = checkpoints.random_state(MODELS[MODEL], 5)
    checkpoints.write_fair_esm(folder / "other.pt", MODELS[MODEL], state)

    def keys(name: str, **more: Any) -> dict[str, Any]:
        return {"inputs": ["a.fasta"], "results": name, "buckets": 1, **more}

    goals = {name: f"{name}/{MODEL}/records.parquet" for name in ("a", "b")}
    both = [
        subprocess.Popen(
            snakemake_command(folder, goal, "--cores", "1", "--nolock", **keys(name)),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        for name, goal in goals.items()
    ]
    for job in both:
        assert job.communicate()[1] and job.returncode == 0
    (shared,) = (folder / "cache").glob("*/manifest.json")
    assert sorted(path.name for path in shared.parent.iterdir()) == [
        *("lm_head.safetensors", "manifest.json", "model.safetensors", "self_test.npz")
    ]
    before = shared.stat().st_mtime_ns
    record = f"c/{MODEL}/weights.json"
    other = snakemake(folder, record, "--cores", "1", **keys("c", weights="other.pt"))
    assert other.returncode == 0, other.stdout
    made = [read_record(folder / name / MODEL) for name in ("a", "b", "c")]
    assert all(one and one.folder and read_manifest(Path(one.folder)) for one in made)
    assert made[0] and made[2] and made[0] == made[1] and made[0].folder != made[2].folder
    assert shared.stat().st_mtime_ns == before
    # damage to a record, and what the message says to do
    (folder / record).write_text("{}")
    with pytest.raises(PlmEmbedError, match=r"delete .*weights\.json and run"):
        read_record(folder / "c" / MODEL)
    (folder / record).unlink()
    again = snakemake(folder, record, "--cores", "1", **keys("c", weights="other.pt"))
    assert again.returncode == 0 and read_record(folder / "c" / MODEL) == made[2]


def test_a_campaign_without_a_single_vector_ends_in_words(tmp_path: Path) -> None:
    folder = working_folder(tmp_path / "work")
    (folder / "all.fasta").write_text(">a\nJJJJ\n>b\n123\n")
    run = snakemake(folder, "--cores", "2", inputs=["all.fasta"], buckets=1)
    assert run.returncode == 0, run.stdout
    assert pq.read_metadata(folder / INDEX).num_rows == 0
    assert "skipped: unknown residues" in (folder / f"results/{MODEL}/report.html").read_text(
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
    inputs = ["config/demo/proteins.fasta", TABLE, "more.fasta"]
    run = snakemake(copy, GATHERED, *ONE_THREAD, inputs=inputs, buckets=1)
    assert run.returncode == 0, run.stdout
    record = completion_records(copy)[0]
    assert (record.found, record.computed) == (before, 1)
    assert rows_in_store(copy) == before + 1
    index = pq.read_table(copy / INDEX).to_pylist()
    assert {row["id"] for row in index if row["source"] == "more.fasta"} == {"new", "known"}


def test_a_campaign_takes_everything_from_an_earlier_one(demo: Path, tmp_path: Path) -> None:
    """They share a store."""
    later = working_folder(tmp_path / "later", buckets=1)
    shutil.copytree((demo / MASTER).parent / "store", tmp_path / "store")
    run = snakemake(later, GATHERED, *ONE_THREAD, store=str(tmp_path / "store"))
    assert run.returncode == 0, run.stdout
    (record,) = completion_records(later)
    assert record.computed == 0
    assert record.found == record.unique > 0
    assert compare(demo / MASTER, later / MASTER, 0).equal


def first_sequence(folder: Path) -> str:
    bucket = pq.read_table(folder / "results/sequences/buckets/0000.parquet")
    sequence: str = bucket["sequence"][0].as_py()
    return sequence


def test_empty_buckets_and_skipped_records_are_no_error(tmp_path: Path) -> None:
    folder = working_folder(tmp_path / "work")
    (folder / "few.fasta").write_text(">good\nMKV\n>bad\nMJV\n>empty\n", encoding="utf-8")
    run = snakemake(folder, GATHERED, *ONE_THREAD, inputs=["few.fasta"], buckets=2)
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


def test_inputs_and_columns_may_look_like_options_and_wildcards(tmp_path: Path) -> None:
    folder = working_folder(tmp_path / "work", buckets=1)
    for name, residues in (("-x.csv", "MKV"), ("--help", "MKVA")):
        (folder / name).write_text(
            f"{{id}},<results>,-k{{y}}\n{name},{residues},1\n", encoding="utf-8"
        )
    table = {"id": "{id}", "sequence": "<results>", "keep": ["-k{y}"]}
    inputs = [{"path": "-x.csv", **table}, {"path": "--help", **table, "keep": []}]
    goal = "results/sequences/records.parquet"
    done = snakemake(folder, "--cores", "2", goal, inputs=inputs)
    assert done.returncode == 0, done.stdout
    records = pq.read_table(folder / goal).to_pylist()
    assert [(one["id"], one["length"], one["-k{y}"]) for one in records] == [
        ("-x.csv", 3, "1"),
        ("--help", 4, None),
    ]


def test_imported_vectors_are_used_and_named(copy: Path) -> None:
    """From a file of another layout, which lacks some sequences, to a valid master."""
    table = pq.read_table(copy / INDEX, columns=["id", "cache_key", "row"])
    with h5py.File(copy / MASTER) as file:
        vectors = file["emb"][...].astype("f4")[table["row"].to_numpy()].tolist()
    pq.write_table(table.append_column("v", [vectors]).slice(20), copy / "other.parquet")
    model = f"results/{MODEL}"
    command = [sys.executable, "-m", "plm_embed", "import", "other.parquet"]
    command += ["--sequences", "config/demo/proteins.fasta"]
    command += ["--sequences", "config/demo/proteins.csv", "--id-column", "protein_id"]
    command += ["--weights", f"{model}/weights.json", "--store", "imported"]
    done = subprocess.run(command, cwd=copy, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    before = digests(copy)
    for folder in ("embedded", "store"):
        shutil.rmtree(copy / model / folder)
    run = snakemake(copy, *ONE_THREAD, store="imported")
    assert run.returncode == 0, run.stdout
    unique = read_summary(copy / "results/sequences").unique
    assert 0 < sum(record.computed for record in completion_records(copy)) <= 20 < unique
    with plm_embed.open(copy / MASTER) as embeddings:
        assert "unknown (imported)" in embeddings.metadata["devices"]
        assert "another program" in embeddings.metadata["batch_invariance"]
    assert digests(copy) != before
    assert "unknown (imported)" in (copy / model / "report.html").read_text(encoding="utf-8")
