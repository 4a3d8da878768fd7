"""The file that a remedy names is the one that Snakemake knows."""

import shlex
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import plm_embed
from plm_embed.errors import StoreError, make_again
from plm_embed.reporting.repeat import keep_config
from support.campaigns import gathered_campaign

Kept = Callable[[str], Path]


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Kept:
    """Results that a run left in a folder which is the present one, by what it calls them."""
    began = tmp_path / "began"
    began.mkdir()
    monkeypatch.chdir(began)

    def keep(results: str) -> Path:
        model = began / results / "esm2"
        model.mkdir(parents=True)
        keep_config({"store": "", "results": results, "buckets": 4}, model)
        return model

    return keep


@pytest.mark.parametrize("results", ["results", "a/b c", "it's", "."])
def test_an_absolute_path_is_named_as_configured(kept: Kept, results: str) -> None:
    name = shlex.quote(str(Path(results, "esm2", "records.parquet")))
    file = kept(results) / "records.parquet"
    assert make_again(file) == f"run `snakemake --forcerun {name}`"


def test_from_elsewhere_the_folder_of_the_run_is_named(
    kept: Kept, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    began = kept("results").parents[1]
    monkeypatch.chdir(tmp_path)
    said = f"run `snakemake --forcerun results/esm2/records.parquet` in {began}"
    assert make_again("began/results/esm2/records.parquet") == said


def test_results_that_the_configuration_names_by_an_absolute_path(
    kept: Kept, tmp_path: Path
) -> None:
    file = kept(str(tmp_path / "far")) / "records.parquet"
    assert make_again("../far/esm2/records.parquet") == make_again(file)
    assert make_again(file) == f"run `snakemake --forcerun {file}`"


def test_what_the_models_share_is_named_by_the_copy_of_any(kept: Kept) -> None:
    summary = kept("results").with_name("sequences") / "summary.json"
    assert make_again(summary) == "run `snakemake --forcerun results/sequences/summary.json`"


@pytest.mark.parametrize("change", ["none", "copied", "damaged"])
def test_a_path_stays_as_it_is_where_no_run_is_known(
    kept: Kept, tmp_path: Path, change: str
) -> None:
    model = kept("results")
    if change == "none":
        (model / "config.yaml").unlink()
    elif change == "copied":
        model = shutil.copytree(model.parent, tmp_path / "copy") / "esm2"
    else:
        (model / "config.yaml").write_bytes(b"# Paths are relative to 3\xff")
    file = model / "records.parquet"
    assert make_again(file) == f"run `snakemake --forcerun {file}`"


def test_a_reader_names_the_file_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    campaign = gathered_campaign(tmp_path)
    model = campaign.master.parent
    keep_config({"results": "results"}, model)
    campaign.master.write_bytes(campaign.master.read_bytes()[:5000])
    with pytest.raises(StoreError) as error:
        plm_embed.open(campaign.master.absolute())
    named = model.relative_to(tmp_path) / "records.parquet"
    assert error.value.remedy == f"run `snakemake --forcerun {named}`"
