"""The profiles: they are short, their links resolve, and the workflow is planned with each."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from support.campaign_runs import ROOT, snakemake, working_folder

PROFILES = sorted(path.parent.name for path in ROOT.glob("profiles/*/profile.yaml"))


@pytest.mark.parametrize("name", PROFILES)
def test_a_profile_says_what_it_is_for_on_one_screen(name: str) -> None:
    text = (ROOT / "profiles" / name / "profile.yaml").read_text(encoding="utf-8")
    assert text.startswith("# ") and len(text.splitlines()) <= 40
    profile = yaml.safe_load(text)
    assert profile["scheduler"] == "greedy"
    # in a rule they would be obeyed again inside each cluster job
    assert ("retries" in profile) == (name != "default")
    if "executor" in profile:  # no rule but embed has its own
        assert profile["default-resources"]["runtime"] == 240


@pytest.mark.parametrize("name", ["slurm", "pbs"])
def test_root_links_make_the_short_names_work(name: str) -> None:
    assert (ROOT / name).readlink() == Path("profiles") / name
    tracked = ["git", "-C", str(ROOT), "ls-files", "--stage", name]
    done = subprocess.run(tracked, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("120000 ")


def test_every_call_goes_on_after_a_kill_and_shows_failed_logs() -> None:
    profile = yaml.safe_load((ROOT / "profiles/default/profile.yaml").read_text(encoding="utf-8"))
    assert profile["rerun-incomplete"] and profile["show-failed-logs"]


@pytest.mark.workflow
@pytest.mark.parametrize("name", ["none", *PROFILES])
def test_the_workflow_can_be_planned_with_every_profile(name: str, tmp_path: Path) -> None:
    chosen = [] if name == "none" else ["--profile", str(ROOT / "profiles" / name)]
    plan = snakemake(working_folder(tmp_path / "work"), "-n", "-q", "rules", *chosen, buckets=12)
    assert plan.returncode == 0, plan.stdout
    assert re.search(r"^embed +12$", plan.stdout, re.MULTILINE)


@pytest.mark.workflow
@pytest.mark.parametrize("name", ["slurm", "pbs"])
def test_the_short_name_works_from_the_root_of_a_clone(name: str) -> None:
    command = [sys.executable, "-m", "snakemake", "--profile", name, "-n", "-q", "rules"]
    plan = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert plan.returncode == 0, plan.stderr
    assert f"Using profiles {name} and workflow specific profile profiles/default" in plan.stderr
