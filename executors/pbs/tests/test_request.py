"""Names, sizes, limits and scripts: from a job and a site's data to qsub's words."""

import json
import re
import subprocess
from collections import namedtuple
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from snakemake_interface_common.exceptions import WorkflowError
from snakemake_interface_executor_plugins import utils

from snakemake_executor_plugin_pbs.logs import log_folder
from snakemake_executor_plugin_pbs.quoting import quoted_for_the_shell
from snakemake_executor_plugin_pbs.refusals import RefusedError
from snakemake_executor_plugin_pbs.request import (
    Ask,
    job_name,
    job_work,
    qsub_words,
    read_ask,
    script_text,
)
from snakemake_executor_plugin_pbs.settings import ExecutorSettings
from snakemake_executor_plugin_pbs.site import clock, load_site, seconds, shipped_sites

Target = namedtuple("Target", ["rulename", "wildcards_dict"])
ASK = Ask(
    nodes=1,
    cores=4,
    gpus=1,
    mem_mb=8000,
    disk_mb=0,
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
    return list(qsub_words(ask, load_site(site), "name", Path("/logs/x.log"))[2])


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
    assert ask == Ask(
        2, 4, 4, 1000, 0, 5400, "prod", "proj", ("-l", "a=b", "-m", "n"), own_queue=True
    )


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
    assert "-r y" in " ".join(words("polaris"))  # preemptable, the default


def test_sophia_counts_gpus_as_chunks() -> None:
    assert "select=4" in words("sophia", replace(ASK, gpus=4))
    assert "takes 1, 2, 4 or 8 GPUs, the job asks for 3" in refusal("sophia", replace(ASK, gpus=3))
    assert "select=1" in words("sophia", replace(ASK, gpus=0)), (
        "the queue hands out nothing smaller"
    )


def test_gadi_writes_no_select_and_gives_cores_by_gpu(tmp_path: Path) -> None:
    site = tmp_path / "mine.yaml"
    site.write_text(
        "base: gadi\naccount: {name: ab12}\nresources: {storage: scratch/ab12+gdata/ab12}\n"
    )
    text = " ".join(words(str(site), replace(ASK, account=None, gpus=2, disk_mb=50000)))
    assert (
        "-q gpuvolta -P ab12 -l ncpus=24 -l ngpus=2 -l mem=8000mb -l jobfs=50000mb -l "
        "walltime=01:00:00" in text
    )
    assert "-l storage=scratch/ab12+gdata/ab12" in text
    assert "select" not in text
    assert "-l storage=scratch/proj+gdata/proj" in " ".join(words("gadi", ASK))
    assert "-q normal -P proj -l ncpus=2 -l mem=8000mb -l jobfs=10000mb" in " ".join(
        words("gadi", replace(ASK, cores=2, gpus=0))
    )
    assert "12 cores a GPU, the job asks for 20 cores and 1 GPUs" in refusal(
        str(site), replace(ASK, cores=20)
    )


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
        ({"cores": 65}, "a node has 64 cores"),
        ({"mem_mb": 600_000}, "a node has 503 GB of memory"),
        (
            {"queue": "nosuch"},
            "queue 'nosuch' is not one of debug, debug-scaling, preemptable, capacity, prod",
        ),
        ({"extra": ("-V",)}, "-V is not used here"),
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
    found = refusal("polaris", replace(ASK, **changes))
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
        "polaris", replace(ASK, queue=queue, nodes=nodes, walltime=hours * 3600)
    )


def test_all_problems_are_told_at_once() -> None:
    found = refusal("polaris", replace(ASK, account=None, gpus=9, nodes=30))
    assert found.count(";") >= 2


@pytest.mark.parametrize("name", shipped_sites())
def test_shipped_sites_load(name: str) -> None:
    site = load_site(name)
    assert site.description
    assert site.default_queue is None or site.default_queue in site.queues


def test_numbers_of_polaris() -> None:
    queues = load_site("polaris").queues
    assert queues["preemptable"].rerunnable
    assert not queues["prod"].rerunnable
    assert [(entry.nodes, entry.walltime[1] // 3600) for entry in queues["prod"].ranges] == [
        ((10, 24), 3),
        ((25, 99), 6),
        ((100, 496), 24),
    ]
    assert {entry.walltime[0] for queue in queues.values() for entry in queue.ranges} == {300}


def test_the_most_that_a_site_gives() -> None:
    polaris, generic = load_site("polaris"), load_site("generic")
    assert [polaris.most("time", "prod", nodes) for nodes in (1, 10, 30, 200)] == [
        None,
        180,
        360,
        1440,
    ]
    assert polaris.most("memory", "prod", 10) == 503_000
    assert [generic.most(cause, "", 1) for cause in ("time", "memory")] == [None, None]


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


@pytest.mark.parametrize(
    "text", ["it's $HOME", '"quoted" it\'s', "back\\slash", "größe 日本", "a;b & (c)"]
)
def test_arguments_are_quoted_as_a_shell_reads_them(text: str) -> None:
    with quoted_for_the_shell():
        found = utils.format_cli_arg("--wait-for-files", [text])
    shown = subprocess.run(
        f"printf %s {found}", shell=True, check=True, capture_output=True, text=True
    )
    assert shown.stdout == f"--wait-for-files{text}"
    assert utils.format_cli_arg("--x", ["it's"]) == '--x "it\'s"'  # Snakemake's own way is back


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("base: nosuch\n", "not known. Shipped: gadi, generic, polaris, sophia"),
        ("base: generic\nqueue: x\n", "'queue' was unexpected"),
        (
            "base: polaris\nqueues: {prod: {ranges: [{nodes: [1, 2], walltime: [0:05:00, "
            "1:00:00]}]}}\n",
            "walltime",
        ),
        ("description: x\n", "'request' is a required property"),
        ("base: generic\naccount: {flag: -B}\n", "account.flag"),
        ("- a\n", "holds no keys"),
        ("a: [", "is not YAML"),
    ],
)
def test_a_wrong_site_file_is_told_by_key(text: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(WorkflowError) as caught:
        load_site(str(path))
    assert words in str(caught.value)


def test_unknown_sites_and_absent_files_are_told() -> None:
    with pytest.raises(WorkflowError, match="Shipped: gadi, generic, polaris, sophia"):
        load_site("summit")
    with pytest.raises(WorkflowError, match="cannot be read: No such file"):
        load_site("./nosuch.yaml")


def test_a_value_that_only_the_user_knows_is_asked_for(tmp_path: Path) -> None:
    (tmp_path / "site.yaml").write_text("base: gadi\nresources: {storage: null}\n")
    assert "needs a value for -l storage" in refusal(str(tmp_path / "site.yaml"), ASK)


def test_jobs_without_gpus_go_where_they_are_taken_unless_their_rule_says_otherwise() -> None:
    small = replace(ASK, gpus=0, queue="prod")
    assert words("polaris", small)[2:4] == ["-q", "preemptable"]
    assert "queue prod takes 10-24 nodes" in refusal("polaris", replace(small, own_queue=True))
    assert words("polaris", replace(small, gpus=4, nodes=10))[2:4] == ["-q", "prod"]


def test_the_account_may_come_from_the_variable_that_the_site_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PBS_ACCOUNT", "mine")
    assert "-A mine" in " ".join(words("polaris", replace(ASK, account=None)))
    assert "-A proj" in " ".join(words("polaris"))
    monkeypatch.delenv("PBS_ACCOUNT")
    assert "or export PBS_ACCOUNT=NAME" in refusal("polaris", replace(ASK, account=None))


def test_the_schema_tells_each_key() -> None:
    path = Path(load_site.__code__.co_filename).parent / "sites"
    schema = json.loads((path / "schema.json").read_text())
    for name in shipped_sites():
        assert set(yaml.safe_load((path / f"{name}.yaml").read_text())) <= set(schema["properties"])


@given(st.integers(min_value=0, max_value=10**7))
def test_clock_and_seconds_are_inverse(count: int) -> None:
    assert seconds(clock(count)) == count


def run_script(text: str, folder: Path) -> subprocess.CompletedProcess[str]:
    path = folder / "job.sh"
    path.write_text(text)
    return subprocess.run(
        ["sh", str(path)],
        env={"PBS_JOBID": "12.pbs01", "PATH": "/usr/bin:/bin"},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(("command", "code"), [("true", 0), ("exit 7", 7), ("false && true", 1)])
def test_the_script_records_its_end(command: str, code: int, tmp_path: Path) -> None:
    end = tmp_path / "a folder" / "name.end"
    end.parent.mkdir()
    end.write_text("11.pbs01 0\n")
    done = run_script(script_text(command, load_site("generic"), end, {}), tmp_path)
    assert done.returncode == code
    assert end.read_text() == f"12.pbs01 {code}\n"
    assert list(end.parent.iterdir()) == [end]


def test_a_killed_script_leaves_no_record_of_an_earlier_run(tmp_path: Path) -> None:
    end = tmp_path / "name.end"
    end.write_text("12.pbs01 0\n")
    run_script(script_text("kill -9 $$", load_site("generic"), end, {}), tmp_path)
    assert end.read_text() == "12.pbs01\n"  # it began


def test_the_script_takes_chosen_variables_and_lines_of_the_site(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", "/a path/with 'quotes'")
    done = run_script(
        script_text(
            'echo "$PYTHONPATH" "$TMPDIR" "$TOKEN"',
            load_site("polaris"),
            tmp_path / "name.end",
            {"TOKEN": "a\"'$b"},
        ),
        tmp_path,
    )
    assert done.stdout == "/a path/with 'quotes' /tmp a\"'$b\n"
