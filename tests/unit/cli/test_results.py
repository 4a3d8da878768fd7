"""The commands about results, gather and validate: the files that they find, and what they miss."""

import os
from dataclasses import replace
from pathlib import Path

import h5py
import pytest
from click.testing import CliRunner

from plm_embed.cli.main import group
from plm_embed.io.json_files import write_sealed
from plm_embed.master.validation_record import read_validation
from plm_embed.models.weights import RECORD, read_manifest
from plm_embed.reporting.failures import error_at_the_end
from support.campaigns import gathered_campaign


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a gathered model."""
    campaign = gathered_campaign(tmp_path / "ran")
    folder = campaign.master.parent
    manifest = replace(read_manifest(campaign.weights), folder=str(campaign.weights))
    write_sealed(folder / RECORD, manifest)
    (folder / "store").symlink_to(campaign.store)
    monkeypatch.chdir(tmp_path)
    return folder


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Number of sequences for the reference, which knows no made-up vectors."""
    counts: list[int] = []
    monkeypatch.setattr(
        "plm_embed.master.spot_checks.draw", lambda _, __, count: counts.append(count) or ()
    )
    return counts


@pytest.mark.parametrize("named", ["..", "."])
def test_validate_finds_its_files_in_a_results_folder(
    named: str, model: Path, drawn: list[int]
) -> None:
    os.chdir(model)
    for options, count in (([], 16), (["--spot-checks", "2", "--store", "../../store"], 2)):
        done = CliRunner().invoke(group, ["validate", named, *options])
        assert done.exit_code == 0, done.output
        assert "valid: 14 checks, 58 vectors" in done.output
        assert drawn.pop() == count
    assert read_validation(model / "validation.json")
    assert (model / "checksums.sha256").is_file()


def test_validate_changes_nothing_without_the_sequences(model: Path) -> None:
    """As in a copy of the model's folder alone."""
    (model / "checksums.sha256").touch()
    (model.parent / "sequences").rename(model / "elsewhere")
    done = CliRunner().invoke(group, ["validate", str(model)])
    assert done.exit_code == 1 and "summary.json: there is no such file" in str(done.exception)
    assert (model / "checksums.sha256").exists()


@pytest.mark.usefixtures("drawn")
def test_what_is_not_valid_is_said_with_what_to_do(model: Path) -> None:
    """In the first two lines, which are all that a run shows of it."""
    master = model / "master_esm2_embeddings.h5"
    with h5py.File(master, "r+") as file:
        file["length"][5] = 7
    done = CliRunner().invoke(group, ["validate", str(model)])
    assert done.exit_code == 1 and "row 5" in str(done.exception)
    log = model / "validate.log"
    log.write_text(f"plm-embed: error: {done.exception}\n")
    first, _ = error_at_the_end(log).splitlines()
    assert first.startswith(f"{master} is not valid; delete {master} and run")
    part = max(model.glob("store/*/parts/*"))
    part.write_bytes(part.read_bytes()[:-1])  # which comes first: of it the master is made
    done = CliRunner().invoke(group, ["validate", str(model)])
    assert f" is not valid; delete {part} and {model}/embedded/" in str(done.exception)
