"""The commands about results, gather and validate: the files that they find, and what they miss."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from plm_embed.cli.main import group
from plm_embed.reporting.failures import error_at_the_end

pytestmark = pytest.mark.workflow


@pytest.fixture
def campaign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A results folder with what validate looks for, of a run in the folder `ran`."""
    weights = tmp_path / "ran" / "w" / "m"
    monkeypatch.setattr("plm_embed.inference.weights.prepared_folder", lambda _: weights)
    folder = tmp_path / "results" / "m"
    for path in (folder / "embedded", folder.parent / "sequences"):
        path.mkdir(parents=True)
    for path in (weights, tmp_path / "ran" / "s"):
        path.mkdir(parents=True)
    masters = ("master_esm2_embeddings.h5", "master_esm2_embeddings.parquet")
    for name in (*masters, "records.parquet", "weights.json"):
        (folder / name).touch()
    (folder / "config.yaml").write_text(
        f'# a head\n# Paths are relative to "{tmp_path}/ran"\nstore: s\n'
        "validate: {spot_checks: 100}\n"
    )
    return folder


@pytest.mark.parametrize("named", ["results", "results/m", "."])
def test_validate_finds_its_files_in_a_results_folder(
    named: str, campaign: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(campaign if named == "." else tmp_path)
    (tmp_path / "other.parquet").touch()
    asked: dict[str, object] = {}
    monkeypatch.setattr("plm_embed.master.validate.validate", lambda **given: asked.update(given))
    done = CliRunner().invoke(group, ["validate", named, "--index", f"{tmp_path}/other.parquet"])
    assert done.exit_code == 0, done.output
    assert asked.pop("expected")
    assert asked == {
        "sequences": campaign.parent / "sequences",
        "embedded": campaign / "embedded",
        "store": tmp_path / "ran" / "s",
        "weights": tmp_path / "ran" / "w" / "m",
        "master": campaign / "master_esm2_embeddings.h5",
        "index": tmp_path / "other.parquet",
        "records": campaign / "records.parquet",
        "report": campaign / "validation.json",
        "checksums": campaign / "checksums.sha256",
    }


def test_validate_compares_with_what_the_reference_computes_now(
    campaign: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights, sequences = tmp_path / "ran" / "w" / "m", campaign.parent / "sequences"
    asked: list[object] = []
    monkeypatch.setattr(
        "plm_embed.master.validate.validate", lambda expected, **_: expected("fingerprint")
    )
    monkeypatch.setattr(
        "plm_embed.master.expected_vectors.expect", lambda *given: asked.append(given) or []
    )
    for options in ([], ["--spot-checks", "2"]):
        done = CliRunner().invoke(group, ["validate", str(campaign), *options])
        assert done.exit_code == 0, done.output
    assert asked == [
        (sequences, weights, "fingerprint", 100),
        (sequences, weights, "fingerprint", 2),
    ]


def test_validate_changes_nothing_before_all_its_files_are_there(campaign: Path) -> None:
    (campaign / "checksums.sha256").touch()
    for name in ("records.parquet", "../sequences"):
        (campaign / name).rename(campaign / "elsewhere")
        done = CliRunner().invoke(group, ["validate", str(campaign)])
        assert done.exit_code == 2 and "not found; name it with --" in done.output
        (campaign / "elsewhere").rename(campaign / name)
    assert (campaign / "checksums.sha256").exists()
    done = CliRunner().invoke(group, ["validate"])
    assert done.exit_code == 2 and "give a results folder, or --sequences" in done.output


@pytest.mark.parametrize(
    ("problems", "said"),
    [
        (
            ["keys: row 3 is gone", "finite: row 1 holds NaN"],
            "has the details); delete {gathered} and run the campaign again:\n  keys: row 3",
        ),
        (
            ["keys: row 3 is gone", "parts: a.h5: cut; run the campaign again"],
            "has the details):\n  parts: a.h5: cut; run the campaign again",
        ),
    ],
)
def test_what_is_not_valid_is_said_with_what_to_do(
    problems: list[str], said: str, campaign: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the first two lines, which are all that a run shows of it."""
    monkeypatch.setattr("plm_embed.master.validate.validate", lambda **_: list(problems))
    done = CliRunner().invoke(group, ["validate", str(campaign)])
    assert done.exit_code == 1
    log = campaign / "validate.log"
    log.write_text(f"plm-embed: error: {done.exception}\n")
    shown = error_at_the_end(log)
    said = said.replace("{gathered}", str(campaign / "master_esm2_embeddings.h5"))
    assert "is not valid" in shown and said in shown and len(shown.splitlines()) == 2
    assert all(problem in str(done.exception) for problem in problems)
