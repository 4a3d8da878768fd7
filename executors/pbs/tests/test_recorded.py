"""Answers of a real OpenPBS as the plugin reads them: one table of cases for each question."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from snakemake_interface_common.exceptions import WorkflowError

from helpers import CASES, as_text, replay, run
from snakemake_executor_plugin_pbs.commands import Answer, AwayError, Notices, Pbs, number
from snakemake_executor_plugin_pbs.parse import read_jobs, read_report
from snakemake_executor_plugin_pbs.refusals import passes, refusal
from snakemake_executor_plugin_pbs.verdict import judge
from standin import StandIn

# Whatever may still end well is running, also with an Exit_status of its last run or while output
# is copied.
RUNNING = """Q Q_never_fits Q_queue_stopped W R R_10_nodes R_second_run R_mom_dead_r_y
sister_dead_35s after_qdel_at_once after_qrerun mom_restarted_r_y node_down_requeued_r_y
node_back_r_y routing_waiting E E_failed E_qdel_force H_user H_depend"""
SUCCESS = """F_ok F_noshebang F_after_E F_ended_while_server_down F_select2 F_out_o_missing_dir
depend_after_parent_failed_afterany depend_after_parent_failed_afternotok"""
FAILED = {
    "F_exit3": r"it failed \(Exit_status 3\)",
    "F_signal2": "killed by signal 2",
    "F_signal9": "killed by signal 9",
    "F_signal11": "killed by signal 11",
    "F_signal15": "killed by signal 15",
    "F_badinterp": "interpreter was not found",
    "F_dashdash_missing_prog": "its program was not found",
    "F_walltime": "ran out of its walltime of 00:00:12: ask for more",
    "F_memory": "more memory than it asked for",
    "F_qdel_running": "PBS says: Job run at .* and terminated by user@pbs01",
    "F_qdel_trapped_term": "deleted or preempted",
    "F_qdel_trapped_term_exit0": "deleted or preempted",
    "F_qdel_ignored_term": "deleted or preempted",
    "F_qdel_force": "killed by force",
    "F_qdel_queued": "it was deleted. PBS says: Not Running: Queue not started. and terminated",
    "depend_after_parent_failed_afterok": "a job before it failed",
    "qdel_force_node_down": "it was deleted",
    "mom_restarted_r_n": "daemon of its node was restarted",
    "node_down_r_n": "its node was lost",
    "H_out_k_doe_missing_dir": "holds it for ever: job held, too many failed attempts to run",
}
VERDICTS = [
    *((case, None, "") for case in RUNNING.split()),
    *((case, True, "") for case in SUCCESS.split()),
    *((case, False, words) for case, words in FAILED.items()),
]


@pytest.mark.parametrize(("case", "success", "words"), VERDICTS)
def test_jobs_are_judged(case: str, success: bool | None, words: str) -> None:
    (record,) = read_jobs(as_text(CASES[f"qstat_json_{case}"]["stdout"]))
    verdict = judge(record)
    assert (verdict and verdict.success) == success
    assert re.search(words, verdict.words if verdict else "")


@pytest.mark.parametrize(
    ("case", "complaint", "jobs"),
    [
        ("qstat_json_many_one_unknown_oldclient", "", {"36": "F", "37": "F"}),
        ("qstat_json_routed_rejected", "", {}),
        ("qstat_json_history_off_running_x", "no history", {}),
        ("qstat_json_after_qdel_queued_no_x", "finished", {}),
        ("qstat_full_text_R", "no message", {"35": "R"}),
        ("qstat_full_text_R_w", "no message", {"35": "R"}),
        # odd variables of a login shell, which break the JSON of all jobs
        ("json_V_bashfunc_text", "no message", {"157": "Q"}),
        ("text_batch_two_new", "no message", {"158": "Q", "157": "Q"}),
    ],
)
def test_a_report_is_sorted(case: str, complaint: str, jobs: dict[str, str]) -> None:
    answer = CASES[case]
    report = read_report(Answer(answer["exit_code"], as_text(answer["stdout"]), answer["stderr"]))
    assert {key: job.state for key, job in report.records.items()} == jobs
    assert report.no_history == (complaint == "no history")
    assert report.finished == (complaint == "finished")
    assert bool(report.complaint) == bool(complaint)


FOR_GOOD = {
    "submit_bad_queue": "set --pbs-queue or the resource pbs_queue",
    "submit_hook_bad_account": "check --pbs-account and the allocation's balance",
    "submit_hook_filesystems_missing": "add `resources: {filesystems: ...}` to the site file",
    "submit_hook_walltime_missing": "set the resource runtime",
    "submit_queue_acl": "the queue is not open to you",
    "submit_unknown_resource": "the site file",
    "submit_walltime_too_long": "outside the queue's range",
    "submit_too_few_nodes": "outside the queue's range",
    "submit_name_slash": "exit code 2): qsub: illegal -N value -> the resource pbs_extra",
    "submit_no_args_option": "the resource pbs_extra",
    "submit_script_crlf": "script contains cr, lf",
    "submit_select_and_ncpus": 'cannot be used with "select"',
    "submit_mem_float": "Illegal attribute",
    "submit_bad_W": "Error (15002)",
}
AWAY = """qselect_server_down qstat_server_down_text qsub_server_down qdel_server_down
qsub_server_hung qsub_server_name_unknown"""
REFUSALS = [
    ("submit_max_queued_3", "passes", ""),
    ("submit_queue_disabled", "passes", ""),
    *((case, "for good", words) for case, words in FOR_GOOD.items()),
    *((case, "away", "") for case in AWAY.split()),
    ("qdel_node_down", "once", "could not connect to MOM"),
]


@pytest.mark.parametrize(("case", "kind", "words"), REFUSALS)
def test_refusals_are_told_apart(
    case: str, kind: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    replay(tmp_path, command=case)
    messages: list[str] = []
    pbs = Pbs(0.5 if case == "qsub_server_hung" else 300, Notices(messages.append))
    if kind == "away":
        for _ in range(2):
            with pytest.raises(AwayError) as away:
                pbs.call("command")
        assert away.value.hung == (case == "qsub_server_hung")
        replay(tmp_path, command="")
        pbs.call("command")
        assert [words[:18] for words in messages] == ["PBS does not answe", "PBS answers again,"]
        return
    answer = pbs.call("command")
    assert passes(answer) == (kind == "passes")
    assert refusal(answer).for_good == (kind == "for good")
    assert words in str(refusal(answer))


@pytest.mark.parametrize("job_id", ["12.pbs01", "12", "12.polaris*", "12.polaris-pbs-01.hsn.cm"])
def test_ids_are_the_same_by_their_number(job_id: str) -> None:
    assert number(job_id) == "12"


@given(
    st.text(
        alphabet=st.characters(codec="utf-8", exclude_categories=["Cc", "Cs", "Zl", "Zp"]),
        max_size=300,
    ),
    st.integers(1, 100),
)
def test_comments_survive_folding(comment: str, width: int) -> None:
    line = f"    comment = {comment}"
    folded = "\n\t".join(line[at : at + width] for at in range(0, len(line), width))
    (job,) = read_jobs(f"Job Id: 12.pbs01\n{folded}\n    job_state = Q\n\n")
    assert (job.comment, job.state) == (comment.strip(), "Q")


SAME = """submit_bad_queue submit_walltime_too_long submit_too_few_nodes submit_unknown_resource
submit_queue_disabled submit_walltime_malformed qdel_unknown qdel_finished qdel_finished_x
qselect_server_down qdel_server_down qstat_server_down_text"""


def test_the_stand_in_answers_as_recorded(pbs: StandIn) -> None:
    pbs.last = 34
    (pbs.home / "j_ok.sh").write_text("#!/bin/sh\n")
    assert run("qsub j_ok.sh", pbs.home).returncode == 0
    pbs.wait_for(35, "F")
    for case in SAME.split():
        if "server_down" in case:
            pbs.down()
        done = run(CASES[case]["command"], pbs.home)
        recorded = CASES[case]["exit_code"], CASES[case]["stderr"]
        assert (done.returncode, done.stderr) == recorded, case


@pytest.mark.parametrize(
    ("version", "select", "words"),
    [
        ("pbs_version = 23.06.06", "exit 0", ""),
        ("", "exit 0", ""),  # of a wrapper
        ("Version: 6.1.2\nCommit: 661e", "exit 0", "such as Torque or Grid Engine"),
        ("SGE 8.1.9\nusage: qstat [options]", "exit 0", "such as Torque or Grid Engine"),
        ("", "echo 'qselect: illegal option -- u' >&2; exit 2", "illegal option -- u. The PBS exe"),
        ("", "exit 162", ""),  # a server that is away
        ("", None, "PBS commands not found: qselect."),
    ],
)
def test_commands_of_another_scheduler_are_refused(
    version: str, select: str | None, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replay(tmp_path / "bin", **dict.fromkeys(["qsub", "qselect", "qstat", "qdel"], ""))
    (tmp_path / "bin" / "qstat.err").write_text(version)
    if select is None:
        (tmp_path / "bin" / "qselect").unlink()
    else:
        (tmp_path / "bin" / "qselect").write_text(f"#!/bin/sh\n{select}\n")
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    refused = ""
    try:
        Pbs(60, Notices(print)).check()
    except WorkflowError as error:
        refused = str(error)
    assert words in refused and bool(words) == bool(refused)
