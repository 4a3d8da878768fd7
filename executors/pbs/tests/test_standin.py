"""The stand-in answers as the recorded OpenPBS did."""

import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from recorded import CASES, SCRIPTS, normal, recorded_job, same
from shell import run, submit, until
from standin import StandIn, render
from standin.model import lab_queues


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
