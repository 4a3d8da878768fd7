"""The plan: which jobs there are, which of them run again when something changes, and how settings
reach their commands.

The finished campaigns here are small files that Snakemake's touch mode records as made by the
present settings.
"""

import json
import os
import re
import shlex
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.dag import ROOT, Plan

pytestmark = [pytest.mark.workflow, pytest.mark.usefixtures("fresh")]
SHIPPED: dict[str, Any] = yaml.safe_load(
    (ROOT / "config" / "config.yaml").read_text(encoding="utf-8")
)
ESM, OTHER = "esm2_t3_untrained", "esm2_t6_8M_UR50D"
SCIENCE: list[tuple[dict[str, Any], str]] = [
    ({"embedding": {"layers": [2]}}, "embed"),
    ({"embedding": {"pooling": ["mean", "max"]}}, "embed"),
    ({"embedding": {"compute_dtype": "float32"}}, "embed"),
    ({"embedding": {"storage_dtype": "float32"}}, "embed"),
    ({"embedding": {"long_sequences": {"policy": "crop", "max_residues": 100}}}, "embed"),
    ({"residues": {"unknown": "substitute"}}, "deduplicate"),
    ({"residues": {"gaps": "skip"}}, "deduplicate"),
    ({"validate": {"spot_checks": 3}}, "validate"),
]
BOTH: dict[str, Any] = {"model": [ESM, OTHER]}
PROVEN = {"validate": 1, "report": 1, "all": 1}
GATHERED = {"gather_esm2": 1} | PROVEN
EMBEDDED = {"embed": 4} | GATHERED
DOWNSTREAM = {
    "deduplicate": {"deduplicate": 1} | EMBEDDED,
    "weights": {"weights": 1} | EMBEDDED,
    "embed": EMBEDDED,
    "validate": PROVEN,
}
"""The jobs that run again, by the first of them."""


@pytest.fixture(scope="module")
def model_campaign(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("campaign")
    shutil.copytree(ROOT / "config", folder / "config")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for output in (output for job in Plan().jobs for output in job.output):
            path = Path(output)
            path.parent.mkdir(parents=True, exist_ok=True)
            if output.is_directory:
                path.mkdir()
            else:
                path.write_text("{}", encoding="utf-8")
        Plan(executor="touch")
    return folder


@pytest.fixture
def finished(fresh: Path, model_campaign: Path) -> None:
    """The working folder looks as if the campaign had been run there."""
    shutil.copytree(model_campaign, fresh, dirs_exist_ok=True)


def test_the_plan_is_complete_before_anything_ran() -> None:
    for buckets in (1, 4, 100):
        plan = Plan({"buckets": buckets})
        assert (
            plan.runs == plan.total == DOWNSTREAM["deduplicate"] | {"weights": 1, "embed": buckets}
        )


def test_every_job_says_what_it_needs_and_where_it_logs() -> None:
    for job in Plan().jobs:
        if job.rule.name == "all":
            continue
        assert job.rule.docstring
        assert job.log[0].startswith("results/logs/")
        assert job.benchmark.startswith("results/benchmarks/") and job.benchmark.endswith(".jsonl")
        assert (ROOT / "workflow" / "rules" / job.rule.conda_env).is_file()
        assert "&> " in job.shellcmd
        # in a rule they would be obeyed again inside each cluster job
        assert not job.rule.restart_times


def test_jobs_run_in_the_container_that_is_named() -> None:
    images = {job.rule.container_img for job in Plan({"container": "plm-embed.sif"}).jobs}
    assert images == {"plm-embed.sif"}
    assert not any(job.rule.container_img for job in Plan().jobs)


def test_an_embed_job_asks_for_one_gpu_and_memory_by_its_model() -> None:
    resources = Plan({"model": "esm2_650m"}).job("embed").resources
    assert (resources.gpu, resources.nodes, resources.device) == (1, 1, "auto")
    assert resources.mem_mb > Plan().job("embed").resources.mem_mb >= 6000


def test_a_retry_asks_for_more_memory_and_the_time_of_the_profile() -> None:
    for rule in ("deduplicate", "embed", "gather_esm2", "validate", "report"):
        job = Plan().job(rule)
        asked = []
        for attempt in (1, 2, 3):
            job.attempt = attempt
            asked.append(job.resources["mem_mb"])
            # in another rule, it would hold against the default of a profile
            assert job.resources.get("runtime") == (240 if rule == "embed" else None)
        first, *more = asked
        assert more == [2 * first, 3 * first], rule


@pytest.mark.usefixtures("finished")
def test_a_finished_campaign_and_speed_settings_run_nothing_again() -> None:
    assert not Plan().runs
    changes = {"embedding": {"per_residue_limit_gb": 7}}
    faster = ["toks_per_batch=4096", "device=cpu", "flush_minutes=1", "scratch=''", "gpu=4"]
    assert not Plan(changes, embed=faster).runs


@pytest.mark.usefixtures("finished")
@pytest.mark.parametrize(("change", "first"), SCIENCE)
def test_science_settings_run_what_depends_on_them(change: dict[str, Any], first: str) -> None:
    assert Plan(change).runs == DOWNSTREAM[first]


@pytest.mark.usefixtures("finished")
def test_another_number_of_buckets_shares_the_work_out_again() -> None:
    assert Plan({"buckets": 6}).runs == DOWNSTREAM["deduplicate"] | {"embed": 6}


def test_each_of_several_models_has_jobs_of_its_own() -> None:
    plan = Plan(BOTH)
    assert plan.runs["deduplicate"] == 1 and plan.runs["embed"] == 8
    for model in BOTH["model"]:
        jobs = {job.rule.name: job for job in plan.jobs if job.wildcards.get("model") == model}
        assert set(jobs) == {"weights", "embed", "gather_esm2", "validate", "report"}
        for job in jobs.values():
            assert job.log[0].startswith(f"results/logs/{model}/")
            assert job.benchmark.startswith(f"results/benchmarks/{model}/")
            assert f"results/{model}" in job.shellcmd
    memory = [job.resources.mem_mb for job in plan.jobs if job.rule.name == "embed"]
    assert len(set(memory)) == 2


@pytest.mark.usefixtures("finished")
@pytest.mark.parametrize(
    ("name", "runs"),
    [
        *((name, {"report": 1, "all": 1}) for name in ("report.html", "skipped.tsv")),
        *((name, {"report": 1, "all": 1}) for name in ("config.yaml", "ro-crate-metadata.json")),
        *((name, PROVEN) for name in ("validation.json", "checksums.sha256")),
        *((f"master_esm2_embeddings.{end}", GATHERED) for end in ("h5", "parquet")),
        ("records.parquet", GATHERED),
        ("embedded/0002.json", {"embed": 1} | GATHERED),
        ("weights.json", DOWNSTREAM["weights"]),
        ("../sequences/summary.json", DOWNSTREAM["deduplicate"]),
    ],
)
def test_a_file_that_was_deleted_is_made_again_and_what_comes_of_it(
    name: str, runs: dict[str, int]
) -> None:
    Path("results", ESM, name).unlink()
    assert Plan().runs == runs


@pytest.mark.usefixtures("finished")
def test_each_product_is_a_target() -> None:
    master = f"results/{ESM}/master_esm2_embeddings.h5"
    Path(master).unlink()
    assert Plan(targets=[master]).runs == {"gather_esm2": 1}
    assert not Plan(targets=[f"results/{ESM}/embedded/0000.json"]).runs


@pytest.mark.usefixtures("finished")
@pytest.mark.parametrize("seconds", [0, 3600], ids=["as old as before", "newer"])
def test_a_changed_input_runs_from_the_start(seconds: int) -> None:
    path = Path("config/demo/proteins.fasta")
    before = path.stat()
    path.write_text(path.read_text() + ">more\nMK\n")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + seconds * 10**9))
    assert Plan().runs == DOWNSTREAM["deduplicate"]


@pytest.mark.usefixtures("finished")
def test_a_new_input_file_runs_from_the_start() -> None:
    shutil.copy("config/demo/proteins.csv", "more.csv")
    inputs = [*SHIPPED["inputs"], {**SHIPPED["inputs"][1], "path": "more.csv"}]
    assert Plan({"inputs": inputs, "model": ESM}).runs == DOWNSTREAM["deduplicate"]


def test_options_reach_the_command_quoted() -> None:
    table = {"path": "config/demo/proteins.csv", "sequence": "the sequence", "keep": ["it's"]}
    plan = Plan(
        {"inputs": [table], "model": "esm2_t3_untrained", "weights": "config"},
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
