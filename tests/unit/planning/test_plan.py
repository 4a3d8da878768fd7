"""The plan: counts, forecasts with their basis, bytes, what is said."""

import json
import shlex
from collections import Counter
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner
from rich.console import Console

from plm_embed.cli.main import group
from plm_embed.errors import InputError, PlmEmbedError
from plm_embed.fingerprint import LongSequences
from plm_embed.inference.weights import prepare
from plm_embed.io.json_files import to_plain
from plm_embed.models.registry import MODELS
from plm_embed.planning import plan, proposals
from plm_embed.planning.campaign_input import given_input
from plm_embed.planning.forecast import read_plan
from plm_embed.planning.plan_view import histogram, show
from plm_embed.sequences.deduplicate import deduplicate
from plm_embed.sequences.summary import write_summary
from plm_embed.sequences.tables import Table
from plm_embed.wording import readable
from plm_embed.workflow.config import input_paths, read_config, reading_of
from support import checkpoints
from support.made_up_sequences import counted
from support.nasty_inputs import write
from support.plans import DEMO, planned, text

M650 = MODELS["esm2_t33_650M_UR50D"]
WHOLE = LongSequences()


def test_this_machine_comes_first_and_others_when_asked(
    configfile: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    alone = planned(plan.Question(configfile))
    (cpu,) = alone.forecasts
    assert cpu.speed.here and "GFLOP/s (float32, tried just now) x 0.50" in cpu.speed.how
    assert alone.local_hours and alone.device == cpu.speed.device
    assert "On this machine alone: about" in text(alone) and "data sheet" not in text(alone)
    every = planned(plan.Question(configfile, all_gpus=True))
    assert every.forecasts[0].speed.here and every.device == alone.device
    assert {"H100", "L4", "RTX 3090"} <= {one.speed.device for one in every.forecasts}
    assert "data sheet" not in text(every)  # no plan rests on them
    named = planned(plan.Question(configfile, device="A10"))
    assert [one.speed.device for one in named.forecasts] == [cpu.speed.device, "A10"]
    assert named.device == "A10" and "A10: NVIDIA A10 data sheet (600 GB/s, dense" in text(named)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    tool = tmp_path / "bin" / "nvidia-smi"
    tool.parent.mkdir()
    tool.write_text("#!/bin/sh\necho 'GPU 0: NVIDIA GeForce RTX 3090 (UUID: GPU-7f)'\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tool.parent}:/usr/bin:/bin")
    mine = planned(plan.Question(configfile))
    assert mine.device == "RTX 3090" and mine.forecasts[0].speed.here and mine.local_hours
    assert "--resources gpu=1 --set-resources embed:gpu=1" in shlex.join(mine.command)
    assert "gpu" not in shlex.join(alone.command)


def test_a_site_shows_its_own_gpu(configfile: Path) -> None:
    found = planned(plan.Question(configfile, site="polaris"))
    assert [one.speed.device for one in found.forecasts] == ["A100"]
    assert found.local_hours is None


def test_settings_are_laid_over_the_file_as_snakemake_does(configfile: Path) -> None:
    words = ["plan", "--configfile", str(configfile), "--config", "buckets=3"]
    shown = CliRunner().invoke(group, [*words, "embedding={layers: [1]}", "--json"]).stdout
    command = json.loads(shown)["command"]
    assert command[-3:] == ["--config", "buckets=3", "embedding={layers: [1]}"]
    config = read_config(configfile, ["buckets=3", "embedding={layers: [1]}"])
    assert (config["buckets"], config["embedding"]["layers"]) == (3, [1])
    assert config["embedding"]["pooling"] == ["mean"]
    with pytest.raises(PlmEmbedError, match="write KEY=VALUE"):
        read_config(configfile, [str(configfile)])
    alone = CliRunner().invoke(group, ["plan", "buckets=3"], standalone_mode=False)
    assert "unexpected extra argument" in str(alone.exception)


def test_the_plan_counts_the_weights(configfile: Path) -> None:
    assert planned(plan.Question(configfile)).bytes["weights"] == checkpoints.DEMO.stat().st_size
    large = planned(plan.Question(configfile, ("model=esm2_650m", "weights=''")))
    assert large.bytes["weights"] == 2604537549 and "2.6 GB, compared" in large.weights
    prepare(
        MODELS["esm2_t3_untrained"],
        checkpoints.DEMO,
        configfile.parent / "weights" / "esm2_t3_untrained",
    )
    assert "weights" not in planned(plan.Question(configfile)).bytes


def test_no_plan_is_made_for_a_gpu_that_lacks_the_precision(configfile: Path) -> None:
    configfile.write_text(configfile.read_text() + "embedding: {compute_dtype: bfloat16}\n")
    with pytest.raises(PlmEmbedError, match="V100: it is not made for bfloat16; name another one"):
        planned(plan.Question(configfile, device="V100"))


def test_an_input_that_nobody_has_counted_is_counted(configfile: Path) -> None:
    found = planned(plan.Question(configfile))
    assert (found.records, found.accepted, found.unique, found.residues) == (181, 180, 129, 39_565)
    assert found.stored is None and found.todo.tokens == 39_565 + 2 * 129
    assert "counted just now" in text(found)
    assert not list(configfile.parent.glob("*plm-embed-plan*"))
    assert {one.speed.basis for one in found.forecasts} == {"estimated"}


def test_nucleotides_are_refused_for_a_model_of_proteins(configfile: Path) -> None:
    genes = write(configfile.parent / "genes.fna", ">a\n" + "ATGGCGTTACCN" * 20 + "\n")
    config = yaml.safe_load(configfile.read_text()) | {"inputs": [str(genes)]}
    configfile.write_text(yaml.safe_dump(config))
    with pytest.raises(InputError, match=r"genes\.fna: these are nucleotides, and the model reads"):
        plan.plan(plan.Question(configfile))


def test_sequences_that_were_read_by_other_rules_are_counted_anew(configfile: Path) -> None:
    config = read_config(configfile)
    folder = Path(config["results"]) / "sequences"
    deduplicate(
        [Path(path) for path in input_paths(config)],
        folder,
        buckets=1,
        table=Table("protein_id", "sequence", ("assembly_id", "protein_name")),
        policy=reading_of(config).policy,
        memory_mb=500,
    )
    with given_input(config, None, False) as given:
        assert given.sequences == folder
    config["residues"]["unknown"] = "substitute"
    with given_input(config, None, False) as given:
        assert given.sequences != folder


def test_a_table_of_lengths_is_enough(configfile: Path, tmp_path: Path) -> None:
    lengths = tmp_path / "lengths.tsv"
    lengths.write_text("\ufeff# length number\n100\t30\n100 10\n\n2000,1\n")
    words = configfile.read_text().replace(str(DEMO / "proteins.fasta"), "elsewhere.fasta")
    configfile.write_text(words)  # the input need not be here
    found = planned(plan.Question(configfile, lengths=lengths))
    assert (found.unique, found.residues, found.todo.tokens) == (41, 6000, 6082)
    assert f"by the lengths in {lengths}" in text(found)
    assert set(found.bytes) == {"sequences", "index", "records", "store", "master", "weights"}
    asked = ["plan", "--configfile", str(configfile), "--lengths", str(lengths)]
    assert CliRunner().invoke(group, asked, catch_exceptions=False).exit_code == 0
    assert not [*configfile.parent.glob("results/*/plan.json")], "a plan of no campaign is kept"
    by_length = Counter({100: 40, 2000: 1})
    summary = counted(records=41, accepted=41, unique=41, residues=6000, lengths=by_length)
    write_summary(tmp_path, summary)
    again = planned(plan.Question(configfile, lengths=tmp_path / "summary.json"))
    assert again.todo == found.todo
    for content, message in (
        ("100\n", "line 1: 100: must be"),
        ("{}", "not the summary.json"),
        ("x 3", "line 1"),
    ):
        lengths.write_text(content)
        with pytest.raises(PlmEmbedError, match=message):
            planned(plan.Question(configfile, lengths=lengths))


def test_bytes_of_sequences_are_estimated_from_their_lengths(configfile: Path) -> None:
    counted_ones = planned(plan.Question(configfile))
    lengths = configfile.parent / "lengths.tsv"
    rows = (f"{length} {count}\n" for length, count in counted_ones.lengths.items())
    lengths.write_text("".join(rows))
    alone = planned(plan.Question(configfile, lengths=lengths))
    assert alone.bytes["store"] == counted_ones.bytes["store"]
    # of a few records the files' own notes count most
    assert 0.2 < alone.bytes["sequences"] / counted_ones.bytes["sequences"] < 2


def test_a_large_campaign_is_done_sooner_with_more_gpus_and_fits_80_columns(
    configfile: Path,
) -> None:
    lengths = configfile.parent / "lengths.tsv"
    lengths.write_text("300 100000000\n")
    asked = plan.Question(
        configfile, ("model=esm2_650m", "weights=''"), site="polaris", lengths=lengths
    )
    large = planned(asked)
    shown = " ".join(text(large).split())
    assert " with 8, " in shown and " with 24 GPUs at a time" in shown
    assert f"files: about {large.files:,}" in shown and large.files > 1000
    assert f"buckets={large.proposals[0].buckets}: a job then takes" in shown
    console = Console(width=80)
    with console.capture() as capture:
        show([large], console)
    lines = [line for line in capture.get().splitlines() if "snakemake --profile" not in line]
    assert max(map(len, lines)) <= 80
    assert all("…" not in line for line in lines)


def test_what_does_not_exist_is_said(configfile: Path) -> None:
    for question, message in (
        (plan.Question(configfile, site="polris"), "did you mean polaris"),
        (plan.Question(configfile, site="polaris", queue="long"), "no such queue"),
        (plan.Question(configfile, device="TPU"), "known are .*, V100, A100"),
        (plan.Question(configfile.with_name("absent.yaml")), "there is no such file"),
    ):
        with pytest.raises(PlmEmbedError, match=message):
            planned(question)


def test_on_the_command_line(configfile: Path) -> None:
    result = CliRunner().invoke(
        group, ["plan", "--configfile", str(configfile), "--json"], catch_exceptions=False
    )
    told = json.loads(result.stdout)
    assert told["unique"] == 129 and told["forecasts"][0]["speed"]["basis"] == "estimated"
    kept = read_plan(configfile.parent / "results" / "esm2_t3_untrained" / "plan.json")
    assert kept and json.loads(json.dumps(to_plain(kept))) == told
    shown = (
        CliRunner()
        .invoke(group, ["plan", "--configfile", str(configfile), "--site", "polaris"])
        .stdout
    )
    assert "run it" in shown and "preemptable" in shown and "free: enough" in shown


def test_several_models_stand_side_by_side_and_share_the_sequences(configfile: Path) -> None:
    alone = planned(plan.Question(configfile, site="polaris"))
    words = configfile.read_text().replace(
        "model: esm2_t3_untrained", "model: [esm2_t3_untrained, 3B]"
    )
    words = words.replace("weights: ", "weights: {esm2_t3_untrained: ", 1)
    lines = [f"{line}}}" if line.startswith("weights:") else line for line in words.splitlines()]
    configfile.write_text("\n".join(lines) + "\n")
    small, large = plan.plan(plan.Question(configfile, site="polaris"))
    assert (small.model, large.model) == ("esm2_t3_untrained", "esm2_t36_3B_UR50D")
    assert small.todo == alone.todo and small.bytes == alone.bytes
    assert small.unique == large.unique == 129 and large.todo.flops > 1000 * small.todo.flops
    assert small.command == large.command
    cuts = [(one.submissions, one.buckets) for one in large.proposals]
    assert cuts == [(one.submissions, one.buckets) for one in small.proposals]
    assert small.proposals[0].hours_each < large.proposals[0].hours_each
    both = proposals.together(small.proposals[0], large.proposals[0])
    assert both.submissions == 2 * large.proposals[0].submissions
    assert both.node_hours == small.proposals[0].node_hours + large.proposals[0].node_hours
    hours = sum(
        one.hours for each in (small, large) for one in each.forecasts
        if one.speed.device == "A100" and one.hours
    )  # fmt: skip
    assert both.charged_hours * (1 - both.wasted) == pytest.approx(hours)
    shown = text(small, large)
    row, _ = [line.split() for line in shown.splitlines() if line.strip().startswith("all ")]
    assert row[:3] == ["all", "258", f"{small.todo.tokens + large.todo.tokens:,}"]
    everything = [*small.bytes.values(), *large.bytes.values()]
    total = sum(everything) - small.bytes["sequences"]
    assert f"{readable(total)} in all" in shown
    CliRunner().invoke(group, ["plan", "--configfile", str(configfile)], catch_exceptions=False)
    for one in (small, large):
        assert read_plan(configfile.parent / "results" / one.model / "plan.json")


def test_the_histogram_counts_every_sequence_once() -> None:
    lines = list(histogram({1: 5, 2: 1, 400: 7, 35_000: 1}))
    assert sum(int(line.split()[-1]) for line in lines) == 14 and len(lines) <= 12
    assert list(histogram({10: 3})) == [f"10 - 10  {'█' * 40} 3"]
    assert list(histogram({})) == ["nothing"]
    assert [readable(size) for size in (12, 3_400, 2.3e9)] == ["12 B", "3.4 kB", "2.3 GB"]
