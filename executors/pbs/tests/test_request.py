"""Names, sizes and limits: from a job and a site's data to qsub's words."""

import json
import os
import re
from collections import namedtuple
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from snakemake_interface_common.exceptions import WorkflowError

from snakemake_executor_plugin_pbs import request
from snakemake_executor_plugin_pbs.logs import log_folder
from snakemake_executor_plugin_pbs.refusals import RefusedError
from snakemake_executor_plugin_pbs.request import Needs
from snakemake_executor_plugin_pbs.settings import ExecutorSettings
from snakemake_executor_plugin_pbs.site import load_site

Target = namedtuple("Target", ["rulename", "wildcards_dict"])
NEEDS = Needs(nodes=1, cores=4, gpus=1, mem_mb=8000, walltime=3600, queue=None, account="proj")
POLARIS = replace(NEEDS, gpus=4)
HOUR = 3600


@dataclass
class Job:
    """Parts of Snakemake's job that names and sizes are made of."""

    name: str = "train"
    wildcards: dict[str, str] = field(default_factory=lambda: {"part": "0003"})
    output: tuple[str, ...] = ("results/0003.json",)
    input: tuple[str, ...] = ("parts/0003.parquet",)
    params: Any = None
    threads: int = 4
    resources: dict[str, Any] = field(default_factory=dict)

    def get_target_spec(self) -> list[Target]:
        return [Target(self.name, self.wildcards)]

    def properties(self) -> str:
        return json.dumps({"params": self.params})


def job_name(job: Any, workdir: str = "/work") -> str:
    return request.job_name(job, workdir)


def job_work(**changes: Any) -> str:
    job: Any = Job(**changes)
    return request.job_work(job)


def read_needs(resources: dict[str, Any], **settings: str) -> Needs:
    job: Any = Job(resources=resources)
    return request.read_needs(job, ExecutorSettings(**settings))  # type: ignore[arg-type]


def words(site: str, needs: Needs) -> str:
    return " ".join(request.qsub_words(needs, load_site(site), "name", Path("/logs/x.log"))[1])


def refusal(site: str, needs: Needs) -> str:
    with pytest.raises(RefusedError) as caught:
        words(site, needs)
    return str(caught.value)


def test_names_are_readable_legal_and_the_same_in_every_run() -> None:
    assert re.fullmatch(r"train-0003-[0-9a-f]{12}", job_name(Job()))
    assert job_name(Job()) == job_name(Job(resources={"attempt": 2}))


def test_names_differ_by_folder_rule_wildcards_and_outputs() -> None:
    jobs = [Job(), Job(name="test"), Job(wildcards={"part": "0004"}), Job(output=("other",))]
    assert len({job_name(job) for job in jobs} | {job_name(Job(), "/home")}) == 5


@given(
    st.text(min_size=1, max_size=40),
    st.dictionaries(st.text(min_size=1), st.text(max_size=400), max_size=3),
)
def test_any_rule_and_wildcards_give_a_legal_name(rule: str, wildcards: dict[str, str]) -> None:
    name = job_name(Job(name=rule, wildcards=wildcards))
    assert re.fullmatch(r"[A-Za-z][A-Za-z0-9_.+-]{0,79}", name)


def test_work_is_known_by_parameters_and_inputs_not_by_resources() -> None:
    base = job_work(params={"layers": [-1]})
    assert base == job_work(params={"layers": [-1]}, resources={"runtime": 600})
    assert base != job_work(params={"layers": [6]})
    assert base != job_work(params={"layers": [-1]}, input=("other",))


def test_resources_are_read_and_settings_stand_in() -> None:
    resources = {"nodes": 2, "gpu": 4, "mem_mb": 1000, "runtime": 90}
    own = {"pbs_queue": "prod", "pbs_extra": "-l a=b -m n"}
    sizes = (2, 4, 4, 1000, 5400)
    assert read_needs(resources | own, account="proj", queue="debug") == Needs(
        *sizes, "prod", "proj", ("-l", "a=b", "-m", "n"), own_queue=True
    )
    assert read_needs(resources, queue="debug") == Needs(*sizes, "debug", None)
    assert read_needs({"pbs_account": "its"}, account="proj").account == "its"


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        *(("mem_mb", value, "it has to be a whole number") for value in ("<TBD>", 1.5, True, -1)),
        ("pbs_extra", "-l 'a", "No closing quotation"),
    ],
)
def test_a_resource_of_another_kind_is_refused(key: str, value: object, told: str) -> None:
    with pytest.raises(RefusedError, match=rf"the resource {key} is .*{told}"):
        read_needs({key: value})


@pytest.mark.parametrize(
    ("site", "needs", "call"),
    [
        (
            "generic",
            NEEDS,
            "-N name -A proj -l select=1:ncpus=4:ngpus=1:mem=8000mb -l place=scatter -l "
            "walltime=01:00:00 -j oe -o /logs/x.log -r n -W umask={mask}",
        ),
        (
            "generic",
            Needs(2, 1, 0, 0, None, None, None, ("-m", "n")),
            "-N name -l select=2:ncpus=1 -l place=scatter -j oe -o /logs/x.log -r n -W "
            "umask={mask} -m n",
        ),
        (
            "polaris",
            replace(POLARIS, nodes=10, walltime=3 * HOUR, queue="prod"),
            "-N name -q prod -A proj -l select=10:system=polaris -l place=scatter -l "
            "walltime=03:00:00 -l filesystems=home:eagle -j oe -o /logs/x.log -r n -W umask={mask} "
            "-k doe",
        ),
    ],
)
def test_what_qsub_is_called_with(site: str, needs: Needs, call: str) -> None:
    assert words(site, needs) == call.format(mask=request._umask())


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"account": None}, "an account is needed: --pbs-account"),
        ({"walltime": 240}, "00:05:00 to 72:00:00; the job asks for 1 node for 00:04:00"),
        ({"walltime": None}, "runtime (minutes) is not set"),
        ({"walltime": 73 * HOUR}, "the job asks for 1 node for 73:00:00"),
        ({"nodes": 11}, "1-10 nodes"),
        ({"nodes": 0}, "nodes is 0"),
        ({"gpus": 5}, "a node has 4 GPUs"),
        ({"gpus": 1}, "whole nodes of 4 GPUs, and the job would leave 3 of them idle"),
        ({"cores": 65}, "a node has 64 cores"),
        ({"mem_mb": 600_000}, "a node has 503 GB of memory"),
        ({"queue": "no"}, "queue 'no' is not one of debug, debug-scaling, preemptable, capacity"),
        ({"queue": "debug", "nodes": 3}, "queue debug takes 1-2 nodes"),
        ({"queue": "debug", "walltime": 7200}, "to 01:00:00; the job asks for 1 node for 02:00:00"),
        ({"queue": "capacity", "nodes": 5}, "queue capacity takes 1-4 nodes"),
        ({"queue": "prod", "nodes": 9}, "10-24 nodes for 00:05:00 to 03:00:00, or 25-99"),
        ({"queue": "prod", "nodes": 24, "walltime": 4 * HOUR}, "24 nodes for 04:00:00"),
        ({"queue": "prod", "nodes": 99, "walltime": 7 * HOUR}, "99 nodes for 07:00:00"),
        ({"queue": "prod", "nodes": 497}, "100-496 nodes"),
        ({"queue": "prod", "gpus": 0, "own_queue": True}, "queue prod takes 10-24 nodes"),
    ],
)
def test_polaris_refuses_in_words_before_qsub(changes: dict[str, Any], told: str) -> None:
    words = refusal("polaris", replace(POLARIS, **changes))
    assert words.startswith("not submitted, ALCF Polaris would refuse or lose it: ")
    assert told in words


def test_all_problems_are_told_at_once() -> None:
    assert refusal("polaris", replace(NEEDS, account=None, gpus=9, nodes=30)).count(";") >= 2


@pytest.mark.parametrize(
    ("queue", "nodes", "hours"),
    [("prod", 10, 3), ("prod", 25, 6), ("prod", 496, 24), ("capacity", 4, 168)],
)
def test_polaris_takes_what_its_classes_take(queue: str, nodes: int, hours: int) -> None:
    needs = replace(POLARIS, queue=queue, nodes=nodes, walltime=hours * HOUR)
    assert f"select={nodes}:system=polaris" in words("polaris", needs)


def test_the_account_may_come_from_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PBS_ACCOUNT", "mine")
    assert "-A mine" in words("polaris", replace(POLARIS, account=None))
    assert "-A proj" in words("polaris", POLARIS)
    monkeypatch.delenv("PBS_ACCOUNT")
    assert "or export PBS_ACCOUNT=NAME" in refusal("polaris", replace(POLARIS, account=None))


def test_jobs_without_gpus_go_where_they_are_taken() -> None:
    assert "-q preemptable" in words("polaris", replace(NEEDS, gpus=0, queue="prod"))


@pytest.mark.parametrize("path", ["/große/x", "/a\nb", "/日本"])
def test_logs_go_home_where_qsub_would_refuse_the_path(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert log_folder(Path(path), None).parent == tmp_path / ".snakemake" / "pbs_logs"
    assert log_folder(Path(path), Path("/logs")) == Path("/logs")
    odd = Path("/a (b) [c] it's $x & y; z")
    assert log_folder(odd, None) == odd / ".snakemake" / "pbs_logs"
    with pytest.raises(WorkflowError, match="--pbs-logdir"):
        log_folder(Path(path), Path("größe"))
    monkeypatch.setenv("HOME", "/home/müller")
    with pytest.raises(WorkflowError, match="--pbs-logdir"):
        log_folder(Path(path), None)


def test_the_mask_of_files_is_read_and_never_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread may write a file at any instant."""

    def changed(mask: int) -> int:
        raise AssertionError(f"umask {mask:o}")

    before = os.umask(0o027)
    try:
        with monkeypatch.context() as patch:
            patch.setattr(os, "umask", changed)
            assert "umask=027" in words("generic", NEEDS)
    finally:
        os.umask(before)
