"""Jobs of the stand-in run, end, wait and go as those of the recorded OpenPBS did."""

import contextlib
import re
from pathlib import Path
from typing import Any

import pytest

from recorded import CASES, SCRIPTS, recorded_job, same
from shell import run, submit, until
from standin import StandIn
from standin.model import Job, Queue, flat

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
    # 41 is the first second of 42
    kept["substate"] = "42" if kept["substate"] == "41" else kept["substate"]
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
