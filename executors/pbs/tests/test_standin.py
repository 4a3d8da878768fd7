"""The stand-in answers as the recorded OpenPBS did."""

import contextlib
import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from conftest import run, submit, until
from recorded import CASES, recorded_job
from standin import StandIn, render
from standin.model import Job, Queue, flat, lab_queues

SCRIPTS = {
    "j_ok.sh": "#!/bin/sh\necho out\necho err >&2\n",
    "j_crlf.sh": "#!/bin/sh\r\necho hi\r\n",
    "j_directives.sh": "#!/bin/sh\n#PBS -q debug\n#PBS -l select=1:ncpus=1\n#PBS -l "
    "walltime=60\n#PBS -N fromfile\n",
    "j_multi.sh": "#!/bin/sh\n",
    "wave.sh": "#!/bin/sh\n",
    "j_array.sh": "#!/bin/sh\n",
}


def normal(text: str) -> str:
    """Numbers of jobs, times and header fields that differ between any two runs."""
    text = re.sub(r'("timestamp":\s*)\d+', r"\g<1>0", text)
    return re.sub(r"\b\d+(\[\])?(\.pbs01)?(?=[\s\"]|$)", r"N\1", text)


@pytest.mark.parametrize(
    "case",
    [
        name
        for name in CASES
        if name.startswith("qstat_json_") and '"Jobs"' in CASES[name]["stdout"]
    ],
)
def test_json_is_printed_as_recorded(case: str) -> None:
    old = "v22" in CASES[case]["client"]
    recorded = CASES[case]["stdout"]
    jobs = [recorded_job(case, position) for position in range(len(json.loads(recorded)["Jobs"]))]
    if case == "qstat_json_dup":
        jobs = jobs[:1]
    printed = render.json_old(jobs) if old else render.json_new(jobs)
    stamp = re.compile(r'"timestamp":\s*\d+')
    assert stamp.sub("", printed) == stamp.sub("", recorded)


def test_text_is_folded_as_recorded() -> None:
    job = recorded_job("qstat_full_text_R_w")
    assert render.text(job, wide=True) == CASES["qstat_full_text_R_w"]["stdout"]
    assert render.text(job, wide=False) == CASES["qstat_full_text_R"]["stdout"]


def test_new_clients_print_the_first_job_only_as_json() -> None:
    printed = json.loads(
        render.json_new([recorded_job("qstat_json_Q"), recorded_job("qstat_json_R")])
    )
    recorded = json.loads(CASES["json_batch_two_new"]["stdout"])
    assert len(printed["Jobs"]) == len(recorded["Jobs"]) == 1


SUBMISSIONS = [
    *(name for name in CASES if name.startswith("submit_") and not name.startswith("submit_out_")),
    "json_ok_neighbour_submit",
    "json_v_dquote_last_submit",
    "json_v_dquote_middle_submit",
    "json_v_novalue_unset_submit",
    "qsub_no_daemon_f",
    "qsub_server_name_unknown",
    "qsub_unwritable_tmp",
    "qstat_server_name_down",
    "qstat_server_name_unknown",
]


@pytest.fixture(scope="module")
def lab() -> Iterator[StandIn]:
    with StandIn() as standin:
        yield standin


@pytest.mark.parametrize("case", SUBMISSIONS)
def test_qsub_answers_as_recorded(
    case: str, lab: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(lab.bin), prepend=":")
    lab.config.queues = lab_queues()
    for name, text in SCRIPTS.items():
        (tmp_path / name).write_text(text, newline="")
    (tmp_path / "adir").mkdir()
    (tmp_path / "noread.sh").touch(0)
    if case == "submit_script_unreadable" and os.access(tmp_path / "noread.sh", os.R_OK):
        pytest.skip("root reads every file")
    lab.config.hook = case.startswith("submit_hook")
    if case.startswith("submit_max_queued"):
        before = sum(job.queue == "stoppedq" and job.state != "F" for job in lab.jobs.values())
        lab.config.queues["stoppedq"].max_queued = before + 2
        for _ in range(2 if case.endswith("array") else int(case[-1]) - 1):
            run(CASES["submit_max_queued_1"]["command"], tmp_path)
    if case == "submit_queue_acl":
        lab.config.queues["stoppedq"].open_to_user = False
    done = run(CASES[case]["command"], tmp_path)
    random_name = re.compile(r"(?<=pbsscrpt)\w{6}")
    assert (done.returncode, normal(done.stdout), random_name.sub("", done.stderr)) == (
        CASES[case]["exit_code"],
        normal(CASES[case]["stdout"]),
        random_name.sub("", CASES[case]["stderr"]),
    )


def test_a_routing_queue_drops_what_fits_nowhere(pbs: StandIn, tmp_path: Path) -> None:
    (tmp_path / "j_ok.sh").write_text(SCRIPTS["j_ok.sh"])
    job_id = run(CASES["submit_routing_queue_rejected"]["command"], tmp_path).stdout.strip()
    assert same("qstat_json_routed_rejected", f"qstat -x -f -F json {job_id}", tmp_path)
    routed = run(CASES["submit_routing_queue_ok"]["command"], tmp_path).stdout.strip()
    assert pbs.jobs[int(routed.partition(".")[0])].queue == "debug"


def same(case: str, command: str, folder: Path) -> bool:
    """Whether a command answers here as in the recorded case, apart from the numbers of jobs."""
    done = run(command, folder)
    recorded = CASES[case]
    assert (done.returncode, normal(done.stdout), normal(done.stderr)) == (
        recorded["exit_code"],
        normal(recorded["stdout"]),
        normal(recorded["stderr"]),
    )
    return True


def test_qdel_and_qstat_answer_for_odd_ids_as_recorded(pbs: StandIn, tmp_path: Path) -> None:
    ended = submit(tmp_path, "#!/bin/sh\n")
    pbs.wait_for(ended, "F")
    assert same("qdel_finished", f"qdel {ended}.pbs01", tmp_path)
    assert same("qdel_unknown", "qdel 999999.pbs01", tmp_path)
    assert same("qdel_malformed", "qdel abc", tmp_path)
    assert same("qstat_unknown", "qstat 999999", tmp_path)
    assert same("qstat_json_unknown_x", "qstat -x -f -F json 999999", tmp_path)
    assert same("qstat_malformed_id", "qstat -f -F json abc", tmp_path)
    assert same("qstat_malformed_id2", "qstat -f -F json 12abc", tmp_path)
    waiting = [submit(tmp_path, "#!/bin/sh\n", "-q", "stoppedq") for _ in range(2)]
    assert same(
        "qdel_many_one_unknown", f"qdel {waiting[0]}.pbs01 999999 {waiting[1]}.pbs01", tmp_path
    )
    assert [pbs.jobs[number].state for number in waiting] == ["F", "F"]
    done = run(f"qstat -x {waiting[0]}.pbs01 {waiting[1]}.pbs01", tmp_path)
    columns = [
        line.split()
        for line in CASES["qstat_after_qdel_many_one_unknown"]["stdout"].splitlines()[2:]
    ]
    assert [line.split()[3:5] for line in done.stdout.splitlines()[2:]] == [
        column[3:5] for column in columns
    ]
    assert same(
        "qstat_json_after_qdel_queued_no_x", f"qstat -f -F json {waiting[0]}.pbs01", tmp_path
    )
    assert same("qdel_finished_x", f"qdel -x {ended}.pbs01", tmp_path)
    assert same("qstat_json_after_qdel_x", f"qstat -x -f -F json {ended}.pbs01", tmp_path)


def test_qdel_answers_for_exiting_jobs_and_lost_nodes_as_recorded(
    pbs: StandIn, tmp_path: Path
) -> None:
    exiting = submit(tmp_path, "#!/bin/sh\n", "-o", str(tmp_path / "no/such/folder/x.log"))
    pbs.wait_for(exiting, "E")
    assert same("qdel_exiting", f"qdel {exiting}.pbs01", tmp_path)
    running = submit(tmp_path, "#!/bin/sh\nsleep 600\n")
    pbs.wait_for(running, "R")
    pbs.down_nodes.add(0)
    assert same("qdel_node_down", f"qdel {running}.pbs01", tmp_path)
    assert same("qdel_force_node_down", f"qdel -W force {running}.pbs01", tmp_path)
    pbs.down_nodes.clear()


def test_a_server_without_history_answers_as_recorded(pbs: StandIn, tmp_path: Path) -> None:
    pbs.config.history = False
    running, ended = submit(tmp_path, "#!/bin/sh\nsleep 600\n"), submit(tmp_path, "#!/bin/sh\n")
    pbs.wait_for(running, "R")
    pbs.wait_for(ended, "F")
    assert same(
        "qstat_json_history_off_running_x", f"qstat -x -f -F json {running}.pbs01", tmp_path
    )
    assert same("qstat_json_history_off_finished_x", f"qstat -x -f -F json {ended}.pbs01", tmp_path)
    assert same("qstat_json_history_off_finished", f"qstat -f -F json {ended}.pbs01", tmp_path)
    assert same("qselect_history_off", "qselect -x", tmp_path)
    assert same("qdel_history_off_finished", f"qdel {ended}.pbs01", tmp_path)
    pbs.config.client = "old"
    assert same("qstat_history_off_old", f"qstat -x -f -F json {ended}.pbs01", tmp_path)


def test_old_clients_without_a_server(pbs: StandIn, tmp_path: Path) -> None:
    pbs.config.client = "old"
    pbs.down()
    assert same(
        "qstat_server_down_oldclient", CASES["qstat_server_down_oldclient"]["command"], tmp_path
    )


def test_without_a_server_and_with_a_hung_one(pbs: StandIn, tmp_path: Path) -> None:
    (tmp_path / "j_ok.sh").write_text(SCRIPTS["j_ok.sh"])
    pbs.down()
    for case in (
        "qsub_server_down",
        "qdel_server_down",
        "qselect_server_down",
        "qstat_server_down_text",
        "qstat_server_down",
        "qsub_f_server_down",
    ):
        assert same(case, CASES[case]["command"], tmp_path)
    pbs.up()
    pbs.hang()
    for case in ("qstat_server_hung", "qsub_server_hung"):
        before, command = (
            pbs.taken,
            CASES[case]["command"].replace("timeout 15", "exec timeout 900"),
        )
        waiting = subprocess.Popen(
            ["bash", "-c", command], cwd=tmp_path, stdout=subprocess.PIPE, text=True
        )
        until(lambda before=before: pbs.taken > before)
        waiting.send_signal(signal.SIGALRM)  # the time is over
        assert waiting.communicate()[0] == ""
        assert waiting.returncode == CASES[case]["exit_code"]
    assert not pbs.jobs
    pbs.resume()
    pbs.wait_for(1, "R", "E", "F")  # queued all the same
    assert "1.pbs01" in run(CASES["qselect_after_hung"]["command"], tmp_path).stdout.split()


JOBS = {
    "qstat_json_F_ok": ("#!/bin/sh\n", []),
    "qstat_json_F_exit3": ("#!/bin/sh\nexit 3\n", []),
    "qstat_json_F_signal9": ("#!/bin/sh\nkill -9 $$\n", []),
    "qstat_json_F_signal15": ("#!/bin/sh\nkill -15 $$\n", []),
    "qstat_json_F_signal2": ("#!/bin/bash\nkill -2 $$\nsleep 5\n", []),
    "qstat_json_F_signal11": ("#!/bin/sh\nkill -11 $$\n", []),
    "qstat_json_F_noshebang": ("echo hello\n", []),
    "qstat_json_F_badinterp": ("#!/no/such/interpreter\n", []),
    "qstat_json_F_walltime": ("#!/bin/sh\nsleep 600\n", ["-l", "walltime=12"]),
    "qstat_json_H_out_k_doe_missing_dir": (
        "#!/bin/sh\n",
        ["-k", "doe", "-o", "no/such/folder/x.out"],
    ),
    "qstat_json_Q_queue_stopped": ("#!/bin/sh\n", ["-q", "stoppedq"]),
    "qstat_json_Q_never_fits": ("#!/bin/sh\n", ["-l", "select=1:ncpus=1:ngpus=5"]),
    "qstat_json_H_user": ("#!/bin/sh\n", ["-h"]),
    "qstat_json_R": ("#!/bin/sh\nsleep 600\n", []),
}


def facts(attributes: dict[str, Any]) -> dict[str, Any]:
    """What a status rule may look at, without dates and places."""
    shown = dict(flat(attributes))
    kept = {
        key: shown.get(key)
        for key in ("job_state", "substate", "Exit_status", "Hold_Types", "run_count")
    }
    kept["substate"] = (
        "42" if kept["substate"] == "41" else kept["substate"]
    )  # 41 is the first second of 42
    comment = re.sub(r"run at .*? on \(.*?\)", "run", shown.get("comment", ""))
    return {**kept, "comment": comment.replace("root@", "user@").rstrip()}


def becomes(job: Job, case: str) -> None:
    """A job shows the facts of a recorded one, sooner or later."""
    recorded = facts(recorded_job(case).attributes())
    with contextlib.suppress(AssertionError):
        until(lambda: facts(job.attributes()) == recorded, seconds=60)
    assert facts(job.attributes()) == recorded


@pytest.mark.parametrize("case", JOBS)
def test_jobs_end_as_recorded(case: str, pbs: StandIn, tmp_path: Path) -> None:
    script, words = JOBS[case]
    number = submit(tmp_path, script, *words)
    becomes(pbs.jobs[number], case)


def test_deleted_jobs_end_as_recorded(pbs: StandIn, tmp_path: Path) -> None:
    begun = 'touch "$PBS_O_WORKDIR/$PBS_JOBID"'
    trap = f'#!/bin/bash\ntrap "exit {{}}" TERM\n{begun}\nsleep 600 & wait\n'
    scripts = {
        "qstat_json_F_qdel_running": f"#!/bin/sh\n{begun}\nsleep 600\n",
        "qstat_json_F_qdel_trapped_term": trap.format(9),
        "qstat_json_F_qdel_trapped_term_exit0": trap.format(0),
        "qstat_json_F_qdel_ignored_term": f'#!/bin/bash\ntrap "" TERM\n{begun}\nwhile '
        ":; do sleep 1; done\n",
    }
    numbers = {case: submit(tmp_path, script) for case, script in scripts.items()}
    for number in numbers.values():
        until((tmp_path / f"{number}.pbs01").exists)
    run(f"qdel {' '.join(str(number) for number in numbers.values())}", tmp_path)
    for case, number in numbers.items():
        me = pbs.jobs[number].owner
        job = pbs.wait_for(number, "F")
        assert facts(
            {**job.attributes(), "comment": (job.comment or "").replace(f"{me}@", "user@")}
        ) == facts(recorded_job(case).attributes())
    waiting = submit(tmp_path, "#!/bin/sh\n", "-q", "stoppedq")
    until(lambda: bool(pbs.jobs[waiting].comment))
    run(f"qdel {waiting}", tmp_path)
    assert facts(pbs.jobs[waiting].attributes()) == facts(
        recorded_job("qstat_json_F_qdel_queued").attributes()
    )


def test_dependents_run_or_go_as_recorded(pbs: StandIn, tmp_path: Path) -> None:
    (tmp_path / "j_ok.sh").write_text(SCRIPTS["j_ok.sh"])
    pbs.last = 55
    parent = submit(
        tmp_path, f"#!/bin/sh\nwhile [ ! -e {tmp_path}/go ]; do sleep 0.05; done\nexit 1\n"
    )
    numbers = {}
    for kind in ("afterok", "afterany", "afternotok", "unknown"):
        assert same(f"submit_depend_{kind}", CASES[f"submit_depend_{kind}"]["command"], tmp_path)
        numbers[kind] = pbs.last
    job = pbs.jobs[numbers["afterok"]]
    waiting = recorded_job("qstat_json_H_depend").attributes()
    assert facts(job.attributes()) == facts(waiting)
    assert job.attributes()["depend"] == waiting["depend"]
    (tmp_path / "go").touch()
    assert pbs.wait_for(parent, "F").exit_status == 1
    for kind in ("afterok", "afterany", "afternotok"):
        recorded = recorded_job(f"qstat_json_depend_after_parent_failed_{kind}").attributes()
        assert facts(pbs.wait_for(numbers[kind], "F").attributes()) == facts(recorded)
        assert pbs.jobs[numbers[kind]].attributes().get("depend") == recorded.get("depend")
    assert pbs.jobs[numbers["unknown"]].state == "H"


def test_jobs_for_later_and_forced_ends_as_recorded(pbs: StandIn, tmp_path: Path) -> None:
    (tmp_path / "j_ok.sh").write_text(SCRIPTS["j_ok.sh"])
    recorded = recorded_job("qstat_json_W").attributes()
    run(f"qsub {recorded['Submit_arguments']}", tmp_path)
    later = pbs.jobs[pbs.last]
    assert facts(later.attributes()) == facts(recorded)
    assert later.attributes()["Execution_Time"][4:19] == recorded["Execution_Time"][4:19]
    assert same("qdel_waiting", f"qdel {later.id}", tmp_path)
    running = submit(tmp_path, "#!/bin/sh\nsleep 600\n")
    pbs.wait_for(running, "R")
    assert same("qdel_force_running", f"qdel -W force {running}.pbs01", tmp_path)
    assert facts(pbs.jobs[running].attributes()) | {"comment": ""} == facts(
        recorded_job("qstat_json_F_qdel_force").attributes()
    ) | {"comment": ""}
    waiting = [submit(tmp_path, "#!/bin/sh\n", "-q", "stoppedq") for _ in range(2)]
    assert same("qdel_many_ok", f"qdel {waiting[0]}.pbs01 {waiting[1]}.pbs01", tmp_path)
    assert same("qdel_noargs", "qdel", tmp_path)
    assert same("qdel_empty_arg", 'qdel ""', tmp_path)


def test_lost_nodes_requeue_or_end_jobs_as_recorded(pbs: StandIn, tmp_path: Path) -> None:
    script = "#!/bin/sh\nsleep 600\n"
    pbs.config.nodes = 1
    rerunable, other = submit(tmp_path, script), submit(tmp_path, script, "-r", "n")
    pbs.wait_for(rerunable, "R")
    pbs.wait_for(other, "R")
    pbs.fail_node(0)
    becomes(pbs.jobs[rerunable], "qstat_json_node_down_requeued_r_y")
    becomes(pbs.jobs[other], "qstat_json_node_down_r_n")


def test_nodes_and_gpus_are_counted(pbs: StandIn, tmp_path: Path) -> None:
    pbs.config.nodes = 2
    pbs.config.queues["workq"] = Queue("workq")
    ask = ["-l", "select=1:ncpus=1:ngpus=3"]
    numbers = [submit(tmp_path, "#!/bin/sh\nsleep 600\n", *ask) for _ in range(3)]
    until(lambda: bool(pbs.jobs[numbers[2]].comment))
    assert [pbs.jobs[number].state for number in numbers] == ["R", "R", "Q"]
    assert [pbs.jobs[number].where[0][0] for number in numbers[:2]] == [0, 1]
    run(f"qdel {numbers[0]}", tmp_path)
    pbs.wait_for(numbers[2], "R")


def test_log_and_environment_of_a_job(pbs: StandIn, tmp_path: Path) -> None:
    number = submit(
        tmp_path, "#!/bin/sh\npwd; umask; echo $PBS_JOBID $PATH\n", "-o", str(tmp_path / "x.log")
    )
    pbs.wait_for(number, "F")
    assert (
        tmp_path / "x.log"
    ).read_text() == f"{Path.home()}\n0077\n{number}.pbs01 /usr/local/bin:/usr/bin:/bin\n"
    assert (tmp_path / "x.log").stat().st_mode & 0o777 == 0o600
