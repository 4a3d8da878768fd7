"""The whole workflow, run as a user runs it: the demo, going on after a kill, growing inputs,
damage.
"""

import gzip
import hashlib
import random
import re
import shlex
import shutil
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import h5py
import psutil
import pyarrow.parquet as pq
import pytest
import yaml

import plm_embed
from plm_embed.errors import PlmEmbedError
from plm_embed.jobs.completion_record import Completion, read_completion
from plm_embed.master.validation_record import Validation, read_validation
from plm_embed.models.manifest import read_manifest, read_record
from plm_embed.models.registry import MODELS
from plm_embed.reporting.screen.watch import Watch
from plm_embed.sequences.summary import read_summary
from support import checkpoints
from support.campaign_runs import ROOT, snakemake, snakemake_command, working_folder

pytestmark = pytest.mark.workflow

MODEL = "esm2_t3_untrained"
MASTER = f"results/{MODEL}/master_esm2_embeddings.h5"
INDEX = f"results/{MODEL}/master_esm2_embeddings.parquet"
ONE_THREAD = ("--cores", "2", "--set-threads", "embed=1")


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo's working folder after the workflow ran in it once. Tests that change it work on a
    copy.
    """
    folder = working_folder(tmp_path_factory.mktemp("demo") / "work", buckets=2)
    run = snakemake(folder, *ONE_THREAD)
    assert run.returncode == 0, run.stdout
    assert "to follow this run: plm-embed watch results" in run.stdout
    assert f"\nreport   results/{MODEL}/report.html\nnext     plm-embed summary" in run.stdout
    return folder


@pytest.fixture
def copy(demo: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(demo, tmp_path / "work"))


@pytest.fixture(scope="module")
def by_input(demo: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same campaign, deduplicated anew by a job per input file."""
    folder = Path(shutil.copytree(demo, tmp_path_factory.mktemp("by_input") / "work"))
    run = snakemake(folder, *ONE_THREAD, deduplicate="by_input")
    assert run.returncode == 0, run.stdout
    return folder


def digests(folder: Path) -> dict[str, str]:
    files = (MASTER, INDEX, f"results/{MODEL}/records.parquet")
    return {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in files}


def completion_records(folder: Path) -> list[Completion]:
    paths = sorted((folder / "results" / MODEL / "embedded").glob("*.json"))
    return [read_completion(path) for path in paths]


def parts(folder: Path) -> list[Path]:
    return list(folder.glob(f"results/{MODEL}/store/*/parts/[!.]*.h5"))


def rows_in_store(folder: Path) -> int:
    """Vectors in all parts, by their names; a vector that was computed twice counts twice."""
    return sum(int(path.name.split("-")[2]) for path in parts(folder))


def report(folder: Path) -> Validation:
    found = read_validation(folder / "results" / MODEL / "validation.json")
    assert found
    return found


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


def test_a_second_run_has_nothing_to_do(demo: Path) -> None:
    run = snakemake(demo, *ONE_THREAD)
    assert run.returncode == 0
    assert "Nothing to be done" in run.stdout
    assert re.search(
        rf"^plm-embed: {MODEL} \(random numbers, [^)]*\), 2 buckets; \d+ records "
        r"with \d+ unique sequences; 2 parts in",
        run.stdout,
        re.MULTILINE,
    )


@pytest.mark.parametrize(
    ("mode", "damaged", "step"),
    [
        ("one_job", "buckets/0001.parquet", "embed"),
        ("one_job", "summary.json", "gather"),
        ("by_input", "members/0001.parquet", "gather"),
        ("by_input", "records.parquet", "validate"),
    ],
)
def test_what_is_said_about_a_damaged_sequence_file_makes_the_campaign_whole(
    mode: str, damaged: str, step: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    whole = request.getfixturevalue("demo" if mode == "one_job" else mode)
    before = digests(whole)
    copy = Path(shutil.copytree(whole, tmp_path / "work"))
    path = copy / "results/sequences" / damaged
    content = bytearray(path.read_bytes())
    content[len(content) // 3] ^= 4
    path.write_bytes(content)
    run = snakemake(copy, *ONE_THREAD, "--forcerun", step, deduplicate=mode)
    assert run.returncode == 1
    logs = "".join(
        log.read_text(encoding="utf-8") for log in copy.glob(f"results/logs/{MODEL}/**/*.log")
    )
    (said,) = set(re.findall(rf"results/sequences/{damaged}: .*; run `snakemake ([^`]*)`", logs))
    healed = snakemake(copy, *ONE_THREAD, *shlex.split(said), deduplicate=mode)
    assert healed.returncode == 0, healed.stdout
    assert digests(copy) == before and report(copy).status == "passed"


def test_every_log_starts_with_the_command_that_repeats_its_step(copy: Path) -> None:
    logs = sorted(path for path in copy.glob("results/logs/**/*.log"))
    commands = {path.stem: path.read_text(encoding="utf-8").splitlines()[0] for path in logs}
    steps = [words.split()[2] for words in commands.values() if words.startswith("# plm-embed ")]
    assert sorted(steps) == [
        "deduplicate",
        *["embed"] * 2,
        "gather",
        "report",
        "validate",
        "weights",
    ]
    before = digests(copy)
    for step in ("0001", "gather"):
        assert commands[step].startswith("# plm-embed ")
        words = shlex.split(commands[step].removeprefix("# plm-embed "))
        subprocess.run(
            [sys.executable, "-m", "plm_embed", *words], cwd=copy, check=True, capture_output=True
        )
    assert digests(copy) == before


def test_a_configuration_of_ones_own_stands_alone(tmp_path: Path) -> None:
    folder = working_folder(tmp_path / "work")
    (folder / "mine.csv").write_text("id,sequence\na,MKTAYIAKQR\nb,MKV\na,MKTAYIAKQR\n")
    mine = {"inputs": ["mine.csv"], "model": MODEL, "weights": "config/demo/esm2_t3_untrained.pt"}
    (folder / "mine.yaml").write_text(
        yaml.safe_dump(mine | {"buckets": 1, "speed": {"scratch": ""}})
    )
    run = snakemake(folder, "--cores", "2", "--configfile", str(folder / "mine.yaml"))
    assert run.returncode == 0, run.stdout
    records = pq.read_table(folder / f"results/{MODEL}/records.parquet")
    assert "assembly_id" not in records.column_names
    assert records["status"].to_pylist() == ["embedded"] * 3


def test_campaigns_share_weights_and_leave_each_other_alone(tmp_path: Path) -> None:
    folder = working_folder(tmp_path / "work")
    (folder / "a.fasta").write_text(">a\nMKTAYIAKQR\n")
    (folder / "b.fasta").write_text(">b\nMKV\n")
    state = checkpoints.random_state(MODELS[MODEL], 5)
    checkpoints.write_fair_esm(folder / "other.pt", MODELS[MODEL], state)
    shared = folder / "resources" / "weights" / MODEL

    def run(name: str, *options: str, **config: Any) -> list[str]:
        keys = {
            "inputs": [f"{name}.fasta"],
            "results": name,
            "buckets": 1,
            "speed": {"scratch": ""},
        }
        return snakemake_command(folder, "--cores", "1", *options, **keys | config)

    def said(command: list[str]) -> str:
        return subprocess.run(command, check=False, capture_output=True, text=True).stdout

    def files() -> dict[str, tuple[int, int]]:
        return {
            path.name: (path.stat().st_ino, path.stat().st_mtime_ns) for path in shared.iterdir()
        }

    subprocess.run(run("a", "weights"), check=True, capture_output=True)
    before = files()
    assert sorted(before) == ["manifest.json", "model.safetensors", "self_test.npz"]
    both = [
        subprocess.Popen(run(name, "gather"), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        for name in "ab"
    ]
    for job in both:
        assert job.communicate()[1] and job.returncode == 0
    assert "Nothing to be done" in said(run("a", "--dry-run", "gather"))
    refused = subprocess.run(
        run("b", "gather", weights="other.pt"), check=False, capture_output=True, text=True
    )
    assert refused.returncode == 1
    assert f"weights_folder: resources/weights/{MODEL} holds other weights" in refused.stderr
    assert files() == before
    # what it says to do: a folder of its own
    own = run("b", "weights", weights="other.pt", weights_folder="own")
    subprocess.run(own, check=True, capture_output=True)
    assert read_record(folder / "b" / MODEL) == read_manifest(folder / "own" / MODEL)
    # damage to a manifest or its copy, and what the messages say to do
    (folder / "b" / MODEL / "weights.json").write_text("{}")
    (folder / "own" / MODEL / "manifest.json").write_text("{}")
    for read in (
        lambda: read_record(folder / "b" / MODEL),
        lambda: read_manifest(folder / "own" / MODEL),
    ):
        with pytest.raises(PlmEmbedError, match="snakemake --forcerun weights"):
            read()
    healed = run("b", "weights", "--forcerun", "weights", weights="other.pt", weights_folder="own")
    subprocess.run(healed, check=True, capture_output=True)
    assert read_record(folder / "b" / MODEL) == read_manifest(folder / "own" / MODEL)
    assert files() == before


def test_a_campaign_without_a_single_vector_ends_in_words(tmp_path: Path) -> None:
    folder = working_folder(tmp_path / "work")
    (folder / "all.fasta").write_text(">a\nJJJJ\n>b\n123\n")
    run = snakemake(folder, "--cores", "2", inputs=["all.fasta"], buckets=2)
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


def test_the_number_of_buckets_leaves_no_trace_in_the_result(demo: Path, tmp_path: Path) -> None:
    folder = working_folder(tmp_path / "work")
    run = snakemake(folder, "--cores", "2", buckets=1, speed={"toks_per_batch": 700})
    assert run.returncode == 0, run.stdout
    assert digests(folder) == digests(demo)


def test_another_number_of_buckets_computes_nothing_again(copy: Path, demo: Path) -> None:
    run = snakemake(copy, *ONE_THREAD, buckets=1)
    assert run.returncode == 0, run.stdout
    assert completion_records(copy)[0].computed == 0
    assert digests(copy) == digests(demo)


def test_a_grown_input_computes_only_what_is_new(copy: Path) -> None:
    (copy / "more.fasta").write_text(
        ">new\nMKVLAAGIVGLLLAQWERTY\n>known\n" + first_sequence(copy) + "\n", encoding="utf-8"
    )
    before = rows_in_store(copy)
    inputs = ["config/demo/proteins.fasta", "config/demo/proteins.csv", "more.fasta"]
    run = snakemake(copy, *ONE_THREAD, inputs=inputs)
    assert run.returncode == 0, run.stdout
    assert rows_in_store(copy) == before + 1
    index = pq.read_table(copy / INDEX).to_pylist()
    assert {row["id"] for row in index if row["source"] == "more.fasta"} == {"new", "known"}


def first_sequence(folder: Path) -> str:
    bucket = pq.read_table(folder / "results/sequences/buckets/0000.parquet")
    sequence: str = bucket["sequence"][0].as_py()
    return sequence


def test_empty_buckets_and_skipped_records_are_no_error(tmp_path: Path) -> None:
    folder = working_folder(tmp_path / "work")
    (folder / "few.fasta").write_text(">good\nMKV\n>bad\nMJV\n>empty\n", encoding="utf-8")
    run = snakemake(folder, *ONE_THREAD, inputs=["few.fasta"], buckets=2)
    assert run.returncode == 0, run.stdout
    assert sorted(record.unique for record in completion_records(folder)) == [0, 1]
    fates = [
        (row["id"], row["status"])
        for row in pq.read_table(folder / f"results/{MODEL}/records.parquet").to_pylist()
    ]
    assert fates == [("good", "embedded"), ("bad", "skipped"), ("empty", "skipped")]


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


@pytest.mark.parametrize("victim", ["the embed job", "everything"])
def test_kill_9_loses_only_what_no_part_holds(victim: str, demo: Path, tmp_path: Path) -> None:
    folder = working_folder(tmp_path / "work")
    # one sequence or so per batch and a part per batch, so that there is an instant to hit
    settings: dict[str, Any] = {
        "buckets": 1,
        "speed": {"toks_per_batch": 600, "flush_minutes": 1e-6},
    }
    run = subprocess.Popen(
        snakemake_command(folder, *ONE_THREAD, **settings),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    wanted = random.randint(1, 20)
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

    if victim == "everything":
        locked = snakemake(folder, *ONE_THREAD, **settings)
        assert locked.returncode and "--unlock" in locked.stdout
        assert snakemake(folder, "--unlock").returncode == 0
    again = snakemake(folder, *ONE_THREAD, **settings)
    assert again.returncode == 0, again.stdout
    (record,) = completion_records(folder)
    assert record.found == kept
    assert record.computed == record.unique - kept
    assert digests(folder) == digests(demo)


def test_damage_fails_the_run_names_itself_and_leaves_the_report(copy: Path) -> None:
    with h5py.File(copy / MASTER, "r+") as master:
        master["emb"][5] = 0
    run = snakemake(copy, *ONE_THREAD)
    assert run.returncode != 0
    assert "is not valid" in run.stdout
    assert report(copy).status == "failed"
    assert not (copy / f"results/{MODEL}/checksums.sha256").exists()


def test_a_missing_part_is_named_with_what_to_run(copy: Path) -> None:
    part = parts(copy)[0]
    part.unlink()
    (copy / MASTER).unlink()
    run = snakemake(copy, *ONE_THREAD)
    assert run.returncode != 0
    assert part.name in run.stdout
    repaired = snakemake(copy, *ONE_THREAD, "--forcerun", "embed")
    assert repaired.returncode == 0, repaired.stdout


def test_a_failed_job_shows_its_error_and_its_log(tmp_path: Path) -> None:
    folder = working_folder(tmp_path / "work")
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


def test_a_monstrous_setting_is_refused_in_words(tmp_path: Path) -> None:
    folder = working_folder(tmp_path / "work")
    for value in ("[" * 2000 + "]" * 2000, "[" * 20_000):
        done = snakemake(folder, "--cores", "1", "-n", buckets=value)
        assert done.returncode == 1 and "Traceback" not in done.stdout
        assert "buckets: " in done.stdout and len(done.stdout) < 2000
