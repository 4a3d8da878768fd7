"""The profiles: they parse, their links resolve, and the workflow can be planned with each of
them.
"""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from plm_embed.planning import proposals
from plm_embed.sites.slurm import site_of
from plm_embed.workflow.config_file import read_config
from support.campaign_runs import ROOT, snakemake, working_folder

PROFILES = sorted(path.parent.name for path in ROOT.glob("profiles/*/profile.yaml"))


@pytest.mark.parametrize("name", PROFILES)
def test_profiles_say_what_they_are_for_and_parse(name: str) -> None:
    text = (ROOT / "profiles" / name / "profile.yaml").read_text(encoding="utf-8")
    assert text.startswith("# ")
    assert isinstance(yaml.safe_load(text), dict)


@pytest.mark.parametrize("name", ["slurm", "pbs"])
def test_root_links_make_the_short_names_work(name: str) -> None:
    assert (ROOT / name).readlink() == Path("profiles") / name
    tracked = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files", "--stage", name],
        capture_output=True,
        text=True,
        check=True,
    )
    assert tracked.stdout.startswith("120000 ")


def test_slurm_jobs_stay_on_one_node_and_go_back_into_the_queue() -> None:
    profile = yaml.safe_load((ROOT / "profiles/slurm/profile.yaml").read_text(encoding="utf-8"))
    assert profile["executor"] == "slurm-steady"
    assert profile["default-resources"]["nodes"] == 1
    assert profile["slurm-steady-requeue"] is True


def test_every_call_goes_on_after_a_kill_and_shows_failed_logs() -> None:
    profile = yaml.safe_load((ROOT / "profiles/default/profile.yaml").read_text(encoding="utf-8"))
    assert profile == {"rerun-incomplete": True, "show-failed-logs": True}


@pytest.mark.workflow
@pytest.mark.parametrize("name", ["none", *PROFILES])
def test_the_workflow_can_be_planned_with_every_profile(name: str, tmp_path: Path) -> None:
    chosen = [] if name == "none" else ["--profile", str(ROOT / "profiles" / name)]
    plan = snakemake(working_folder(tmp_path / "work"), "-n", "-q", "rules", *chosen, buckets=12)
    assert plan.returncode == 0, plan.stdout
    line = "plm-embed: esm2_t3_untrained, 12 buckets; records not counted yet; 0 parts"
    assert line in plan.stdout
    assert re.search(r"^embed +12$", plan.stdout, re.MULTILINE)


@pytest.mark.workflow
@pytest.mark.parametrize("name", ["slurm", "pbs"])
def test_the_short_name_works_from_the_root_of_a_clone(name: str) -> None:
    command = [sys.executable, "-m", "snakemake", "--profile", name, "-n", "-q", "rules"]
    plan = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert plan.returncode == 0, plan.stderr
    assert f"Using profiles {name} and workflow specific profile profiles/default" in plan.stderr


@pytest.mark.workflow
def test_the_plans_command_keeps_what_an_edited_profile_sets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """--set-resources of a command line replaces the profile's, so the command has them all."""
    folder = working_folder(tmp_path / "work")
    profile = yaml.safe_load((ROOT / "profiles/slurm/profile.yaml").read_text(encoding="utf-8"))
    own = {
        "gpu": 1,
        "slurm_partition": "old",
        "qos": "long",
        "slurm_extra": "'--exclusive'",
        "mem_mb": "100 * attempt",
    }
    profile["set-resources"] = {"embed": own, "gather": {"slurm_partition": "big"}}
    (folder / "slurm").mkdir()
    (folder / "slurm" / "profile.yaml").write_text(yaml.safe_dump(profile))
    monkeypatch.chdir(folder)
    site = site_of(["gpu|up|30:00|2|gpu:a100:4"])
    words = list(
        proposals.command(proposals.proposals(site, 0.1)[0], "", site, None, read_config(None))
    )
    assert words[:3] == ["snakemake", "--profile", "slurm"]
    plan = snakemake(folder, "-n", *words[1:])
    assert plan.returncode == 0, plan.stdout
    asked = {
        found[1]: dict(word.split("=", 1) for word in found[2].split(", "))
        for found in re.finditer(
            r"^rule (\w+):$.*?^    resources: (.*?)$", plan.stdout, re.MULTILINE | re.DOTALL
        )
    }
    wanted = {
        "slurm_partition": "gpu",
        "qos": "long",
        "slurm_extra": "--exclusive",
        "mem_mb": "100",
        "gpu": "1",
    }
    assert {name: asked["embed"][name] for name in wanted} == wanted
    assert asked["gather"]["slurm_partition"] == "big"


@pytest.mark.workflow
def test_a_profile_with_the_plain_slurm_executor_works_and_is_told_what_to_write(
    tmp_path: Path,
) -> None:
    folder = working_folder(tmp_path / "work")
    (folder / "own").mkdir()
    text = (ROOT / "profiles/slurm/profile.yaml").read_text(encoding="utf-8")
    (folder / "own" / "profile.yaml").write_text(text.replace("slurm-steady", "slurm"))
    plan = snakemake(folder, "-n", "-q", "rules", "--profile", str(folder / "own"))
    assert plan.returncode == 0, plan.stdout
    (line,) = [line for line in plan.stdout.splitlines() if "executor slurm" in line]
    assert (
        "write `executor: slurm-steady`, and slurm-steady- for slurm- in "
        "slurm-delete-logfiles-older-than" in line
    )
    half = snakemake(
        folder, "-n", "-q", "rules", "--profile", str(folder / "own"), "--executor", "slurm-steady"
    )
    assert (
        half.returncode == 0
        and "executor slurm-steady takes no slurm-delete-logfiles" in half.stdout
    )
