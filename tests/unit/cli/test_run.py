"""`plm-embed run` up to the call of Snakemake: its configuration, and the command."""

import json
import os
import shutil
import subprocess
import sys
from itertools import takewhile
from pathlib import Path

import psutil
import pytest
import yaml
from click.testing import CliRunner

from plm_embed.cli import snakemake_call
from plm_embed.cli.main import group
from plm_embed.cli.run_config import (
    configuration,
    snakemake_options,
    with_inputs_checked,
    write_configuration,
)
from plm_embed.cli.snakemake_call import RUN, execute
from plm_embed.errors import ConfigError, PlmEmbedError
from plm_embed.io.json_files import write_sealed
from plm_embed.models.weights import read_manifest
from plm_embed.workflow.call import CLONE, profile_folder, shell_line
from plm_embed.workflow.run_note import host
from support.checkpoints import DEMO

MODEL = "esm2_t6_8M_UR50D"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "some.fasta").write_text(">a\nMKTAYIAK\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    return tmp_path


def given(**more: object) -> dict[str, object]:
    return {"inputs": ["some.fasta"], "model": [MODEL], "results": "out", **more}


def write(*settings: str, **keys: object) -> Path:
    config = configuration(given(**keys), settings)
    return write_configuration(config, snakemake_options(config, "", 2))


def test_the_file_is_complete_so_that_no_other_one_is_merged_into_it() -> None:
    shutil.copy("some.fasta", "more.fasta")
    keep = ["a"]
    tables = [{"path": "some.fasta", "keep": keep}, {"path": "more.fasta", "keep": keep}]
    path = write(
        "embedding.layers=[3,-1]",
        "embedding.long_sequences.max_residues=50",
        "embedding.long_sequences.policy=crop",
        inputs=tables,
    )
    assert path == Path("out/config.yaml")
    text = path.read_text(encoding="utf-8")
    written = yaml.safe_load(text)
    assert (written["inputs"], written["model"]) == (tables, MODEL) and "&" not in text
    assert (written["buckets"], written["validate"]) == (4, {"spot_checks": 16})
    assert written["embedding"]["layers"] == [3, -1]
    assert written["embedding"]["long_sequences"]["max_residues"] == 50


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("embeding.layers=[1]", "did you mean embedding?"),
        ("embedding.layers=[99]", "has layers 0 to 6"),
        ("buckets", "write KEY=VALUE"),
        ("embedding.layers=[1", "the value is not YAML"),
        ("buckets=many", "is not of type 'integer'"),
    ],
)
def test_a_wrong_setting_is_named(setting: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words.replace("?", r"\?")):
        configuration(given(), [setting])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["sume.fasta"], "inputs: sume.fasta: not found; did you mean some.fasta?"),
        (["t.csv", "--id", "nr"],
         "t.csv: no column 'nr'; the columns are 'id', 'lab'; name yours: --id NAME"),
        (["t.csv", "--keep", "Lab"], "t.csv: no column 'Lab'; the columns are 'id', 'lab'; did you "
         "mean 'lab'?; name yours: --keep lab"),
    ],
)  # fmt: skip
def test_inputs_are_looked_at_before_anything_is_written(arguments: list[str], words: str) -> None:
    Path("t.csv").write_text("id,lab\n1,MK\n", encoding="utf-8")
    words_of_run = ["run", *arguments, "--model", "esm2_t3_untrained", "--sequence", "lab"]
    with pytest.raises(PlmEmbedError) as found:
        CliRunner().invoke(group, words_of_run, catch_exceptions=False)
    assert str(found.value) == words
    assert not Path("results").exists()


def test_only_tables_have_columns() -> None:
    Path("t.csv").write_text("nr,lab\n1,MK\n", encoding="utf-8")
    columns = {"id": "nr", "sequence": "lab", "keep": ["lab"]}
    config = given(inputs=[{"path": path} | columns for path in ("some.fasta", "t.csv")])
    checked = with_inputs_checked(configuration(config, []))
    assert checked["inputs"] == ["some.fasta", {"path": "t.csv"} | columns]


def test_only_vectors_are_kept_from_being_replaced() -> None:
    for name in ("more.fasta", "w.pt", "x.pt"):
        shutil.copy("some.fasta", name)
    table = {"path": "some.fasta", "keep": ["a", "b"]}
    write("buckets=3", weights="w.pt", inputs=["more.fasta"])
    path = write("buckets=3", weights="x.pt", inputs=[table])  # nothing is embedded yet
    record = Path("out") / MODEL / "embedded" / "0000.json"
    record.parent.mkdir(parents=True)
    record.touch()
    both = [table | {"keep": ["a"]}, "more.fasta"]
    write("buckets=5", "embedding.per_residue_limit_gb=500", model=[MODEL, "prott5"], inputs=both)
    assert yaml.safe_load(path.read_text(encoding="utf-8"))["inputs"] == both
    with pytest.raises(
        ConfigError, match=r"differ: they also include some.fasta; choose another"
    ) as found:
        write(inputs=["more.fasta"])
    assert found.value.key == "inputs"
    with pytest.raises(ConfigError, match=r"embedding.layers: \[-1\], not \[3\]; choose another"):
        write("embedding.layers=[3]", inputs=both)
    with pytest.raises(ConfigError, match=r"residues.gaps: remove, not skip"):
        write("residues.gaps=skip", inputs=both)


def test_vectors_of_other_weights_are_not_replaced(prepared: Path) -> None:
    untrained = ["esm2_t3_untrained"]
    path = write(model=untrained, weights=str(DEMO))
    record = Path("out") / untrained[0] / "embedded" / "0000.json"
    record.parent.mkdir(parents=True)
    record.touch()
    write_sealed(record.parent.with_name("weights.json"), read_manifest(prepared))
    shutil.copy(DEMO, "same.pt")
    write(model=untrained, weights="same.pt")
    Path("other.pt").write_bytes(DEMO.read_bytes() + b"0")
    for weights in ("other.pt", ""):
        with pytest.raises(ConfigError, match="the weights of esm2_t3_untrained are others than"):
            write(model=untrained, weights=weights)
    path.unlink()
    write(model=untrained, weights="other.pt")


def test_results_that_were_moved_are_the_same_campaign(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write("buckets=3")
    record = Path("out") / MODEL / "embedded" / "0000.json"
    record.parent.mkdir(parents=True)
    record.touch()
    Path("elsewhere").mkdir()
    path.parent.rename("elsewhere/moved")
    monkeypatch.chdir("elsewhere")
    write("buckets=3", results="moved", inputs=["../some.fasta"])
    write("buckets=3", results="moved", inputs=[str(here / "some.fasta")])


def test_weights_are_named_by_model_whatever_its_name() -> None:
    Path("w.pt").touch()
    models = given(model=["esm2_8m", "nt-2.5b-1000g"])
    with pytest.raises(ConfigError, match="reads"):
        configuration(models, ["weights.nt-2.5b-1000g=w.pt"])
    alone = given(model=["nt-2.5b-1000g"], weights="")  # as the command gives it
    config = configuration(alone, ["weights.nt-2.5b-1000g=w.pt"])
    assert config["weights"] == {"nt-2.5b-1000g": "w.pt"}
    with pytest.raises(ConfigError, match=r"--set weights\.a=b: weights is already w\.pt"):
        configuration(alone | {"weights": "w.pt"}, ["weights.a=b"])


def test_where_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    config = configuration(given(), [])
    common = ["--configfile", "out/config.yaml"]
    common += ["--workflow-profile", str(CLONE / "profiles" / "default")]
    assert snakemake_options(config, "", 3) == [*common, "--cores", "3"]
    shipped = str(CLONE / "profiles" / "slurm")
    assert snakemake_options(config, "slurm", None) == [*common, "--profile", shipped]
    assert profile_folder("slurm") == shipped
    assert f"--snakefile {CLONE}/workflow/Snakefile --conf" in shell_line(common)
    monkeypatch.chdir(CLONE)
    assert "--snakefile" not in shell_line(common)
    assert profile_folder("slurm") == "slurm", "the link in a clone, as it was typed"
    assert (
        snakemake_options(config, "mine", None)[-1] == "mine"
    )  # a folder, or of ~/.config/snakemake
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    words = " ".join(snakemake_options(config, "", None))
    assert "--resources gpu=2 --set-resources embed:gpu=2 --cores" in words
    assert "embed:device=cpu --cores" in " ".join(snakemake_options(config, "", None, "cpu"))


def test_a_lock_that_may_be_alive_is_named_with_what_to_do(here: Path) -> None:
    (here / "random.py").write_text("raise SystemExit('executed')")
    options = ["--configfile", str(write("buckets=1")), "--cores", "1"]

    def run(*more: str) -> None:
        execute([*options, *more], Path("out"), [MODEL])

    run("--dry-run")
    assert not RUN.exists()
    locks = here / ".snakemake" / "locks"
    locks.mkdir(parents=True, exist_ok=True)
    (locks / "0.output.lock").write_text("out/sequences/summary.json\n")
    with pytest.raises(PlmEmbedError, match=r"or was killed; wait for .*--unlock`, then"):
        run()
    with pytest.raises(PlmEmbedError, match="a step failed\nSnakemake's messages are above"):
        run("--nolock", "--until", "nothing")


def leave_a_lock(**note: object) -> None:
    """Leave what a run of this host leaves when it is killed."""
    locks = RUN.parent / "locks"
    locks.mkdir(parents=True, exist_ok=True)
    RUN.touch()
    began = RUN.stat().st_mtime_ns
    for kind in ("input", "output"):
        (locks / f"0.{kind}.lock").write_text("x\n")
    RUN.write_text(json.dumps({"host": host(), "began": began, "local": True} | note))


def test_only_a_lock_of_a_killed_run_on_this_host_is_stale(here: Path) -> None:
    assert not snakemake_call._lock_is_stale()
    leave_a_lock()
    assert snakemake_call._lock_is_stale()
    leave_a_lock(local=False)
    assert not snakemake_call._lock_is_stale(), "jobs may still be with a scheduler"
    leave_a_lock(host="another")
    assert not snakemake_call._lock_is_stale()
    leave_a_lock(began=RUN.stat().st_mtime_ns + 10**12)
    assert not snakemake_call._lock_is_stale(), "made before that run"
    leave_a_lock()
    lock = RUN.parent / "locks" / "0.output.lock"
    os.utime(lock, ns=(0, RUN.stat().st_mtime_ns + 10**9))
    assert not snakemake_call._lock_is_stale(), "made after that run's last line"
    leave_a_lock()
    (RUN.parent / "locks" / "1.output.lock").touch()
    RUN.touch()
    assert not snakemake_call._lock_is_stale(), "there is another lock"
    (RUN.parent / "locks" / "1.output.lock").unlink()
    assert snakemake_call._lock_is_stale()
    wait = [sys.executable, "-c", "input()", "-m", "plm_embed", "embed"]
    with subprocess.Popen(wait, cwd=here, stdin=subprocess.PIPE) as step:
        assert not snakemake_call._lock_is_stale(), "a step still works"
        step.communicate(b"\n")
    with subprocess.Popen(wait, cwd=here.parent, stdin=subprocess.PIPE) as step:
        assert snakemake_call._lock_is_stale(), "it works in another folder"
        step.communicate(b"\n")


@pytest.mark.workflow
def test_the_same_command_goes_on_after_snakemake_was_killed(here: Path) -> None:
    words = ["run", str(here / "some.fasta"), "--model", "esm2_t3_untrained", "--results", "out"]
    command = [sys.executable, "-m", "plm_embed", *words, "--set", "buckets=1", "--cores", "1"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as run:
        assert run.stderr
        lines = list(takewhile("Select jobs to execute...\n".__ne__, run.stderr))
        (snakemake,) = psutil.Process(run.pid).children()
        steps = snakemake.children(recursive=True)
        snakemake.kill()
        _, rest = run.communicate()
    assert run.returncode == 1, lines
    assert "Snakemake was killed (SIGKILL); rerun the same command; finished work is kept" in rest
    for step in steps:
        step.wait()
    watch = [sys.executable, "-m", "plm_embed", "watch", "out"]
    seen = subprocess.run(watch, capture_output=True, text=True, check=False)
    assert seen.returncode == 1 and "Snakemake was killed" in seen.stdout, seen.stdout
    again = subprocess.run(command, capture_output=True, text=True, check=False)
    assert again.returncode == 0, again.stderr
    assert "the last run was killed: removing its lock" in again.stderr
    assert "validation  passed" in again.stdout and not RUN.exists()


@pytest.mark.workflow
def test_the_error_of_a_failed_step_is_shown_once(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("https_proxy", "HTTPS_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")  # nobody listens there
    monkeypatch.setenv("PLM_EMBED_WEIGHTS", str(here / "empty"))
    words = ["run", "some.fasta", "--model", "esm2_8m", "--set", "buckets=1"]
    command = [sys.executable, "-m", "plm_embed", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.count("cannot be downloaded") == 1, done.stderr
    *_, failed, reason, remedy, last = done.stderr.splitlines()
    assert failed == "plm-embed: error: a step failed"
    assert reason.startswith(f"results/logs/{MODEL}/weights.log: weights: https://")
    assert remedy.startswith("Run again; or run `curl")
    assert last == "Fix the problem and rerun the same command; finished work is kept"


@pytest.mark.workflow
def test_what_a_scheduler_refuses_is_shown(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "bin").mkdir()
    refusal = "sbatch: error: Invalid partition name specified"
    answers = {"sbatch": f"echo '{refusal}' >&2; exit 1", "squeue": "true", "scontrol": "true"}
    for name, lines in answers.items():
        (here / "bin" / name).write_text(f"#!/bin/sh\n{lines}\n")
        (here / "bin" / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{here / 'bin'}:{os.environ['PATH']}")
    words = ["run", "some.fasta", "--model", "esm2_t3_untrained", "--profile", "slurm"]
    command = [sys.executable, "-m", "plm_embed", *words, "--set", "buckets=1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    shown = "Error in rule deduplicate:\n    message: sbatch: Invalid partition name specified."
    assert shown in done.stderr, done.stderr
    assert "rule deduplicate:\n    input" not in done.stderr, "it is quiet otherwise"
    reason = ".snakemake.log: sbatch: Invalid partition name specified. It is not tried again"
    assert reason in done.stderr
    watch = [sys.executable, "-m", "plm_embed", "watch", "results"]
    seen = subprocess.run(watch, capture_output=True, text=True, check=False)
    assert seen.returncode == 1 and "sequences has not begun" in seen.stdout, seen.stdout
    assert ".snakemake.log\n  sbatch: Invalid" in seen.stdout
    assert seen.stdout.endswith(
        "Fix the problem and rerun the same command; finished work is kept.\n"
    )


INTERRUPTED = """
import os, signal, sys, traceback
os.kill(os.getppid(), signal.SIGINT)  # as the terminal does to all
try:
    raise KeyboardInterrupt
except KeyboardInterrupt:
    traceback.print_exc()
print("These jobs could not be deleted", file=sys.stderr, flush=True)
"""


def test_a_ctrl_c_that_meets_snakemake_anywhere_is_one_line(
    here: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (here / "Snakefile").write_text(INTERRUPTED)
    monkeypatch.setattr(snakemake_call, "SNAKEFILE", here / "Snakefile")
    with pytest.raises(SystemExit) as end:
        execute(["--cores", "1"], Path("out"), [MODEL])
    assert end.value.code == 130
    words = capfd.readouterr().err
    assert "Traceback" not in words and "KeyboardInterrupt" not in words
    assert "These jobs could not be deleted" in words
    assert words.endswith("plm-embed: interrupted; rerun the same command to continue\n")
    assert not RUN.exists()


@pytest.mark.workflow
def test_a_run_without_any_vector_is_no_success(here: Path) -> None:
    (here / "letters.fasta").write_text(">a\n?!\n")
    words = ["run", "letters.fasta", "--model", "esm2_t3_untrained", "--set", "buckets=1"]
    command = [sys.executable, "-m", "plm_embed", *words, "--cores", "1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    assert done.stdout.startswith("No record could be embedded: 1 unknown_residues.\n")
