"""`plm-embed run`: the configuration that it writes, the call of Snakemake, and how that ends."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import takewhile
from pathlib import Path
from typing import Any

import click
import psutil
import pytest
import yaml
from click.testing import CliRunner

from plm_embed.cli import snakemake_call
from plm_embed.cli.main import group
from plm_embed.cli.run_config import configuration, snakemake_options, write_configuration
from plm_embed.cli.snakemake_call import execute
from plm_embed.errors import ConfigError, PlmEmbedError
from plm_embed.io.json_files import write_sealed
from plm_embed.models.weights import read_manifest
from plm_embed.workflow.call import CLONE, profile_folder, shell_line
from plm_embed.workflow.run_note import note_start, run_note
from support.checkpoints import DEMO

MODEL = "esm2_t6_8M_UR50D"
AGAIN = "Fix the problem and rerun the same command; finished work is kept."


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "some.fasta").write_text(">a\nMKTAYIAK\n", encoding="utf-8")
    (tmp_path / "t.csv").write_text("nr,lab,other\n1,MK,MKK\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    return tmp_path


def keys(**more: object) -> dict[str, object]:
    return {"inputs": ["some.fasta"], "model": [MODEL], "results": "out", **more}


def write(*settings: str, **more: object) -> Path:
    config = configuration(keys(**more), settings)
    return write_configuration(config, snakemake_options(config, "", 2))


def embedded(model: str) -> Path:
    """Leave a completion record in the results; return the folder of the model."""
    record = Path("out", model, "embedded", "0000.json")
    record.parent.mkdir(parents=True)
    record.touch()
    return record.parents[1]


def plm_embed(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "plm_embed", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return plm_embed("run", *words, "--set", "buckets=1")


RUN = (
    *("run", "some.fasta", "--model", "esm2_t3_untrained", "--results", "out"),
    *("--set", "buckets=1", "--set", "validate.spot_checks=0", "--cores", "1"),
)


@contextmanager
def begun() -> Iterator[subprocess.Popen[str]]:
    """Start RUN, and wait until its first jobs begin."""
    command = [sys.executable, "-m", "plm_embed", *RUN]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr
        lines = list(takewhile("Select jobs to execute...\n".__ne__, process.stderr))
        assert process.poll() is None, lines
        yield process


def test_the_file_is_complete_so_that_no_other_one_is_merged_into_it() -> None:
    shutil.copy("t.csv", "more.csv")
    columns = {"id": "nr", "sequence": "lab", "keep": ["lab"]}
    tables = [{"path": path} | columns for path in ("some.fasta", "t.csv", "more.csv")]
    long = ["max_residues=50", "policy=crop"]
    settings = [f"embedding.long_sequences.{setting}" for setting in long]
    path = write("embedding.layers=[3,-1]", *settings, inputs=tables)
    assert path == Path("out/config.yaml")
    text = path.read_text(encoding="utf-8")
    written = yaml.safe_load(text)
    assert written["inputs"] == ["some.fasta", *tables[1:]], "only tables have columns"
    assert written["model"] == MODEL and "&" not in text
    assert (written["buckets"], written["validate"]) == (4, {"spot_checks": 16})
    assert written["embedding"]["layers"] == [3, -1]
    assert written["embedding"]["long_sequences"]["max_residues"] == 50


@pytest.mark.parametrize("text", ["inputs: mine.fasta\n", "- a list of mine\n"])
def test_a_configuration_that_no_run_wrote_is_not_replaced(text: str) -> None:
    Path("out").mkdir()
    Path("out/config.yaml").write_text(text)
    with pytest.raises(PlmEmbedError, match=r"out/config.yaml: (not written by|damaged or edited)"):
        write()
    assert Path("out/config.yaml").read_text() == text


def test_a_wrong_setting_is_named() -> None:
    for setting, words in (
        ("embeding.layers=[1]", r"did you mean embedding\?"),
        ("buckets", "--set buckets: write KEY=VALUE"),
        ("embedding.layers=[1", "the value is not YAML"),
    ):
        with pytest.raises(ConfigError, match=words):
            configuration(keys(), [setting])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["sume.fasta"], "inputs: sume.fasta: not found; did you mean some.fasta?"),
        (["-"],
         "inputs: -: addresses and standard input are not read: save them to a file, and name "
         "that"),
        (["https://rest.uniprot.org/P1.fasta"],
         "inputs: https:/rest.uniprot.org/P1.fasta: addresses and standard input are not read: "
         "save them to a file, and name that"),
        (["data/a.fa"], "inputs: data/a.fa: not found: there is no folder data in {here}"),
        (["t.csv", "--id-column", "ids"],
         "t.csv: no column 'ids'; the columns are 'nr', 'lab', 'other'; "
         "name yours: --id-column NAME"),
        (["t.csv", "--id-column", "nr", "--keep", "Lab"],
         "t.csv: no column 'Lab'; the columns are 'nr', 'lab', 'other'; did you mean 'lab'?; "
         "name yours: --keep lab"),
    ],
)  # fmt: skip
def test_inputs_are_looked_at_before_anything_is_written(
    arguments: list[str], words: str, here: Path
) -> None:
    words_of_run = ["run", *arguments, "--model", "esm2_t3_untrained", "--sequence-column", "lab"]
    with pytest.raises(PlmEmbedError) as failure:
        CliRunner().invoke(group, words_of_run, catch_exceptions=False)
    assert str(failure.value) == words.format(here=here)
    assert not Path("results").exists()


@pytest.mark.workflow
def test_a_home_that_cannot_be_written_is_named(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(here / "some.fasta"))
    done = run("some.fasta", "--model", "esm2_t3_untrained")
    assert done.returncode == 1 and "Traceback" not in done.stderr, done.stderr
    assert "some.fasta/.cache/plm-embed: Not a directory; set XDG_CACHE_HOME" in done.stderr


def test_only_vectors_are_kept_from_being_replaced(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("more.fasta", "w.pt", "x.pt"):
        shutil.copy("some.fasta", name)
    table = {"path": "t.csv", "id": "nr", "sequence": "lab", "keep": ["nr", "other"]}
    write("buckets=3", weights="w.pt", inputs=["more.fasta"])
    path = write("buckets=3", weights="x.pt", inputs=[table])  # nothing is embedded yet
    embedded(MODEL)
    both = [table | {"id": "other", "keep": ["nr"]}, "more.fasta"]
    write("buckets=5", "embedding.per_residue_limit_gb=500", model=[MODEL, "prott5"], inputs=both)
    assert "other: no --keep names it any more; the index is rebuilt" in capsys.readouterr().err
    write("buckets=4", model=[MODEL, "prott5"], inputs=both)
    assert yaml.safe_load(path.read_text(encoding="utf-8"))["inputs"] == both
    paired = [table | {"partner": "other"}, "more.fasta"]
    changes: list[tuple[str, Any, str]] = [
        ("buckets=3", ["more.fasta"], "they also include t.csv"),
        ("embedding.layers=[3]", both, r"embedding.layers: \[-1\], not \[3\]"),
        ("residues.gaps=skip", both, "residues.gaps: remove, not skip"),
        ("buckets=3", paired, "t.csv was read with other columns"),
    ]
    for setting, inputs, words in changes:
        with pytest.raises(ConfigError, match=f"the results here differ: {words}; choose another"):
            write(setting, inputs=inputs)


def test_vectors_of_other_weights_are_not_replaced(prepared: Path) -> None:
    untrained = ["esm2_t3_untrained"]
    path = write(model=untrained, weights=str(DEMO))
    write_sealed(embedded(untrained[0]) / "weights.json", read_manifest(prepared))
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
    embedded(MODEL)
    Path("elsewhere").mkdir()
    path.parent.rename("elsewhere/moved")
    monkeypatch.chdir("elsewhere")
    write("buckets=3", results="moved", inputs=["../some.fasta"])
    write("buckets=3", results="moved", inputs=[str(here / "some.fasta")])


def test_weights_are_named_by_model_whatever_its_name() -> None:
    Path("w.pt").touch()
    models = keys(model=["esm2_8m", "nt-2.5b-1000g"])
    with pytest.raises(ConfigError, match="reads"):
        configuration(models, ["weights.nt-2.5b-1000g=w.pt"])
    alone = keys(model=["nt-2.5b-1000g"], weights="")  # as the command gives it
    config = configuration(alone, ["weights.nt-2.5b-1000g=w.pt"])
    assert config["weights"] == {"nt-2.5b-1000g": "w.pt"}
    with pytest.raises(ConfigError, match=r"--set weights\.a=b: weights is already w\.pt"):
        configuration(alone | {"weights": "w.pt"}, ["weights.a=b"])


def test_where_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    config = configuration(keys(), [])
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
    # a folder, or of ~/.config/snakemake
    assert snakemake_options(config, "mine", None)[-1] == "mine"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    words = " ".join(snakemake_options(config, "", None))
    assert "--resources gpu=2 --set-resources embed:gpu=2 --cores" in words
    assert "embed:device=cpu --cores" in " ".join(snakemake_options(config, "", None, "cpu"))


def leave_a_lock() -> None:
    locks = Path(".snakemake", "locks")
    locks.mkdir(parents=True, exist_ok=True)
    (locks / "0.output.lock").write_text("out/sequences/summary.json\n")


def test_a_lock_that_may_be_alive_is_named_with_what_to_do(
    here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (here / "random.py").write_text("raise SystemExit('executed')")
    options = ["--configfile", str(write("buckets=1")), "--cores", "1"]
    leave_a_lock()
    with pytest.raises(PlmEmbedError, match=r"or was killed; wait for .*--unlock`, then"):
        execute(options, Path("out"), [MODEL])
    assert "Directory" not in capfd.readouterr().err, "Snakemake names another remedy"
    with pytest.raises(PlmEmbedError, match=r"^Snakemake failed\nFix the problem"):
        execute([*options, "--nolock", "--until", "nothing"], Path("out"), [MODEL])
    assert "MissingRuleException:\nNo rule to produce nothing" in capfd.readouterr().err


def test_only_a_lock_of_a_killed_run_on_this_host_is_stale(here: Path) -> None:
    def stale(**changes: object) -> bool:
        note_start(here, [MODEL], [])
        ended = {"pid": process.pid, "began": began}
        note = json.loads(run_note(here).read_bytes()) | ended | changes
        run_note(here).write_text(json.dumps(note))
        return snakemake_call._lock_is_stale(here)

    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        began = psutil.Process(process.pid).create_time()
        leave_a_lock()
        assert not stale(), "the run goes on"
        process.communicate(b"\n")
    assert stale()
    assert not stale(local=False), "jobs may still be with a scheduler"
    assert not stale(host="another")
    assert not stale(ended=True), "it is the lock of another campaign"
    wait = [sys.executable, "-c", "input()", "-m", "plm_embed", "embed"]
    for folder in (here, here.parent):
        with subprocess.Popen(wait, cwd=folder, stdin=subprocess.PIPE) as step:
            assert stale() == (folder != here), "a step still works here"
            step.communicate(b"\n")
    shutil.rmtree(".snakemake")
    assert not stale(), "there is no lock"


@pytest.mark.workflow
def test_the_same_command_goes_on_after_snakemake_was_killed() -> None:
    with begun() as process:
        (snakemake,) = psutil.Process(process.pid).children()
        steps = snakemake.children(recursive=True)
        snakemake.kill()
        _, rest = process.communicate()
    assert process.returncode == 1, rest
    assert "Snakemake was killed (SIGKILL); rerun the same command; finished work is kept" in rest
    for step in steps:
        step.wait()
    seen = plm_embed("watch", "out", "--once")
    assert seen.returncode == 1 and "Snakemake was killed" in seen.stdout, seen.stdout
    again = plm_embed(*RUN)
    assert again.returncode == 0, again.stderr
    assert "the last run was killed: removing its lock" in again.stderr
    assert "validation  passed" in again.stdout


@pytest.mark.workflow
def test_a_run_that_gets_sigterm_stops_in_order_and_one_without_vectors_is_no_success(
    here: Path,
) -> None:
    (here / "some.fasta").write_text(">a\n?!\n")
    with begun() as process:
        process.terminate()
        _, rest = process.communicate()
    assert process.returncode == 130, rest
    assert rest.endswith("plm-embed: interrupted; rerun the same command to continue\n")
    seen = plm_embed("watch", "out", "--once")
    assert seen.returncode == 3 and "out  stopped; nothing is running" in seen.stdout, seen.stdout
    done = plm_embed(*RUN)
    assert done.returncode == 1, done.stderr
    assert done.stdout.startswith("No record could be embedded: 1 unknown_residues.\n")


@pytest.mark.workflow
def test_the_error_of_a_failed_step_is_shown_once_and_alone(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("https_proxy", "HTTPS_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")  # nobody listens there
    monkeypatch.setenv("PLM_EMBED_WEIGHTS", str(here / "empty"))
    done = run("some.fasta", "--model", "esm2_8m")
    assert done.returncode == 1
    assert done.stderr.count("cannot be downloaded") == 1, done.stderr
    assert "Exception" not in done.stderr and "Command '" not in done.stderr
    *progress, failed, reason, remedy, last = done.stderr.splitlines()
    assert "1 of 7 steps (14%) done" in progress, "the sequences"
    assert failed == "plm-embed: error: a step failed"
    assert reason.startswith(f"results/logs/{MODEL}/weights.log: weights: https://")
    assert remedy.startswith("Run again; or run `curl")
    assert last == AGAIN


@pytest.mark.workflow
def test_what_a_scheduler_refuses_is_shown(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "bin").mkdir()
    refusal = "sbatch: error: Invalid partition name specified"
    answers = {"sbatch": f"echo '{refusal}' >&2; exit 1", "squeue": "true", "scontrol": "true"}
    for name, lines in answers.items():
        (here / "bin" / name).write_text(f"#!/bin/sh\n{lines}\n")
        (here / "bin" / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{here / 'bin'}:{os.environ['PATH']}")
    done = run("some.fasta", "--model", "esm2_t3_untrained", "--profile", "slurm")
    assert done.returncode == 1
    shown = "Error in rule deduplicate:\n    message: sbatch: Invalid partition name specified."
    assert shown in done.stderr, done.stderr
    assert "rule deduplicate:\n    input" not in done.stderr, "it is quiet otherwise"
    reason = ".snakemake.log: sbatch: Invalid partition name specified. It is not tried again"
    assert reason in done.stderr
    assert not json.loads(run_note(Path("results")).read_bytes())["local"]
    seen = plm_embed("watch", "results", "--once")
    assert seen.returncode == 1 and ".snakemake.log\n  sbatch: Invalid" in seen.stdout, seen.stdout
    assert seen.stdout.endswith(f"{AGAIN}\n")


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
    with pytest.raises(click.Abort, match="rerun the same command to continue"):
        execute(["--cores", "1"], Path("out"), [MODEL])
    words = capfd.readouterr().err
    assert "Traceback" not in words and "KeyboardInterrupt" not in words
    assert "These jobs could not be deleted" in words
