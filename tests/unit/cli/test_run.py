"""`plm-embed run` up to the call of Snakemake: its configuration, and the command."""

import shutil
from pathlib import Path

import pytest
import yaml

from plm_embed.cli.run import command, configuration, execute, write_configuration
from plm_embed.errors import ConfigError, PlmEmbedError
from plm_embed.workflow.call import CLONE, shell_line

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
    return write_configuration(config, command(config, "", 2))


def test_the_file_is_complete_so_that_no_other_one_is_merged_into_it() -> None:
    table = {"path": "some.fasta", "keep": ["a"]}
    path = write(
        "embedding.layers=[3,-1]",
        "embedding.long_sequences.max_residues=50",
        "embedding.long_sequences.policy=crop",
        inputs=[table],
    )
    assert path == Path("out/config.yaml")
    written = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert (written["inputs"], written["model"]) == ([table], MODEL)
    assert (written["buckets"], written["validate"]) == (4, {"spot_checks": 16})
    assert written["embedding"]["layers"] == [3, -1]
    assert written["embedding"]["long_sequences"]["max_residues"] == 50


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("embeding.layers=[1]", "did you mean embedding?"),
        ("embedding.layers=[99]", "has layers 0 to 6"),
        ("buckets", "write KEY=VALUE"),
        ("buckets=many", "is not of type 'integer'"),
    ],
)
def test_a_wrong_setting_is_named(setting: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words.replace("?", r"\?")):
        configuration(given(), [setting])


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
    with pytest.raises(ConfigError, match=r"have inputs: some.fasta, too; choose another") as found:
        write(inputs=["more.fasta"])
    assert found.value.key == "inputs"
    with pytest.raises(ConfigError, match=r"embedding.layers: \[-1\], not \[3\]; choose another"):
        write("embedding.layers=[3]", inputs=both)
    with pytest.raises(ConfigError, match=r"residues.gaps: remove, not skip"):
        write("residues.gaps=skip", inputs=both)


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
    config = configuration(given(model=["nt-2.5b-1000g"]), ["weights.nt-2.5b-1000g=w.pt"])
    assert config["weights"] == {"nt-2.5b-1000g": "w.pt"}


def test_where_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    config = configuration(given(), [])
    common = ["--configfile", "out/config.yaml"]
    common += ["--workflow-profile", str(CLONE / "profiles" / "default")]
    assert command(config, "", 3) == [*common, "--cores", "3"]
    shipped = str(CLONE / "profiles" / "slurm")
    assert command(config, "slurm", None) == [*common, "--profile", shipped]
    assert f"--snakefile {CLONE}/workflow/Snakefile --conf" in shell_line(common)
    monkeypatch.chdir(CLONE)
    assert "--snakefile" not in shell_line(common)
    assert command(config, "mine", None)[-1] == "mine"  # a folder, or of ~/.config/snakemake
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    words = " ".join(command(config, "", None))
    assert "--resources gpu=2 --set-resources embed:gpu=2 --cores" in words
    assert "embed:device=cpu --cores" in " ".join(command(config, "", None, "cpu"))


def test_a_lock_is_named_with_what_to_do(here: Path) -> None:
    (here / "random.py").write_text("raise SystemExit('executed')")
    words = ["--configfile", str(write("buckets=1")), "--cores", "1"]
    execute([*words, "--dry-run"])
    locks = here / ".snakemake" / "locks"
    locks.mkdir(parents=True, exist_ok=True)
    (locks / "0.output.lock").write_text("out/sequences/summary.json\n")
    with pytest.raises(PlmEmbedError, match=r"or was killed; wait for .*--unlock`, then"):
        execute(words)
    with pytest.raises(PlmEmbedError, match="a step failed; its log is above"):
        execute([*words, "--nolock", "--until", "nothing"])
