"""How settings reach the commands of jobs."""

import re
from collections import Counter
from pathlib import Path

import pytest

from plm_embed.inference.settings import Proof, Settings
from plm_embed.sequences.settings import Memory, Reading
from plm_embed.setting import settings
from support.dag import Plan

pytestmark = [pytest.mark.workflow, pytest.mark.usefixtures("fresh")]


def test_options_reach_the_command_quoted() -> None:
    table = Path("config/demo/proteins.csv").read_text().replace(",sequence\n", ",the sequence\n")
    Path("blanks.csv").write_text(table)
    plan = Plan(
        {
            "inputs": ["blanks.csv"],
            "table": {"sequence": "the sequence"},
            "speed": {"scratch": "$HOME/it's"},
            "weights": "config",
        }
    )
    command = plan.job("deduplicate").shellcmd
    assert " '--sequence-column=the sequence' --keep=assembly_id --keep=protein_name " in command
    assert """ --scratch='$HOME/it'"'"'s' """ in plan.job("embed").shellcmd
    assert " --layers=3 --pooling=mean " in plan.job("embed").shellcmd
    assert " --source=config " in plan.job("weights").shellcmd
    downloaded = Plan({"model": "esm2_8m", "weights": ""}).job("weights").shellcmd
    assert "--source" not in downloaded


@pytest.mark.parametrize(("asked", "left"), [(100, None), (50, 50)])
def test_a_run_here_does_not_wait_for_snakemakes_own_limit_of_jobs(
    asked: int, left: int | None
) -> None:
    """The 100 jobs a second that it has by itself: it would end a second later."""
    done = Plan(executor="local", targets=["results/sequences/summary.json"], jobs_per_second=asked)
    assert done.total["deduplicate"] == 1
    assert getattr(done.limit, "max_jobs", None) == left


def test_a_profile_sets_what_decides_the_speed() -> None:
    own = {
        "device": "cpu",
        "toks_per_batch": "4096 * attempt",
        "scratch": "'/local disk/$NODE_DISK'",
        "flush_minutes": "'0.5'",
        "per_residue_limit_gb": "7",
    }
    job = Plan(embed=[f"{name}={value}" for name, value in own.items()]).job("embed")
    given = (
        " --device=cpu --toks-per-batch={} --scratch='/local disk/$NODE_DISK' --flush-minutes=0.5"
        " --per-residue-limit-gb=7 &> "
    )
    assert given.format(4096) in job.shellcmd
    job.attempt = 2
    assert given.format(8192) in job.shellcmd
    assert " --scratch= " in Plan(embed=["scratch=''"]).job("embed").shellcmd


def test_a_job_is_given_each_setting_of_its_step() -> None:
    one_job, by_input = Plan(), Plan({"deduplicate": "by_input"})
    for plan, step, kinds in (
        (one_job, "deduplicate", (Reading, Memory)),
        (by_input, "scan", (Reading,)),
        (by_input, "split", (Memory,)),
        (one_job, "embed", (Settings,)),
        (one_job, "reference", (Proof,)),
    ):
        given = Counter(re.findall(r"--([a-z-]+)(?==| )", plan.job(step).shellcmd))
        asked = [one for kind in kinds for one in settings(kind) if one.default != ()]
        wrong = [one.option for one in asked if given[one.option] != 1]
        assert not wrong, (step, plan.job(step).shellcmd)
