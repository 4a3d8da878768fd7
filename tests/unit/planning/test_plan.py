"""The plan: counts, forecasts with their basis, jobs, bytes, the command, what is printed."""

import json
import shlex
import shutil
from collections import Counter
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner
from rich.console import Console

from plm_embed.cli.main import group
from plm_embed.errors import InputError, PlmEmbedError
from plm_embed.inference.settings import Settings
from plm_embed.inference.weights import prepare
from plm_embed.io.json_files import write_sealed
from plm_embed.models.registry import MODELS
from plm_embed.models.weights import UNPUBLISHED
from plm_embed.planning import count
from plm_embed.planning.count import counted_input
from plm_embed.planning.plan import Plan, plan
from plm_embed.planning.show import show
from plm_embed.sequences.summary import SUMMARY
from plm_embed.workflow.config import read_config
from support import checkpoints
from support.checkpoints import TINY_ESM2
from support.embedded import Embedder
from support.made_up_sequences import counted
from support.nasty_inputs import write

MODEL = "esm2_t3_untrained"
LARGE = ("model=esm2_650m", "weights=''")


def text(found: Plan, width: int = 200) -> str:
    console = Console(width=width)
    with console.capture() as capture:
        show(found, console)
    return capture.get()


@pytest.fixture
def lengths(tmp_path: Path) -> Path:
    """A hundred million sequences."""
    return write(tmp_path / "lengths.txt", "300 100000000\n")


def test_an_input_that_nobody_has_counted_is_counted(configfile: Path) -> None:
    found = plan(configfile)
    count, (model,) = found.input, found.models
    assert (count.records, count.accepted, count.unique, count.residues) == (181, 180, 129, 39_565)
    assert model.stored == 0 and model.todo.tokens == 39_565 + 2 * 129
    assert found.bytes["weights"] == checkpoints.DEMO.stat().st_size and not model.verified
    shown = text(found)
    assert "counted just now" in shown and "random numbers, not the published weights" in shown
    assert not list(configfile.parent.glob("results*")), "a plan writes nothing"


def test_this_machine_or_the_devices_that_are_named(
    configfile: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    alone = plan(configfile)
    (cpu,) = alone.models[0].speeds
    assert "GFLOP/s, measured here just now" in cpu.basis and alone.jobs.local == 1
    assert "--cores" in alone.command and "gpu" not in alone.command
    named = plan(configfile, devices=["A10", "H100"])
    assert [speed.device for speed in named.models[0].speeds] == ["A10", "H100"]
    assert named.jobs.local == 0 and "--cores all --resources gpu=1" in named.command
    assert "run it on the machine with the A10\n" in text(named)
    assert "on the machine with" not in text(alone) and "to start" not in text(alone)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    tool = tmp_path / "bin" / "nvidia-smi"
    tool.parent.mkdir()
    tool.write_text("#!/bin/sh\necho 'GPU 0: NVIDIA GeForce RTX 3090 (UUID: GPU-7f)'\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tool.parent}:/usr/bin:/bin")
    mine = plan(configfile)
    assert [speed.device for speed in mine.models[0].speeds] == ["RTX 3090"]
    assert "--resources gpu=1 --set-resources embed:gpu=1" in mine.command


def test_the_jobs_fit_the_time_that_a_profile_gives(configfile: Path, lengths: Path) -> None:
    slurm = plan(configfile, LARGE, profile="slurm", lengths=lengths)
    assert (slurm.jobs.workers, slurm.jobs.minutes) == (1, 240)
    assert slurm.jobs.hours < 240 / 60 / 1.3 and slurm.jobs.buckets > 20
    assert shlex.split(slurm.command)[-1] == f"buckets={slurm.jobs.buckets}"
    node = plan(configfile, LARGE, profile="pbs", devices=["H100"], lengths=lengths)
    assert node.jobs.workers == 4 and node.jobs.buckets < slurm.jobs.buckets / 4
    own = configfile.parent / "mine"
    own.mkdir()
    asked = {"set-resources": {"embed": {"gpu_model": "h100", "runtime": 30}}}
    (own / "profile.yaml").write_text(yaml.safe_dump(asked))
    short = plan(configfile, LARGE, profile=str(own), lengths=lengths)
    assert short.models[0].speeds[0].device == "H100" and short.jobs.hours < 30 / 60 / 1.3
    assert short.jobs.buckets > 8 * node.jobs.buckets
    small = plan(configfile, profile="slurm")
    assert small.jobs.buckets == 1 and "buckets=" not in small.command


@pytest.mark.parametrize("embed", [{"device": "cpu"}, {"gpu": 0}, {"gpu": 0, "device": "cpu"}])
def test_a_profile_without_gpus_is_planned_for_its_cores(
    configfile: Path, lengths: Path, tmp_path: Path, embed: dict[str, object]
) -> None:
    own = tmp_path / "mine"
    own.mkdir()
    content = {"set-resources": {"embed": embed | {"nodes": 2}}, "set-threads": {"embed": 8}}
    (own / "profile.yaml").write_text(yaml.safe_dump(content))
    cluster = plan(configfile, LARGE, profile=str(own), lengths=lengths)
    (cores,) = cluster.models[0].speeds
    assert cores.device.endswith(", 8 threads") and "GFLOP/s" in cores.basis
    assert cores.basis.endswith("; no job with 8 threads was measured")
    assert cluster.jobs.workers == 2 and cluster.jobs.local == 0
    shown = text(cluster)
    assert "on 2 workers each" in shown and "on one worker in all" in shown and "GPU" not in shown


def test_a_gpu_may_be_asked_for_by_any_name(configfile: Path, tmp_path: Path) -> None:
    asked = {"set-resources": {"embed": {"gpu": 0, "gres": "gpu:h100:1", "gpu_model": "h100"}}}
    write(tmp_path / "profile.yaml", yaml.safe_dump(asked))
    found = plan(configfile, profile=str(tmp_path))
    assert found.models[0].speeds[0].device == "H100" and found.jobs.workers == 1


def test_weights_at_hand_are_named_for_what_they_are(configfile: Path, tmp_path: Path) -> None:
    folder = checkpoints.write_hugging_face(
        tmp_path / "hf", TINY_ESM2, checkpoints.random_state(TINY_ESM2, 1)
    )
    own = shutil.copy(folder / "model.safetensors", tmp_path / "own.safetensors")

    def weights(*settings: str) -> str:
        (forecast,) = plan(configfile, settings).models
        assert not forecast.verified or "to be compared" in forecast.weights
        return forecast.weights

    assert weights("model=mine", f"weights={folder}") == f"{folder}, {UNPUBLISHED}"
    assert weights("model=esm2_8m", f"weights={folder}").startswith(f"{folder}, to be compared")
    for path in (folder, own):
        assert "unpublished weights of another origin" in weights(f"weights={path}")
    assert "random numbers" in weights()


def test_lengths_need_no_input(
    lengths: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "inputs=your_file" in plan(settings=["model=esm2_650m"], lengths=lengths).command
    named = plan(settings=["model=esm2_650m", "inputs=mine.fa"], lengths=lengths)
    assert "your_file" not in named.command


def test_it_fits_a_screen_of_80_columns(configfile: Path, lengths: Path) -> None:
    shown = text(plan(configfile, LARGE, profile="pbs", lengths=lengths), 80)
    words = " ".join(shown.split())
    assert " on 4 GPUs each, and up to 3 min to start; the profile gives each " in words
    assert words.count(" on one GPU in all") == 1
    lines = [line for line in shown.splitlines() if "snakemake" not in line]
    assert max(map(len, lines)) <= 80 and len(lines) < 24


def test_times_agree_and_another_number_of_buckets_is_named(configfile: Path) -> None:
    write(lengths := configfile.with_name("short.txt"), "300 50000\n")
    settings = [*LARGE, "buckets=4"]
    shown = text(plan(configfile, settings, devices=["H100"], lengths=lengths))
    assert "buckets=1, not 4: 51 s each, and up to 3 min to start; 51 s on one" in shown
    assert shown.count("51 s") == 3


def test_sequences_that_are_too_long_for_a_model_are_counted(configfile: Path) -> None:
    write(lengths := configfile.with_name("long.txt"), "300 10\n1023 2\n")
    model = ["model=esm1b", "weights=''"]
    found = plan(configfile, model, devices=["A100"], lengths=lengths)
    assert found.models[0].todo.sequences == 10
    assert "2 of more than 1,022 residues get no vector" in text(found)
    window = "embedding={long_sequences: {policy: window, max_residues: 1000}}"
    windowed = plan(configfile, [*model, window], devices=["A100"], lengths=lengths)
    assert windowed.models[0].todo.sequences == 12 and "too long" not in text(windowed)


def test_settings_are_laid_over_the_file_as_snakemake_does(configfile: Path) -> None:
    words = ["plan", "--configfile", str(configfile), "--config", "buckets=3"]
    shown = CliRunner().invoke(group, [*words, "embedding={layers: [1]}", "--json"]).stdout
    told = json.loads(shown)
    assert told["input"]["unique"] == 129 and told["models"][0]["todo"]["tokens"] == 39_823
    command = shlex.split(told["command"])
    assert command[-3:] == ["--config", "embedding={layers: [1]}", "buckets=3"]
    config = read_config(configfile, ["buckets=3", "embedding={layers: [1]}"])
    assert (config["buckets"], config["embedding"]["layers"]) == (3, [1])
    assert config["embedding"]["pooling"] == ["mean"]
    with pytest.raises(PlmEmbedError, match="write KEY=VALUE"):
        read_config(configfile, [str(configfile)])
    alone = CliRunner().invoke(group, ["plan", "buckets=3"], standalone_mode=False)
    assert "unexpected extra argument" in str(alone.exception)


def test_nucleotides_are_refused_for_a_model_of_proteins(configfile: Path) -> None:
    genes = write(configfile.parent / "genes.fna", ">a\n" + "ATGGCGTTACCN" * 20 + "\n")
    config = yaml.safe_load(configfile.read_text()) | {"inputs": [str(genes)]}
    configfile.write_text(yaml.safe_dump(config))
    with pytest.raises(InputError, match=r"genes\.fna: these are nucleotides, and the model reads"):
        plan(configfile)


def test_a_table_of_lengths_is_enough(configfile: Path, tmp_path: Path) -> None:
    lengths = write(tmp_path / "lengths.tsv", "\ufeff# length number\n100\t30\n100 10\n\n2000,1\n")
    absent = configfile.read_text().replace("proteins.fasta", "elsewhere.fasta")
    configfile.write_text(absent)  # the input need not be here
    found = plan(configfile, lengths=lengths)
    assert (found.input.unique, found.input.residues) == (41, 6000)
    assert found.models[0].todo.tokens == 6082 and f"by the lengths in {lengths}" in text(found)
    by_length = Counter({100: 40, 2000: 1})
    summary = counted(records=41, accepted=41, unique=41, residues=6000, lengths=by_length)
    write_sealed(tmp_path / SUMMARY, summary)
    assert plan(configfile, lengths=tmp_path / "summary.json").models[0].todo.tokens == 6082
    for content, message in (
        ("100\n", "line 1: '100': must be"),
        ("{}", "not the summary.json"),
        ("x 3", "line 1"),
    ):
        lengths.write_text(content)
        with pytest.raises(PlmEmbedError, match=message):
            plan(configfile, lengths=lengths)


def test_several_models_are_cut_alike_and_share_the_sequences(configfile: Path) -> None:
    alone = plan(configfile)
    config = yaml.safe_load(configfile.read_text())
    config |= {"model": [MODEL, "3B"], "weights": {MODEL: config["weights"]}}
    configfile.write_text(yaml.safe_dump(config))
    both = plan(configfile, profile="slurm")
    small, large = both.models
    assert (small.model, large.model) == (MODEL, "esm2_t36_3B_UR50D")
    assert small.todo == alone.models[0].todo and large.todo.flops > 1000 * small.todo.flops
    assert both.bytes["sequences"] == alone.bytes["sequences"]
    assert both.bytes["store"] > alone.bytes["store"]
    assert "for each of 2 models" in text(both) and "5.7 GB" in text(both)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--profile", "slrm"], "did you mean slurm"),
        (["--device", "TPU"], "known are V100, A100"),
        (["--configfile", "absent.yaml"], "does not exist"),
    ],
)
def test_what_does_not_exist_is_said(configfile: Path, words: list[str], message: str) -> None:
    asked = ["plan", "--configfile", str(configfile), *words]
    done = CliRunner().invoke(group, asked, standalone_mode=False)
    assert message in str(done.exception)


def test_what_is_stored_is_not_computed_again_and_gives_the_speed(
    configfile: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(count, "BUCKETS", 1)
    config = read_config(configfile)
    sequences, model = tmp_path / "results" / "sequences", tmp_path / "results" / MODEL
    with counted_input(config, None) as sequences_read:
        assert sequences_read.folder
        shutil.copytree(sequences_read.folder, sequences)
    with counted_input(config, None) as sequences_read:
        assert sequences_read.folder == sequences
    weights, record = tmp_path / "weights", model / "embedded" / "0000.json"
    prepare(MODELS[MODEL], checkpoints.DEMO, weights)
    embedder = Embedder(weights, model / "store", Settings(scratch=""))
    embedder.embed(sequences / "buckets" / "0000.parquet", record)
    (forecast,) = plan(configfile).models
    assert (forecast.stored, forecast.todo.tokens, forecast.hours) == (129, 0, 0)
    assert forecast.speeds[0].basis == f"measured: the jobs in {record.parent}"
    again = plan(configfile, ["buckets=4"], profile="slurm")
    assert again.jobs.buckets == 4 and again.command.endswith("buckets=4")
    assert "jobs nothing to compute" in " ".join(text(again).split())
    (other,) = plan(configfile, ["embedding={layers: [1]}"]).models
    assert other.stored == 0
    (model / "embedded").rename(tmp_path / "away")
    (forecast,) = plan(configfile, elsewhere=[tmp_path / "away"]).models
    assert forecast.stored == 129, "by the keys in the store"
    assert forecast.speeds[0].basis == f"measured: the jobs in {tmp_path / 'away'}"
    (part,) = (model / "store").glob("*/parts/*.h5")
    part.write_bytes(part.read_bytes()[:5000])
    assert plan(configfile).models[0].stored == 0 and part.exists(), "a plan changes nothing"
    config = yaml.safe_load(configfile.read_text()) | {"residues": {"unknown": "substitute"}}
    configfile.write_text(yaml.safe_dump(config))
    with counted_input(read_config(configfile), None) as sequences_read:
        assert sequences_read.folder != sequences, "read by other rules"
