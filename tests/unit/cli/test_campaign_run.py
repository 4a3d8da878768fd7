"""`plm-embed run` up to the call of Snakemake: its configuration, and the command."""

import os
import shutil
from pathlib import Path

import pytest
import yaml
from plm_embed.cli.campaign_call import in_full, with_weights
from plm_embed.workflow.run_note import note_end, note_start, refuse_beside_another

from plm_embed.cli import campaign_call
from plm_embed.cli.campaign_run import (
    CLONE,
    Command,
    configuration,
    write_configuration,
)
from plm_embed.errors import ConfigError, InputError, PlmEmbedError
from plm_embed.models.registry import find_model
from plm_embed.models.sources.fetch_weights import in_config
from plm_embed.sequences.summary import write_summary
from plm_embed.workflow.config import checked
from support.made_up_sequences import counted

MODEL = "esm2_t6_8M_UR50D"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "some.fasta").write_text(">a\nMKTAYIAK\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    return tmp_path


def given(**more: object) -> dict[str, object]:
    return {"inputs": ["some.fasta"], "model": [MODEL], "results": "out", **more}


def test_the_file_stands_for_the_options_and_holds_no_more() -> None:
    settings = ["embedding.layers=[3,-1]", "embedding.long_sequences.max_residues=50"]
    settings += ["embedding.long_sequences.policy=crop", "table.id=3", "speed.flush_minutes=1e-1"]
    config = configuration(given(table={"keep": ["a"]}), settings)
    path = write_configuration(config, Command.of(config, "", 2))
    assert path == Path("out/config.yaml")
    long = {"policy": "crop", "max_residues": 50}
    written = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert written == {
        **given(table={"keep": ["a"], "id": "3"}),
        "embedding": {"layers": [3, -1], "long_sequences": long},
        "speed": {"flush_minutes": 0.1},
    }
    assert checked(written) == checked(config)


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("embeding.layers=[1]", "did you mean embedding?"),
        ("embedding.layers=[99]", "has layers 0 to 6"),
        ("speed.device=gpu", "did you mean cuda?"),
        ("buckets", "write KEY=VALUE"),
        ("=3", "write KEY=VALUE"),
        ("model.name=x", "write KEY=VALUE"),
    ],
)
def test_a_wrong_setting_is_named(setting: str, words: str) -> None:
    with pytest.raises(ConfigError, match=r"has 1 problem|--set") as caught:
        configuration(given(), [setting])
    assert words in str(caught.value)


def test_proteins_for_a_model_of_dna_are_refused_before_anything_is_fetched(here: Path) -> None:
    (here / "some.fasta").write_text(">a\n" + "MKTAYIAKQRQISFVKSHFSRQ" * 9, encoding="utf-8")
    with pytest.raises(
        InputError, match=r"some\.fasta: these are proteins, and the model reads DNA"
    ):
        configuration(given(model=["DNABERT-S"]), [])


def test_a_campaign_that_has_begun_keeps_its_settings(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def write(*settings: str) -> Path:
        config = configuration(given(), settings)
        return write_configuration(config, Command.of(config, "", 2))

    write("buckets=2")
    write("buckets=3")  # nothing has been read yet
    (here / "out" / "sequences").mkdir()
    write_summary(here / "out" / "sequences", counted())
    path = write("buckets=3", "embedding.pooling=mean")
    with pytest.raises(ConfigError, match="buckets: 3 there, 4 asked for\nchoose another") as found:
        write()
    assert "snakemake --snakefile" in str(found.value) and found.value.key == "buckets"
    assert "nothing is finished here yet: the new settings hold" in capsys.readouterr().err
    path.unlink()
    with pytest.raises(ConfigError, match="holds a campaign of another configuration"):
        write("buckets=3")


def test_inputs_and_models_may_come_to_a_campaign_that_has_begun(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def write(**keys: object) -> Path:
        config = configuration(given(**keys), [])
        return write_configuration(config, Command.of(config, "", 2))

    for name in ("more.fasta", "w.pt"):
        shutil.copy("some.fasta", name)
    path = write()
    (here / "out" / "sequences").mkdir()
    write_summary(here / "out" / "sequences", counted())
    write(weights="w.pt")  # they could not be downloaded
    both, weights = ["some.fasta", "more.fasta"], {"esm2_8m": "w.pt"}
    write(inputs=both, model=[MODEL, "prott5"], weights=weights)
    told = "out: new in this campaign: more.fasta, prot_t5_xl_half_uniref50-enc\n"
    assert told == capsys.readouterr().err
    assert yaml.safe_load(path.read_text(encoding="utf-8"))["inputs"] == both
    for fewer, key in ({"inputs": ["more.fasta"]}, "inputs"), ({"inputs": both}, "model"):
        with pytest.raises(ConfigError, match=f"other settings:\n  {key}: .* asked for"):
            write(**{"model": [MODEL], "weights": weights, **fewer})
    with pytest.raises(ConfigError, match=rf"weights.{MODEL}: w.pt there,  asked for"):
        write(inputs=both, model=[MODEL, "prott5", "prot_bert"])


def test_paths_may_be_spelled_otherwise_and_stay_as_they_were(here: Path) -> None:
    def write(**keys: object) -> Path:
        config = configuration(given(**keys), [])
        return write_configuration(config, Command.of(config, "", 2))

    shutil.copy("some.fasta", "w.pt")
    path = write(weights="w.pt")
    (here / "out" / "sequences").mkdir()
    write_summary(here / "out" / "sequences", counted())
    before = yaml.safe_load(path.read_text(encoding="utf-8"))
    (here / "link").symlink_to(here)
    for around in here, here / "link", Path("link"):
        write(
            inputs=[str(around / "some.fasta")],
            weights=str(around / "w.pt"),
            results=str(around / "out"),
        )
        assert yaml.safe_load(path.read_text(encoding="utf-8")) == before
    shutil.copy("some.fasta", "other.fasta")
    with pytest.raises(ConfigError, match=r"inputs: \['some.fasta'\] there, \['other.fasta'\] ask"):
        write(inputs=["other.fasta"], weights="w.pt")


def test_a_run_at_work_is_named_and_its_lock_left_alone(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse_beside_another(here)
    note_start(here, [MODEL])
    with pytest.raises(PlmEmbedError, match=rf"at work here \(process {os.getpid()}, .*run.json"):
        refuse_beside_another(here)
    with monkeypatch.context() as killed:
        killed.setattr("plm_embed.workflow.run_note.alive", lambda _: False)
        refuse_beside_another(here)
    note_end(here, "complete")
    refuse_beside_another(here)

    locked = (1, ["Error: Directory cannot be locked. Please"], "")
    monkeypatch.setattr(campaign_call, "_snakemake", lambda _: locked)
    command = Command.of(configuration(given(), []), "", 2)
    with pytest.raises(PlmEmbedError, match=r"or was killed; wait for .*--unlock`, then"):
        campaign_call.execute(command, here)


def test_a_configuration_of_ones_own_is_not_overwritten(here: Path) -> None:
    (here / "out").mkdir()
    (here / "out" / "config.yaml").write_text("inputs: [mine.fasta]\n", encoding="utf-8")
    config = configuration(given(), [])
    with pytest.raises(ConfigError, match="is not a file that `plm-embed run` wrote; choose"):
        write_configuration(config, Command.of(config, "", 2))


def test_weights_are_named_by_model_whatever_its_name(here: Path) -> None:
    (here / "w.pt").touch()
    models = given(model=["esm2_t6_8M_UR50D", "esm2_t12_35M_UR50D"])
    config = configuration(models, ["weights.esm2_t6_8M_UR50D=w.pt"])
    assert checked(config)["weights"] == {"esm2_t6_8M_UR50D": "w.pt"}
    with pytest.raises(ConfigError, match=r"weights.nt-2.5b-1000g: is not a model of this camp"):
        configuration(models, ["weights.nt-2.5b-1000g=w.pt"])


def test_where_it_runs(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = configuration(given(), [])
    snakefile = ("--snakefile", str(CLONE / "Snakefile"), "--configfile", "out/config.yaml")
    assert Command.of(config, "", 3).words == (*snakefile, "--cores", "3")
    shipped = str(CLONE / "profiles" / "slurm")
    assert Command.of(config, "slurm", None).words == (*snakefile, "--profile", shipped)
    assert Command.of(config, "mine", None).words[-1] == "mine"  # of ~/.config/snakemake
    (here / "slurm").mkdir()  # with logs in it, perhaps
    assert Command.of(config, "slurm", None).words[-1] == shipped
    (here / "slurm" / "config.yaml").touch()
    assert Command.of(config, "slurm", None).words[-1] == "slurm"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    words = " ".join(Command.of(config, "", None).words)
    assert "--resources gpu=2 --set-resources embed:gpu=2 --profile" in words
    on_cpu = configuration(given(), ["speed.device=cpu"])
    assert "--profile" not in Command.of(on_cpu, "", None).words


def test_in_the_clone_the_command_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    command = Command.of(configuration(given(), []), "", 1)
    monkeypatch.chdir(CLONE)
    assert command.shown == ["snakemake", "--configfile", "out/config.yaml", "--cores", "1"]


def test_missing_weights_are_named_in_the_next_command() -> None:
    setting = in_config(find_model(MODEL), "'my w.pt'")
    said = f"cannot be fetched\ncopy it to 'my w.pt', and {setting}"
    words = ["plm-embed", "run", "some.fasta", "--model", "esm2_8m"]
    told = "cannot be fetched\ncopy it to 'my w.pt', and run: plm-embed run some.fasta "
    assert with_weights(said, words) == f"{told}--model esm2_8m --weights 'my w.pt'"
    several = [*words, "--model=esm2_35m"]
    after = f"--model esm2_8m --model=esm2_35m --set weights.{MODEL}='my w.pt'"
    assert with_weights(said, several) == told + after
    assert with_weights("no GPU", words) == "no GPU"


def test_what_to_force_is_a_whole_command(here: Path) -> None:
    (here / "snakemake.py").write_text(
        "print('Error: s: gone; run `snakemake --forcerun a.json` or `snakemake` again')\n"
        "raise SystemExit(1)"
    )
    command = Command(("--snakefile", "a b/Snakefile", "--configfile", "out/config.yaml"))
    with pytest.raises(PlmEmbedError) as error:
        campaign_call.execute(command, here)
    whole = "snakemake --snakefile 'a b/Snakefile' --configfile out/config.yaml"
    assert f"run `{whole} --forcerun a.json` or `{whole}` again" in str(error.value)
    assert in_full("no GPU; run `snakemake -n`", command) == "no GPU; run `snakemake -n`"


def test_a_folder_that_cannot_be_written_to_is_told_without_lines_of_code(here: Path) -> None:
    words = """print('''Using a profile
WorkflowError in file "/clone/workflow/rules/common.smk", line 120:
/data: Permission denied
Snakemake needs a working folder that it can write to: call it in another one
  File "/clone/workflow/rules/common.smk", line 120, in <module>''')
raise SystemExit(1)"""
    (here / "snakemake.py").write_text(words)
    with pytest.raises(PlmEmbedError) as error:
        campaign_call.execute(Command(()), here)
    assert str(error.value).splitlines() == [
        "Snakemake stopped:",
        "/data: Permission denied",
        "Snakemake needs a working folder that it can write to: call it in another one",
    ]


def test_why_a_step_failed_is_said_once(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def said(*lines: str) -> tuple[str, str]:
        """What is shown meanwhile, and the error; a module here stands in for Snakemake."""
        words = """
import pathlib, sys
pathlib.Path("logs").mkdir(exist_ok=True)
pathlib.Path("logs/deduplicate.log").write_text("plm-embed: error: a.gz: cut short\\n")
sys.exit(print(lines) or 1)
"""
        (here / "snakemake.py").write_text(f"lines = {chr(10).join(lines)!r}\n{words}")
        with pytest.raises(PlmEmbedError) as error:
            campaign_call.execute(Command(()), here)
        return capsys.readouterr().err, str(error.value)

    failed = "plm-embed: deduplicate failed: a.gz: cut short"
    shown, error = said("1 of 7 steps (14%) done", failed, "Exiting")
    assert shown == "1 of 7 steps (14%) done\n" and error.startswith("a.gz: cut short\nlog: ")
    # others go on, it is tried again, or it is another cause than that of the first step
    for lines in (
        [failed, "2 of 7 steps (29%) done"],
        [f"{failed}; it is tried again"],
        ["plm-embed: embed 0001 failed: it needed more than the 500 MB that it asked for"],
    ):
        assert said(*lines)[0].splitlines() == lines
