"""Names, sizes, limits and logs: from a job and a site's data to qsub's words and the job's
script.
"""

import json
import os
import re
import subprocess
from collections import namedtuple
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from snakemake_interface_common.exceptions import WorkflowError
from snakemake_interface_executor_plugins import utils

from snakemake_executor_plugin_pbs import request
from snakemake_executor_plugin_pbs.job_script import script_text
from snakemake_executor_plugin_pbs.refusals import RefusedError
from snakemake_executor_plugin_pbs.request import Needs, find_problems, log_folder
from snakemake_executor_plugin_pbs.settings import ExecutorSettings
from snakemake_executor_plugin_pbs.site import choose_site, clock, load_site, seconds
from snakemake_executor_plugin_pbs.workarounds import quoted_for_the_shell

Target = namedtuple("Target", ["rulename", "wildcards_dict"])
NEEDS = Needs(nodes=1, cores=4, gpus=1, mem_mb=8000, walltime=3600, queue="", account="proj")
POLARIS = replace(NEEDS, gpus=4, queue="preemptable")
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


def read_needs(resources: dict[str, Any], site: str = "generic", **settings: str) -> Needs:
    job: Any = Job(resources=resources)
    return request.read_needs(job, ExecutorSettings(**settings), load_site(site))  # type: ignore[arg-type]


def words(site: str, needs: Needs) -> str:
    return " ".join(request.qsub_words(needs, load_site(site), "name", Path("/logs/x.log")))


@given(
    st.text(min_size=1, max_size=40),
    st.dictionaries(st.text(min_size=1), st.text(max_size=400), max_size=3),
)
def test_any_rule_and_wildcards_give_a_legal_name(rule: str, wildcards: dict[str, str]) -> None:
    name = job_name(Job(name=rule, wildcards=wildcards))
    assert re.fullmatch(r"[A-Za-z][A-Za-z0-9_.+-]{0,79}", name)


def test_names_are_readable_and_differ_by_folder_rule_wildcards_and_outputs() -> None:
    assert re.fullmatch(r"train-0003-[0-9a-f]{12}", job_name(Job()))
    assert job_name(Job()) == job_name(Job(resources={"attempt": 2}))
    jobs = [Job(), Job(name="test"), Job(wildcards={"part": "0004"}), Job(output=("other",))]
    assert len({job_name(job) for job in jobs} | {job_name(Job(), "/home")}) == 5


def test_work_is_known_by_parameters_and_inputs_not_by_resources() -> None:
    base = request.job_work(Job(params={"layers": [-1]}))  # type: ignore[arg-type]
    same: Any = Job(params={"layers": [-1]}, resources={"runtime": 600})
    others: list[Any] = [Job(params={"layers": [6]}), Job(input=("other",))]
    assert base == request.job_work(same)
    assert base not in set(map(request.job_work, others))


def test_resources_are_read_and_settings_stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    resources = {"nodes": 2, "gpu": 4, "mem_mb": 1000, "runtime": 90}
    own = {"pbs_queue": "prod", "pbs_extra": "-l a=b -m n"}
    sizes = (2, 4, 4, 1000, 5400)
    assert read_needs(resources | own, account="proj", queue="debug") == Needs(
        *sizes, "prod", "proj", ("-l", "a=b", "-m", "n")
    )
    assert read_needs(resources, queue="debug") == Needs(*sizes, "debug", "")
    assert read_needs({"pbs_account": "its"}, account="proj").account == "its"
    monkeypatch.setenv("PBS_ACCOUNT", "mine")
    assert read_needs({}).account == "mine"
    assert read_needs({}, account="proj").account == "proj"
    # jobs without GPUs go where they are taken, unless their rule names a queue
    assert read_needs({"gpu": 4}, "polaris", queue="prod").queue == "prod"
    assert read_needs({}, "polaris", queue="prod").queue == "preemptable"
    assert read_needs({"pbs_queue": "prod"}, "polaris").queue == "prod"


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        *(("mem_mb", value, "not a whole number") for value in ("<TBD>", 1.5, True, -1)),
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
            "walltime=01:00:00 -j oe -o /logs/x.log -r n -W umask=027",
        ),
        (
            "generic",
            Needs(2, 1, 0, 0, None, "", "", ("-m", "n")),
            "-N name -l select=2:ncpus=1 -l place=scatter -j oe -o /logs/x.log -r n -W "
            "umask=027 -m n",
        ),
        (
            "polaris",
            replace(POLARIS, nodes=10, walltime=3 * HOUR, queue="prod"),
            "-N name -q prod -A proj -l select=10:system=polaris -l place=scatter -l "
            "walltime=03:00:00 -l filesystems=home:eagle -j oe -o /logs/x.log -r n -W umask=027 "
            "-k doe",
        ),
        (
            "polaris",
            replace(NEEDS, gpus=0, queue="preemptable"),
            "-N name -q preemptable -A proj -l select=1:system=polaris -l place=scatter -l "
            "walltime=01:00:00 -l filesystems=home:eagle -j oe -o /logs/x.log -r y -W umask=027 "
            "-k doe",
        ),
    ],
)
def test_what_qsub_is_called_with(
    site: str, needs: Needs, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The umask is read and never changed: another thread may write a file at any instant."""

    def changed(mask: int) -> int:
        raise AssertionError(f"umask {mask:o}")

    before = os.umask(0o027)
    try:
        with monkeypatch.context() as patch:
            patch.setattr(os, "umask", changed)
            assert words(site, needs) == call
    finally:
        os.umask(before)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"account": ""}, "an account is needed: --pbs-account"),
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
        ({"queue": "prod", "gpus": 0}, "queue prod takes 10-24 nodes"),
    ],
)
def test_polaris_refuses_in_words_before_qsub(changes: dict[str, Any], told: str) -> None:
    problems = find_problems(replace(POLARIS, **changes), load_site("polaris"))
    assert told in "; ".join(problems)


@pytest.mark.parametrize(
    ("queue", "nodes", "hours"),
    [("prod", 10, 3), ("prod", 25, 6), ("prod", 496, 24), ("capacity", 4, 168)],
)
def test_polaris_takes_what_its_classes_take(queue: str, nodes: int, hours: int) -> None:
    needs = replace(POLARIS, queue=queue, nodes=nodes, walltime=hours * HOUR)
    assert not list(find_problems(needs, load_site("polaris")))


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


# ---- Sites


RANGES = "{ranges: [{nodes: [1, 2], walltime: [0:05:00, 1:00:00]}]}"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("base: nosuch\n", "not known. Shipped: generic, polaris"),
        ("base: ./nosuch.yaml\n", "cannot be read: No such file"),
        ("base: generic\nqueue: x\n", "unknown field `queue`"),
        (f"base: polaris\nqueues: {{prod: {RANGES}}}\n", "ranges[0].walltime"),
        ("description: x\n", "missing required field `parts`"),
        ("base: polaris\nqueues: {prod: {max_jobs: 0}}\n", "max_jobs"),
        ("base: generic\nqueues: {prod: 3}\n", "queues"),
        ("- a\n", "holds no keys"),
        ("a: [", "is not YAML"),
    ],
)
def test_a_wrong_site_file_is_told_by_key(text: str, told: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(WorkflowError) as caught:
        load_site(str(path))
    assert told in str(caught.value)


@given(st.integers(min_value=0, max_value=10**7))
def test_clock_and_seconds_are_inverse(count: int) -> None:
    assert seconds(clock(count)) == count


ALCF = "polaris-pbs-01.hsn.cm.polaris.alcf.anl.gov"


@pytest.mark.parametrize(
    "case",
    [
        # PBS_DEFAULT, the server of pbs.conf, --pbs-site, the site, and why
        (ALCF, "", None, "polaris", f"by the PBS server {ALCF}"),
        ("", "Polaris-PBS-01:15001", None, "polaris", "by the PBS server polaris-pbs-01"),
        (ALCF, "", "polaris", "polaris", f"by the PBS server {ALCF}"),
        (ALCF, "", "generic", "generic", "as named"),
        ("pbs01", ALCF, None, "generic", "no site file names the PBS server pbs01"),
        ("my-polaris-pbs-01", "", None, "generic", "no site file names the PBS server my-polaris"),
        ("pbs01", "", "./mine.yaml", "./mine.yaml", "as named"),
        ("", "", "polaris", "polaris", "as named"),  # nothing here tells which it is
        ("", "", None, "generic", "by default"),
        ("pbs01", "", "polaris", "", "says polaris, but the PBS server here is pbs01"),
    ],
)
def test_a_site_is_known_by_its_server(
    case: tuple[str, str, str | None, str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By PBS_DEFAULT, else by pbs.conf; a profile of another site is refused."""
    variable, configured, named, site, why = case
    monkeypatch.delenv("PBS_SERVER", raising=False)
    monkeypatch.setenv("PBS_DEFAULT", variable)
    monkeypatch.setenv("PBS_CONF_FILE", str(tmp_path / "pbs.conf"))
    (tmp_path / "pbs.conf").write_text(f"# comment\nPBS_EXEC=/opt\nPBS_SERVER={configured}\n")
    if site:
        chosen, told = choose_site(named)
        assert chosen == site and told.startswith(why)
        return
    with pytest.raises(WorkflowError, match=why):
        choose_site(named)


# ---- Scripts


@pytest.mark.parametrize(
    "text", ["it's $HOME", '"quoted" it\'s', "back\\slash", "größe 日本", "a;b & (c)"]
)
def test_arguments_are_quoted_as_a_shell_reads_them(text: str) -> None:
    with quoted_for_the_shell():
        argument = utils.format_cli_arg("--wait-for-files", [text])
    shown = subprocess.run(
        f"printf %s {argument}", shell=True, check=True, capture_output=True, text=True
    )
    assert shown.stdout == f"--wait-for-files{text}"
    assert utils.format_cli_arg("--x", ["it's"]) == '--x "it\'s"'  # Snakemake's own way is back


@pytest.mark.parametrize(
    ("command", "code", "record"),
    [
        ('echo "$PYTHONPATH" "$TMPDIR" "$TOKEN"', 0, "12.pbs01 0\n"),
        ("exit 7", 7, "12.pbs01 7\n"),
        ("false && true", 1, "12.pbs01 1\n"),
        ("kill -9 $$", -9, "12.pbs01\n"),  # it began; nothing of an earlier run is left
    ],
)
def test_the_script_records_its_end(
    command: str, code: int, record: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes chosen variables, and lines of the site."""
    monkeypatch.setenv("PYTHONPATH", "/a path/with 'quotes'")
    end = tmp_path / "a folder" / "name.end"
    end.parent.mkdir()
    end.write_text("11.pbs01 0\n")
    text = script_text(command, load_site("polaris"), end, {"TOKEN": "a\"'$b"})
    (tmp_path / "job.sh").write_text(text)
    done = subprocess.run(
        ["sh", str(tmp_path / "job.sh")],
        env={"PBS_JOBID": "12.pbs01", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, end.read_text()) == (code, record)
    assert list(end.parent.iterdir()) == [end]
    assert done.stdout in {"", "/a path/with 'quotes' /tmp a\"'$b\n"}
    assert bool(done.stdout) == command.startswith("echo")
