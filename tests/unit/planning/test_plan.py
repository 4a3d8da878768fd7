"""The plan: counts, forecasts with their basis, jobs, bytes, the command, what is printed."""

import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from rich.console import Console

from plm_embed.cli.main import group
from plm_embed.errors import PlmEmbedError
from plm_embed.io.json_files import write_sealed
from plm_embed.models.weights import UNPUBLISHED
from plm_embed.planning.costs import deduplicated
from plm_embed.planning.plan import Plan, plan, show
from plm_embed.sequences.summary import SUMMARY, InputFile
from plm_embed.workflow.checks import read_config
from plm_embed.workflow.config import input_paths
from support import checkpoints
from support.checkpoints import TINY_ESM2
from support.finished import finished_campaign
from support.made_up_sequences import counted
from support.nasty_inputs import write

DEMO = Path(__file__).parents[3] / "config" / "demo"
MODEL = "esm2_t3_untrained"
LARGE = ("model=esm2_650m", "weights=''")


@pytest.fixture
def configfile(tmp_path: Path) -> Path:
    table = {"path": str(DEMO / "proteins.csv"), "id": "protein_id", "keep": ["assembly_id"]}
    config: dict[str, Any] = {
        "results": str(tmp_path / "results"),
        "inputs": [str(DEMO / "proteins.fasta"), table],
        "model": MODEL,
        "weights": str(checkpoints.DEMO),
        "buckets": 1,
    }
    return write(tmp_path / "my.yaml", yaml.safe_dump(config))


def deduplicate_as(configfile: Path, lengths: dict[int, int]) -> None:
    """Write the summary that the inputs would have if they were sequences of these lengths."""
    config = read_config(configfile)
    numbers = dict.fromkeys(("records", "accepted", "unique"), sum(lengths.values()))
    residues = sum(length * number for length, number in lengths.items())
    sizes = [(path, Path(path).stat().st_size) for path in input_paths(config)]
    inputs = tuple(InputFile(path, "fasta", "none", size, "", 0) for path, size in sizes)
    summary = counted(**numbers, residues=residues, lengths=lengths, inputs=inputs)
    write_sealed(Path(config["results"], "sequences", SUMMARY), summary)


def text(planned: Plan, width: int = 200) -> str:
    console = Console(width=width)
    with console.capture() as capture:
        show(planned, console)
    return capture.get()


def fact(planned: Plan, subject: str) -> str:
    """The words about a subject, without any."""
    return " ".join(words for name, words in planned.facts if name == subject)


@pytest.fixture
def large(configfile: Path) -> Path:
    """A campaign of a hundred million sequences."""
    deduplicate_as(configfile, {300: 100_000_000})
    return configfile


def on_cluster(configfile: Path, profile: object) -> Plan:
    """Plan LARGE for a profile with this content, as text or to be written as YAML."""
    folder = configfile.with_name("mine")
    folder.mkdir(exist_ok=True)
    text = profile if isinstance(profile, str) else yaml.safe_dump(profile)
    write(folder / "profile.yaml", text)
    return plan(configfile, LARGE, profile=str(folder))


def test_an_input_that_nobody_has_counted_is_counted(configfile: Path) -> None:
    planned = plan(configfile)
    (model,) = planned.models
    assert fact(planned, "records") == "181, 1 of them skipped"
    assert fact(planned, "unique").startswith("129 sequences, 39,565 residues (41 to 1,155")
    assert not fact(planned, "stored") and model.todo.tokens == 39_565 + 2 * 129
    assert model.weights == checkpoints.DEMO.stat().st_size
    assert "random numbers, not the published weights" in text(planned)
    assert fact(planned, "bytes").endswith(" free: enough")
    assert not list(configfile.parent.glob("results*")), "a plan writes nothing"


def test_this_machine_or_the_devices_that_are_named(
    large: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    alone = plan(large)
    (cpu,) = alone.models[0].speeds
    assert cpu.device.endswith(", 1 thread") and cpu.basis.startswith("estimated: 80 GFLOP/s")
    assert "--cores" in alone.command and "gpu" not in alone.command
    named = plan(large, devices=["A10", "H100"])
    assert [speed.device for speed in named.models[0].speeds] == ["A10", "H100"]
    assert "--cores all --resources gpu=1" in named.command
    shown = text(named)
    assert "\nA10: estimated: " in shown and "\nH100: estimated: " in shown
    assert " \n" not in shown
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    tool = write(
        tmp_path / "nvidia-smi", "#!/bin/sh\necho 'GPU 0: NVIDIA GeForce RTX 3090 (UUID: GPU-7f)'\n"
    )
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    mine = plan(large)
    assert [speed.device for speed in mine.models[0].speeds] == ["RTX 3090"]
    assert "--resources gpu=1 --set-resources embed:gpu=1" in mine.command


def test_the_jobs_fit_the_time_that_a_profile_gives(large: Path) -> None:
    slurm = plan(large, LARGE, profile="slurm")
    assert slurm.models[0].seconds / slurm.buckets < 240 * 60 / 1.3 and slurm.buckets > 20
    assert shlex.split(slurm.command)[-1] == f"buckets={slurm.buckets}"
    node = plan(large, LARGE, profile="pbs", devices=["H100"])
    assert "on 4 workers each" in fact(node, "jobs") and node.buckets < slurm.buckets / 4
    embed = {"gpu": 0, "gres": "gpu:h100:1", "gpu_model": "h100", "runtime": "0.5h"}
    short = on_cluster(large, {"set-resources": {"embed": embed}})
    assert short.models[0].speeds[0].device == "H100"
    assert short.models[0].seconds / short.buckets < 30 * 60 / 1.3
    assert short.buckets > 8 * node.buckets
    with pytest.raises(PlmEmbedError, match=r"mine/profile\.yaml: not YAML: "):
        on_cluster(large, "set-resources: {embed: {")
    with pytest.raises(PlmEmbedError, match="3 minutes are too few for a job; set more"):
        on_cluster(large, {"set-resources": {"embed": {"runtime": 3}}})


def test_a_profile_without_gpus_is_planned_for_its_cores(large: Path) -> None:
    for embed in ({"device": "cpu"}, {"gpu": 0}):
        content = {"set-resources": {"embed": embed | {"nodes": 2}}, "set-threads": {"embed": 8}}
        cluster = on_cluster(large, content)
        (cpu,) = cluster.models[0].speeds
        assert cpu.device.endswith(", 8 threads")
        assert cpu.basis.endswith("; no job with 8 threads was measured")
        assert "on 2 workers each" in fact(cluster, "jobs") and "GPU" not in text(cluster)


def test_a_profile_may_list_its_settings_as_options_do(large: Path) -> None:
    settings = {"gpu": "2 * attempt", "nodes": 2, "device": "cpu", "runtime": "2h"}
    listed = ["gather:gpu=9", *(f"embed:{name}={value}" for name, value in settings.items())]
    planned = on_cluster(large, {"set-resources": listed, "set-threads": "embed=8 * attempt"})
    assert planned.models[0].speeds[0].device.endswith(", 4 threads")
    assert " on 4 workers each" in fact(planned, "jobs")
    assert "the profile gives each 2 h 0 min" in fact(planned, "jobs")


def test_weights_at_hand_are_named_for_what_they_are(large: Path, tmp_path: Path) -> None:
    folder = checkpoints.write_hugging_face(
        tmp_path / "hf", TINY_ESM2, checkpoints.random_state(TINY_ESM2, 1)
    )
    own = shutil.copy(folder / "model.safetensors", tmp_path / "own.safetensors")

    def weights(*settings: str) -> str:
        return fact(plan(large, settings), "weights")

    assert weights("model=mine", f"weights={folder}") == f"mine: {folder}, {UNPUBLISHED}"
    compared = weights("model=esm2_8m", f"weights={folder}")
    assert compared.endswith(f"{folder}, to be compared with the published ones")
    for path in (folder, own):
        assert "unpublished weights of another origin" in weights(f"weights={path}")
    assert "random numbers" in weights()
    assert "not verified: no published" in weights("model=esm1b", "weights=''")
    assert "download of 2.6 GB from https://" in weights(*LARGE)


def test_it_fits_a_screen_of_80_columns(large: Path) -> None:
    shown = text(plan(large, LARGE, profile="pbs"), 80)
    words = " ".join(shown.split())
    assert " on 4 workers each, and up to 3 min to start; the profile gives each 6 h 0 min" in words
    assert words.count(" on one worker in all") == 1
    lines = [line for line in shown.splitlines() if "snakemake" not in line]
    assert max(map(len, lines)) <= 80 and len(lines) < 24


def test_times_agree_and_what_does_not_fit_is_named(configfile: Path) -> None:
    deduplicate_as(configfile, {300: 10**12})
    huge = plan(configfile, LARGE, profile="slurm")
    assert fact(huge, "bytes").endswith(" free: NOT ENOUGH")
    deduplicate_as(configfile, {300: 50_000})
    shown = text(plan(configfile, [*LARGE, "buckets=4"], profile="slurm", devices=["H100"]))
    assert "buckets=1, not 4: 51 s each, and up to 3 min to start" in shown
    assert "; 51 s on one worker in all" in shown and shown.count("51 s") == 3
    here = plan(configfile, [*LARGE, "buckets=4"], devices=["H100"])
    assert fact(here, "jobs") == "buckets=4: 13 s each; 51 s in all"
    deduplicate_as(configfile, {300: 50_000_000})
    here = plan(configfile, [*LARGE, "buckets=4"], devices=["H100"])
    assert fact(here, "jobs") == "buckets=5, not 4: 2 h 49 min each; 14 h 6 min in all"


def test_sequences_that_are_too_long_for_a_model_are_counted(configfile: Path) -> None:
    deduplicate_as(configfile, {300: 10, 1023: 2})
    model = ["model=esm1b", "weights=''"]
    planned = plan(configfile, model, devices=["A100"])
    assert planned.models[0].todo.sequences == 10
    assert "2 of more than 1,022 residues get no vector" in text(planned)
    window = "embedding={long_sequences: {policy: window, max_residues: 1000}}"
    windowed = plan(configfile, [*model, window], devices=["A100"])
    assert windowed.models[0].todo.sequences == 12 and "too long" not in text(windowed)
    deduplicate_as(configfile, {1023: 2})
    assert fact(plan(configfile, model), "jobs") == "nothing to compute"


def test_settings_are_laid_over_the_file_as_snakemake_does(configfile: Path) -> None:
    words = ["plan", "--configfile", str(configfile), "--config", "buckets=3"]
    shown = CliRunner().invoke(group, [*words, "embedding={layers: [1]}"]).stdout
    assert "129 sequences" in shown and "39,823" in shown
    command = shlex.split(shown.splitlines()[-1])
    assert command[-3:] == ["--config", "buckets=3", "embedding={layers: [1]}"]
    alone = CliRunner().invoke(group, ["plan", "buckets=3"], standalone_mode=False)
    assert "unexpected extra argument" in str(alone.exception)


def test_several_models_are_cut_alike_and_share_the_sequences(configfile: Path) -> None:
    alone = plan(configfile)
    config = yaml.safe_load(configfile.read_text())
    config |= {"model": [MODEL, "3B"], "weights": {MODEL: config["weights"]}}
    configfile.write_text(yaml.safe_dump(config))
    both = plan(configfile, profile="slurm")
    small, large = both.models
    assert (small.model, large.model) == (MODEL, "esm2_t36_3B_UR50D")
    assert small.todo == alone.models[0].todo and large.todo.flops > 1000 * small.todo.flops
    assert large.vectors > small.vectors and " for each of 2 models: " in fact(both, "jobs")
    sequences, store = fact(both, "bytes").split(", ")[:2]
    assert fact(alone, "bytes").startswith(f"{sequences}, ") and store not in fact(alone, "bytes")
    assert "5.7 GB" in text(both)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--profile", "slrm"], "did you mean slurm"),
        (["--device", "TPU"], "known are V100, A100"),
        (["--config", "inputs=[absent.fasta]"], "inputs: absent.fasta: not found"),
    ],
)
def test_what_does_not_exist_is_said(configfile: Path, words: list[str], message: str) -> None:
    arguments = ["plan", "--configfile", str(configfile), *words]
    done = CliRunner().invoke(group, arguments, standalone_mode=False)
    assert message in str(done.exception)


def test_what_is_stored_is_not_computed_again_and_gives_the_speed(
    configfile: Path, tmp_path: Path
) -> None:
    results, config = finished_campaign(tmp_path), yaml.safe_load(configfile.read_text())
    with deduplicated(read_config(configfile)) as folder:
        assert folder == results / "sequences"
    planned = plan(configfile)
    (forecast,) = planned.models
    assert fact(planned, "stored") == f"{MODEL}: 129 of 129 sequences already"
    assert (forecast.todo.tokens, forecast.seconds) == (0, 0)
    assert "nothing left" in text(planned) and " 0 s" not in text(planned)
    assert forecast.speeds[0].basis == f"measured: the jobs in {results / MODEL / 'embedded'}"
    again = plan(configfile, ["buckets=4"], profile="slurm")
    assert again.buckets == 4 and again.command.endswith("buckets=4")
    assert fact(again, "jobs") == "nothing to compute"
    assert not fact(plan(configfile, ["embedding={layers: [1]}"]), "stored")
    shutil.rmtree(results / MODEL / "embedded")
    more = write(tmp_path / "more.fasta", ">a\nMKTAYIAKQRQISFVKSHFSRQ\n")
    grown = plan(configfile, [f"inputs={[*config['inputs'], str(more)]}"])
    assert fact(grown, "stored").startswith(f"{MODEL}: 129 of 130"), "by the keys in the store"
    parts = list((results / MODEL / "store").glob("*/parts/*.h5"))
    for part in parts:
        part.write_bytes(part.read_bytes()[:5000])
    assert not fact(plan(configfile), "stored")
    assert all(map(Path.exists, parts)), "a plan changes nothing"
    with deduplicated(read_config(configfile, ["residues={unknown: substitute}"])) as folder:
        assert folder != results / "sequences", "read by other rules"
