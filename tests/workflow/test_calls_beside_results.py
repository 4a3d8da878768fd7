"""Calls of Snakemake with another configuration that run no job: what lies there stays as it is."""

import os
from pathlib import Path

import pytest

from plm_embed.workflow.run_note import note_start
from support.campaign_runs import snakemake
from support.demo import MASTER, MODEL, ONE_THREAD

pytestmark = pytest.mark.workflow
OTHER = {"buckets": 3, "embedding": {"storage_dtype": "float32"}}


def files(folder: Path) -> dict[str, int]:
    """Results, with their times."""
    found = folder.glob("results/**/*")
    return {str(path): path.stat().st_mtime_ns for path in found if path.is_file()}


@pytest.mark.parametrize(
    "options",
    [
        ("--dag",),
        ("--list-rules",),
        ("--detailed-summary",),
        ("--cleanup-metadata", MASTER),
        ("--list-changes", "params"),
        ("--report", "report.zip"),
    ],
    ids=" ".join,
)
def test_a_look_with_other_settings_changes_nothing(copy: Path, options: tuple[str, ...]) -> None:
    before = files(copy)
    snakemake(copy, *options, **OTHER)
    assert files(copy) == before


def test_a_call_that_a_lock_refuses_changes_nothing(copy: Path) -> None:
    before, locks = files(copy), copy / ".snakemake/locks"
    locks.mkdir(parents=True, exist_ok=True)
    (locks / "0.output.lock").write_text(f"results/{MODEL}/gathered.json\n", encoding="utf-8")
    refused = snakemake(copy, *ONE_THREAD, **OTHER)
    assert refused.returncode == 1 and "cannot be locked" in refused.stdout, refused.stdout
    assert files(copy) == before
    # who says that the lock means nothing gets what the settings ask for
    insisted = snakemake(copy, "--nolock", *ONE_THREAD, **OTHER)
    assert insisted.returncode == 0 and "validated" in insisted.stdout, insisted.stdout


def test_a_call_beside_a_run_from_another_folder_changes_nothing(copy: Path) -> None:
    note_start(copy / "results", [MODEL])
    before = files(copy)
    refused = snakemake(copy, *ONE_THREAD, **OTHER)
    assert refused.returncode == 1, refused.stdout
    assert f"a run is at work here (process {os.getpid()}, " in refused.stdout
    assert files(copy) == before
