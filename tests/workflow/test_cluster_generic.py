"""The workflow by an executor that knows nothing of it, as on any cluster with a shared disk."""

import subprocess
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

import plm_embed
from plm_embed.reporting.watch import look
from support.campaign_runs import snakemake, snakemake_command, working_folder
from support.demo import MASTER, MODEL, report

pytestmark = pytest.mark.workflow

SUBMIT = """#!/bin/sh
(while [ -e wait ]; do sleep 0.1; done; exec sh "$1") > job.log 2>&1 &
echo $!
"""


def by_cluster(folder: Path) -> list[str]:
    script = folder / "submit.sh"
    script.write_text(SUBMIT)
    script.chmod(0o755)
    executor = ["--executor", "cluster-generic", "--cluster-generic-submit-cmd", str(script)]
    on_cpu = ["--set-resources", "embed:device=cpu"]
    return [*executor, *on_cpu, "--jobs", "2", "--seconds-between-status-checks", "1"]


def test_jobs_that_wait_give_an_edit_of_the_configuration_and_nothing_mixed(tmp_path: Path) -> None:
    folder = working_folder(tmp_path / "work", buckets=1)
    assert snakemake(folder, "results/sequences/summary.json", "--cores", "1").returncode == 0
    # jobs are other processes of Snakemake, in this folder
    (folder / "random.py").write_text("raise SystemExit('random.py was executed')\n")
    (folder / "wait").touch()
    config = folder / "config/config.yaml"
    goal = f"results/{MODEL}/validation.json"
    command = snakemake_command(folder, goal, *by_cluster(folder))
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as run:
        assert run.stderr
        for line in run.stderr:
            if line.startswith("rule embed:"):
                waits = look(folder / "results")
                assert waits.alive and not (waits.at_work or waits.over)
                text = config.read_text(encoding="utf-8")
                config.write_text(text.replace("storage_dtype: float16", "storage_dtype: float32"))
                (folder / "wait").unlink()
    assert run.returncode == 0
    assert look(folder / "results").over
    assert report(folder).status == "passed"
    bucket = pq.read_table(folder / "results/sequences/buckets/0000.parquet").to_pydict()
    with plm_embed.open(folder / MASTER) as master:
        assert master.fingerprint.storage_dtype == "float32"
        stored = master.by_key(bucket["key"])
    assert np.array_equal(stored, plm_embed.embed(bucket["sequence"], MODEL, bar=False))
