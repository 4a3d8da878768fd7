"""The plan: which jobs there are, and which of them run again when something changes.

The finished campaigns here are small files that Snakemake's touch mode records as made by the
present settings, with a proof that names what validate said.
"""

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from plm_embed.master.gather_record import write_record
from support.dag import ROOT, Plan
from support.proof import prove

pytestmark = [pytest.mark.workflow, pytest.mark.usefixtures("fresh")]
SHIPPED: dict[str, Any] = yaml.safe_load(
    (ROOT / "config" / "config.yaml").read_text(encoding="utf-8")
)
SCIENCE: list[tuple[dict[str, Any], str]] = [
    ({"embedding": {"layers": [2]}}, "meaning"),
    ({"embedding": {"pooling": ["mean", "max"]}}, "meaning"),
    ({"embedding": {"compute_dtype": "float32"}}, "embed"),
    ({"embedding": {"storage_dtype": "float32"}}, "embed"),
    ({"embedding": {"long_sequences": {"policy": "crop", "max_residues": 100}}}, "meaning"),
    ({"store": "elsewhere"}, "embed"),
    ({"residues": {"unknown": "substitute"}}, "deduplicate"),
    ({"residues": {"gaps": "skip"}}, "deduplicate"),
    ({"table": {"keep": []}}, "deduplicate"),
    ({"validate": {"spot_checks": 3}}, "reference"),
]
OTHER = "esm2_t6_8M_UR50D"
BOTH: dict[str, Any] = {
    "model": ["esm2_t3_untrained", OTHER],
    "weights": {"esm2_t3_untrained": "config/demo/esm2_t3_untrained.pt"},
}
PROVEN = {"validate": 1, "report": 1, "all": 1}
EMBEDDED = {"embed": 4, "gather": 1} | PROVEN
DOWNSTREAM = {
    "deduplicate": {"deduplicate": 1, "reference": 1} | EMBEDDED,
    "weights": {"weights": 1, "reference": 1} | EMBEDDED,
    "meaning": {"reference": 1} | EMBEDDED,
    "embed": EMBEDDED,
    "reference": {"reference": 1} | PROVEN,
}
"""The jobs that run again, by what is changed; meaning: which vectors are asked for."""


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
            elif path.name == "gathered.json":
                write_record(path, [])
            else:
                path.write_text('{"records": 1, "unique": 1, "sha256": ""}', encoding="utf-8")
        prove(Path("results/esm2_t3_untrained/checksums.sha256"), [])
        Plan(executor="touch")
    return folder


@pytest.fixture
def finished(fresh: Path, model_campaign: Path) -> None:
    """The working folder looks as if the campaign had been run there."""
    shutil.copytree(model_campaign, fresh, dirs_exist_ok=True)


def test_the_plan_is_complete_before_anything_ran() -> None:
    once = {"deduplicate": 1, "weights": 1, "reference": 1, "gather": 1} | PROVEN
    for buckets in (1, 4, 100):
        plan = Plan({"buckets": buckets})
        assert plan.runs == plan.total == once | {"embed": buckets}


def test_deduplication_by_input_is_planned_in_full() -> None:
    for buckets, ranges in ((4, 4), (100, 64)):
        plan = Plan({"deduplicate": "by_input", "buckets": buckets})
        jobs = {
            name: plan.runs[name] for name in ("deduplicate", "scan", "split", "collect", "embed")
        }
        assert jobs == {
            "deduplicate": 0,
            "scan": 2,
            "split": ranges,
            "collect": 1,
            "embed": buckets,
        }


@pytest.mark.parametrize("way", ["one_job", "by_input"])
def test_rules_run_where_snakemake_runs_if_the_user_says_so(way: str) -> None:
    asked = ["deduplicate", "validate", "report"]
    plan = Plan({"deduplicate": way, "speed": {"local_rules": asked}})
    steps = {"deduplicate"} if way == "one_job" else {"scan", "split", "collect"}
    assert plan.local == {"all", "weights", "reference", "validate", "report", *steps}
    assert plan.local <= set(plan.total)


def test_every_job_says_what_it_needs_and_where_it_logs() -> None:
    for job in Plan().jobs:
        if job.rule.name == "all":
            continue
        assert job.rule.docstring
        assert job.log[0].startswith("results/logs/")
        assert job.benchmark.startswith("results/benchmarks/") and job.benchmark.endswith(".jsonl")
        assert (ROOT / "workflow" / "rules" / job.rule.conda_env).is_file()
        assert job.resources.mem_mb >= 2000
        assert job.resources.runtime >= 30
        assert "&> " in job.shellcmd


def test_jobs_run_in_the_container_that_is_named() -> None:
    images = {job.rule.container_img for job in Plan({"container": "plm-embed.sif"}).jobs}
    assert images == {"plm-embed.sif"}
    assert not any(job.rule.container_img for job in Plan().jobs)


def test_an_embed_job_asks_for_one_gpu_on_one_node() -> None:
    resources = (
        Plan({"model": "esm2_650m", "speed": {"toks_per_batch": 5000}}).job("embed").resources
    )
    assert (resources.gpu, resources.nodes, resources.toks_per_batch, resources.device) == (
        1,
        1,
        5000,
        "auto",
    )
    one = Plan().job("embed").resources.mem_mb
    assert resources.mem_mb > one
    assert Plan(embed=["gpu=4", "nodes=2"]).job("embed").resources.mem_mb == 4 * one


def test_another_attempt_asks_for_the_same_unless_it_is_known_what_was_short() -> None:
    for rule in ("deduplicate", "embed", "reference", "gather", "validate", "report"):
        job = Plan().job(rule)
        asked = []
        for attempt in (1, 2, 3):
            job.attempt = attempt
            asked.append((job.resources["mem_mb"], job.resources["runtime"]))
        assert asked[0] == asked[1] == asked[2], rule


@pytest.mark.usefixtures("finished")
def test_a_finished_campaign_runs_nothing_again() -> None:
    assert not Plan().runs


@pytest.mark.usefixtures("finished")
def test_speed_settings_run_nothing_again() -> None:
    faster = {"device": "cpu", "toks_per_batch": 999, "flush_minutes": 1, "scratch": ""}
    changes = {"speed": faster, "memory_mb": 9000, "embedding": {"per_residue_limit_gb": 7}}
    assert not Plan(changes, embed=["toks_per_batch=4096"]).runs


@pytest.mark.usefixtures("finished")
def test_other_words_for_the_same_run_nothing_again() -> None:
    assert not Plan({"model": "ESM2_T3_untrained", "embedding": {"layers": [3]}}).runs


@pytest.mark.usefixtures("finished")
@pytest.mark.parametrize(("change", "first"), SCIENCE)
def test_science_settings_run_what_depends_on_them(change: dict[str, Any], first: str) -> None:
    assert Plan(change).runs == DOWNSTREAM[first]


@pytest.mark.usefixtures("finished")
def test_another_number_of_buckets_shares_the_work_out_again() -> None:
    assert Plan({"buckets": 6}).runs == DOWNSTREAM["deduplicate"] | {"embed": 6}


@pytest.mark.usefixtures("finished")
def test_another_model_leaves_the_sequences_alone() -> None:
    assert Plan({"model": "esm2_8m", "weights": ""}).runs == DOWNSTREAM["weights"]


@pytest.mark.usefixtures("finished")
def test_one_more_model_runs_its_own_jobs_and_nothing_else() -> None:
    plan = Plan(BOTH)
    assert plan.runs == DOWNSTREAM["weights"]
    assert {job.wildcards.get("model", OTHER) for job in plan.jobs} == {OTHER}
    assert all(f"results/{OTHER}/" in path for job in plan.jobs for path in job.output)
    assert plan.total == {"deduplicate": 1, "all": 1} | {
        name: 2 * count for name, count in DOWNSTREAM["weights"].items() if name != "all"
    }


def test_each_of_several_models_has_jobs_of_its_own() -> None:
    plan = Plan(BOTH)
    assert plan.runs["deduplicate"] == 1 and plan.runs["embed"] == 8
    for model in BOTH["model"]:
        jobs = {job.rule.name: job for job in plan.jobs if job.wildcards.get("model") == model}
        assert set(jobs) == {"weights", "embed", "reference", "gather", "validate", "report"}
        for job in jobs.values():
            assert job.log[0].startswith(f"results/logs/{model}/")
            assert job.benchmark.startswith(f"results/benchmarks/{model}/")
            assert f"results/{model}" in job.shellcmd
            assert (set(BOTH["model"]) - {model}).isdisjoint(job.shellcmd.replace("/", " ").split())
        layer = {OTHER: 6}.get(model, 3)
        assert f" --layers={layer} " in jobs["embed"].shellcmd
        assert ("--source=" in jobs["weights"].shellcmd) == (model != OTHER)
    memory = [job.resources.mem_mb for job in plan.jobs if job.rule.name == "embed"]
    assert len(set(memory)) == 2


def test_jobs_of_one_model_are_called_by_their_bucket_alone() -> None:
    jobs = [job for job in Plan().jobs if job.rule.name != "all"]
    assert {tuple(job.wildcards.keys()) for job in jobs} == {(), ("bucket",)}
    assert {tuple(sorted(job.wildcards.keys())) for job in Plan(BOTH).jobs} == {
        (), ("model",), ("bucket", "model"),
    }  # fmt: skip


@pytest.mark.usefixtures("finished")
@pytest.mark.parametrize(
    ("changed", "first"),
    [("config/demo/proteins.csv", "deduplicate"), ("config/demo/esm2_t3_untrained.pt", "weights")],
)
def test_a_changed_file_runs_what_depends_on_it(changed: str, first: str) -> None:
    with Path(changed).open("ab") as handle:
        handle.write(b"\n")
    later = Path("results/esm2_t3_untrained/report.html").stat().st_mtime + 10
    os.utime(changed, (later, later))
    assert Plan().runs == DOWNSTREAM[first]


@pytest.mark.usefixtures("finished")
@pytest.mark.parametrize(
    "name", ["report.html", "skipped.tsv", "config.yaml", "ro-crate-metadata.json"]
)
def test_a_file_of_the_report_that_was_deleted_is_made_again(name: str) -> None:
    Path("results/esm2_t3_untrained", name).unlink()
    assert Plan().runs == {"report": 1, "all": 1}


@pytest.mark.usefixtures("finished")
def test_a_reference_that_is_gone_is_computed_and_compared_again() -> None:
    """Snakemake has deleted it when a job that was to write it anew fails."""
    manifest = Path("resources/weights/esm2_t3_untrained/manifest.json")
    manifest.parent.mkdir(parents=True)
    manifest.touch()
    Path("results/esm2_t3_untrained/reference.npz").unlink()
    assert Plan().runs == DOWNSTREAM["reference"]


@pytest.mark.usefixtures("finished")
def test_weights_that_are_gone_come_back_when_the_reference_needs_them() -> None:
    """Of a campaign that is proven they may be gone, but not of one that has yet to compute."""
    assert not Plan().runs
    Path("results/esm2_t3_untrained/reference.npz").unlink()
    Plan(executor="local", targets=["results/sequences/summary.json"])
    assert not Path("results/esm2_t3_untrained/weights.json").exists()


def test_what_ends_a_campaign_goes_before_what_begins_one() -> None:
    priorities = {job.rule.name: job.rule.priority for job in Plan().jobs}
    (reference, embed, *ends) = (
        priorities[name] for name in ("reference", "embed", "gather", "validate", "report")
    )
    assert 0 == reference < embed < min(ends) and max(ends) < priorities["weights"]


def test_an_embed_job_of_one_core_leaves_the_other_to_the_reference() -> None:
    threads = {job.rule.name: job.threads for job in Plan().jobs}
    assert threads["embed"] == threads["reference"] == threads["gather"] == 1


@pytest.mark.usefixtures("finished")
def test_an_input_replaced_by_an_older_file_runs_from_the_start() -> None:
    path = Path("config/demo/proteins.fasta")
    before = path.stat()
    path.write_text(path.read_text() + ">more\nMK\n")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert Plan().runs == DOWNSTREAM["deduplicate"]


@pytest.mark.usefixtures("finished")
def test_a_new_input_file_runs_from_the_start() -> None:
    shutil.copy("config/demo/proteins.csv", "more.csv")
    assert Plan({"inputs": [*SHIPPED["inputs"], "more.csv"]}).runs == DOWNSTREAM["deduplicate"]
