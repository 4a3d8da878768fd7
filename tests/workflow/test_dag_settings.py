"""How settings reach the commands of jobs."""

import json
import re
import shlex
from collections import Counter

import pytest

from support.dag import Plan

pytestmark = [pytest.mark.workflow, pytest.mark.usefixtures("fresh")]


def test_options_reach_the_command_quoted() -> None:
    table = {"path": "config/demo/proteins.csv", "sequence": "the sequence", "keep": ["it's"]}
    plan = Plan(
        {
            "inputs": [table],
            "model": "esm2_t3_untrained",
            "weights": "config",
        },
        embed=["scratch='/local disk'"],
    )
    command = plan.job("deduplicate").shellcmd
    tables = [{"sequence": "the sequence", "keep": ["it's"]}]
    assert f"--tables={json.dumps(tables)}" in shlex.split(command)
    assert " --scratch='/local disk' " in plan.job("embed").shellcmd
    assert ' --settings \'{"layers": [-1], "pooling": ["mean"], ' in plan.job("embed").shellcmd
    assert " --source=config " in plan.job("weights").shellcmd
    downloaded = Plan({"model": "esm2_8m"}).job("weights").shellcmd
    assert "--source" not in downloaded


def test_a_profile_sets_what_decides_the_speed() -> None:
    own = {
        "device": "cpu",
        "toks_per_batch": "4096 * attempt",
        "scratch": "'/local disk/$NODE_DISK'",
        "flush_minutes": "'0.5'",
    }
    job = Plan(embed=[f"{name}={value}" for name, value in own.items()]).job("embed")
    given = (
        " --device=cpu --scratch='/local disk/$NODE_DISK' --toks-per-batch {} --flush-minutes 0.5"
    )
    assert given.format(4096) in job.shellcmd
    job.attempt = 2
    assert given.format(8192) in job.shellcmd
    assert "--scratch= " in Plan(embed=["scratch=''"]).job("embed").shellcmd


def test_a_job_is_given_what_the_configuration_says_once() -> None:
    plan = Plan()
    for step, options in (
        ("deduplicate", "buckets residues tables"),
        ("embed", "settings per-residue-limit-gb device threads toks-per-batch scratch"),
        ("validate", "spot-checks"),
    ):
        given = Counter(re.findall(r"--([a-z-]+)(?==| )", plan.job(step).shellcmd))
        assert {given[option] for option in options.split()} == {1}, plan.job(step).shellcmd
