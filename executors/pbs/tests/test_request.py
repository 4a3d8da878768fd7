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
from snakemake_executor_plugin_pbs.request import (
    Ask,
    job_name,
    job_work,
    qsub_words,
    read_ask,
)
from snakemake_executor_plugin_pbs.settings import ExecutorSettings
from snakemake_executor_plugin_pbs.site import load_site

Target = namedtuple("Target", ["rulename", "wildcards_dict"])
ASK = Ask(
    nodes=1,
    cores=4,
    gpus=1,
    mem_mb=8000,
    walltime=3600,
    queue=None,
    account="proj",
    extra=(),
)


@dataclass
class Job:
    """As much of Snakemake's job as names and sizes are made of."""

    name: str = "embed"
    wildcards: dict[str, str] = field(default_factory=lambda: {"bucket": "0003"})
    output: tuple[str, ...] = ("results/embedded/0003.json",)
    input: tuple[str, ...] = ("buckets/0003.parquet",)
    params: Any = None
    threads: int = 4
    resources: dict[str, Any] = field(default_factory=dict)

    def get_target_spec(self) -> list[Target]:
        return [Target(self.name, self.wildcards)]

    def properties(self) -> str:
        return json.dumps({"params": self.params})


def words(site: str, ask: Ask = ASK) -> list[str]:
    return list(qsub_words(ask, load_site(site), "name", Path("/logs/x.log"))[1])


POLARIS = replace(ASK, gpus=4)


def refusal(site: str, ask: Ask) -> str:
    with pytest.raises(RefusedError) as caught:
        words(site, ask)
    return str(caught.value)


def test_names_are_readable_legal_and_the_same_in_every_run() -> None:
    name = job_name(Job(), "/work")  # type: ignore[arg-type]
    assert re.fullmatch(r"embed-0003-[0-9a-f]{12}", name)
    assert name == job_name(Job(resources={"attempt": 2}), "/work")  # type: ignore[arg-type]


def test_names_differ_by_folder_rule_wildcards_and_outputs() -> None:
    jobs = [Job(), Job(name="gather"), Job(wildcards={"bucket": "0004"}), Job(output=("other",))]
    assert len({job_name(job, "/work") for job in jobs} | {job_name(Job(), "/home")}) == 5  # type: ignore[arg-type]


@given(
    st.text(min_size=1, max_size=40),
    st.dictionaries(st.text(min_size=1), st.text(max_size=400), max_size=3),
)
def test_any_rule_and_wildcards_give_a_legal_name(rule: str, wildcards: dict[str, str]) -> None:
    name = job_name(Job(name=rule, wildcards=wildcards), "/work")  # type: ignore[arg-type]
    assert re.fullmatch(r"[A-Za-z][A-Za-z0-9_.+-]{0,79}", name)


def test_work_is_known_by_parameters_and_inputs_not_by_resources() -> None:
    base = job_work(Job(params={"layers": [-1]}))  # type: ignore[arg-type]
    assert base == job_work(Job(params={"layers": [-1]}, resources={"runtime": 600}))  # type: ignore[arg-type]
    assert base != job_work(Job(params={"layers": [6]}))  # type: ignore[arg-type]
    assert base != job_work(Job(params={"layers": [-1]}, input=("other",)))  # type: ignore[arg-type]


def test_resources_are_read_and_settings_stand_in() -> None:
    found = {
        "nodes": 2,
        "gpu": 4,
        "mem_mb": 1000,
        "runtime": 90,
        "pbs_queue": "prod",
        "pbs_extra": "-l a=b -m n",
    }
    ask = read_ask(Job(resources=found), ExecutorSettings(account="proj", queue="debug"))  # type: ignore[arg-type]
    assert ask == Ask(2, 4, 4, 1000, 5400, "prod", "proj", ("-l", "a=b", "-m", "n"), own_queue=True)


def test_further_words_have_to_be_words() -> None:
    with pytest.raises(RefusedError, match=r"pbs_extra .*No closing quotation"):
        read_ask(Job(resources={"pbs_extra": "-l 'a"}), ExecutorSettings())  # type: ignore[arg-type]


@pytest.mark.parametrize("value", ["<TBD>", 1.5, True, -1])
def test_a_resource_that_is_no_number_is_refused(value: object) -> None:
    with pytest.raises(RefusedError, match=r"the resource mem_mb is .*whole number"):
        read_ask(Job(resources={"mem_mb": value}), ExecutorSettings())  # type: ignore[arg-type]


def test_generic_writes_a_select_and_never_the_environment() -> None:
    found = words("generic")
    assert found[: found.index("-W")] == [
        *(
            "-N",
            "name",
            "-A",
            "proj",
            "-l",
            "select=1:ncpus=4:ngpus=1:mem=8000mb",
            "-l",
            "place=scatter",
        ),
        *("-l", "walltime=01:00:00", "-j", "oe", "-o", "/logs/x.log", "-r", "n"),
    ]
    assert re.fullmatch(r"umask=\d{3}", found[found.index("-W") + 1])
    assert "-V" not in found
    assert "ngpus" not in " ".join(words("generic", replace(ASK, gpus=0)))


def test_polaris_gets_whole_nodes_and_what_it_insists_on() -> None:
    text = " ".join(
        words("polaris", replace(ASK, nodes=10, gpus=4, walltime=3 * 3600, queue="prod"))
    )
    for part in (
        "-q prod -A proj",
        "-l select=10:system=polaris -l place=scatter",
        "-l walltime=03:00:00",
    ):
        assert part in text
    assert "-l filesystems=home:eagle" in text
    assert text.endswith("-k doe")
    assert "-r n" in text
    assert "-r y" in " ".join(words("polaris", POLARIS))  # preemptable, the default


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"account": None}, "an account is needed: --pbs-account"),
        ({"walltime": 240}, "00:05:00 to 72:00:00; the job asks for 1 node for 00:04:00"),
        ({"walltime": None}, "runtime (minutes) is not set"),
        ({"walltime": 73 * 3600}, "the job asks for 1 node for 73:00:00"),
        ({"nodes": 11}, "1-10 nodes"),
        ({"nodes": 0}, "nodes is 0"),
        ({"gpus": 5}, "a node has 4 GPUs"),
        (
            {"gpus": 1},
            "whole nodes of 4 GPUs, and the job would leave 3 of them idle",
        ),
        ({"cores": 65}, "a node has 64 cores"),
        ({"mem_mb": 600_000}, "a node has 503 GB of memory"),
        (
            {"queue": "nosuch"},
            "queue 'nosuch' is not one of debug, debug-scaling, preemptable, capacity, prod",
        ),
        ({"queue": "debug", "nodes": 3}, "queue debug takes 1-2 nodes"),
        ({"queue": "debug", "walltime": 7200}, "to 01:00:00; the job asks for 1 node for 02:00:00"),
        ({"queue": "capacity", "nodes": 5}, "queue capacity takes 1-4 nodes"),
        ({"queue": "prod", "nodes": 9}, "10-24 nodes for 00:05:00 to 03:00:00, or 25-99"),
        (
            {"queue": "prod", "nodes": 24, "walltime": 4 * 3600},
            "the job asks for 24 nodes for 04:00:00",
        ),
        (
            {"queue": "prod", "nodes": 99, "walltime": 7 * 3600},
            "the job asks for 99 nodes for 07:00:00",
        ),
        ({"queue": "prod", "nodes": 497}, "100-496 nodes"),
    ],
)
def test_polaris_refuses_in_words_before_qsub(changes: dict[str, Any], words: str) -> None:
    found = refusal("polaris", replace(POLARIS, **changes))
    assert found.startswith("not submitted, ALCF Polaris would refuse or lose it: ")
    assert words in found


@pytest.mark.parametrize(
    ("queue", "nodes", "hours"),
    [
        ("prod", 10, 3),
        ("prod", 24, 3),
        ("prod", 25, 6),
        ("prod", 100, 24),
        ("prod", 496, 24),
        ("capacity", 4, 168),
    ],
)
def test_polaris_takes_what_its_classes_take(queue: str, nodes: int, hours: int) -> None:
    assert f"select={nodes}:system=polaris" in words(
        "polaris", replace(POLARIS, queue=queue, nodes=nodes, walltime=hours * 3600)
    )


def test_all_problems_are_told_at_once() -> None:
    found = refusal("polaris", replace(ASK, account=None, gpus=9, nodes=30))
    assert found.count(";") >= 2


@pytest.mark.parametrize("path", ["/große/x", "/a\nb", "/日本"])
def test_logs_go_home_where_qsub_would_refuse_the_path(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert log_folder(Path(path), None).parent == tmp_path / ".snakemake" / "pbs_logs"
    assert log_folder(Path(path), Path("/logs")) == Path("/logs")
    assert log_folder(Path("/a (b) [c] it's $x & y; z"), None) == Path(
        "/a (b) [c] it's $x & y; z/.snakemake/pbs_logs"
    )
    with pytest.raises(WorkflowError, match="--pbs-logdir"):
        log_folder(Path(path), Path("größe"))
    monkeypatch.setenv("HOME", "/home/müller")
    with pytest.raises(WorkflowError, match="--pbs-logdir"):
        log_folder(Path(path), None)


def test_jobs_without_gpus_go_where_they_are_taken_unless_their_rule_says_otherwise() -> None:
    small = replace(ASK, gpus=0, queue="prod")
    assert words("polaris", small)[2:4] == ["-q", "preemptable"]
    assert "queue prod takes 10-24 nodes" in refusal("polaris", replace(small, own_queue=True))
    assert words("polaris", replace(small, gpus=4, nodes=10))[2:4] == ["-q", "prod"]


def test_the_account_may_come_from_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PBS_ACCOUNT", "mine")
    assert read_ask(Job(), ExecutorSettings()).account == "mine"  # type: ignore[arg-type]
    assert read_ask(Job(), ExecutorSettings(account="proj")).account == "proj"  # type: ignore[arg-type]
    monkeypatch.delenv("PBS_ACCOUNT")
    assert read_ask(Job(), ExecutorSettings()).account is None  # type: ignore[arg-type]


def test_the_mask_of_files_is_read_and_never_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread may write a file at any instant."""

    def changed(mask: int) -> int:
        raise AssertionError(f"umask {mask:o}")

    before = os.umask(0o027)
    try:
        with monkeypatch.context() as patch:
            patch.setattr(os, "umask", changed)
            request._umask.cache_clear()
            assert "umask=027" in words("generic")
    finally:
        os.umask(before)
        request._umask.cache_clear()
