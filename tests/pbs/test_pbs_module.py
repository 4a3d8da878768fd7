"""Rules of a repository, read anew by each job on its node."""

import subprocess
import sys
from pathlib import Path

import pytest

from conftest import ANY_PBS, QUICK
from support.campaign_runs import ROOT
from support.deployed import deployed, repository_of_the_rules

pytestmark = pytest.mark.workflow


@pytest.mark.usefixtures("pbs")
def test_a_job_reads_the_rules_of_a_repository(tmp_path: Path) -> None:
    folder = deployed(tmp_path / "deployed", repository_of_the_rules(tmp_path / "plm-embed"))
    profile = ["--profile", str(ROOT / "profiles" / ANY_PBS), *QUICK, "--until", "deduplicate"]
    done = subprocess.run(
        [sys.executable, "-m", "snakemake", *profile, "--config", "buckets=1"], cwd=folder,
        check=False, text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    assert "(deduplicate) was submitted to PBS" in done.stdout
    assert (folder / "results" / "sequences" / "summary.json").is_file()
