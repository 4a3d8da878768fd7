"""qstat's text and the status rules, against what a real OpenPBS showed."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recorded import CASES, recorded_job, recorded_text
from snakemake_executor_plugin_pbs.commands import Answer, number
from snakemake_executor_plugin_pbs.parse import read_jobs, read_report
from snakemake_executor_plugin_pbs.verdict import judge
from standin import render

RULES = {
    # Whatever may still end well is running, also with an Exit_status of its last run or while
    # output is copied
    "Q": "running",
    "Q_never_fits": "running",
    "Q_queue_stopped": "running",
    "W": "running",
    "R": "running",
    "R_10_nodes": "running",
    "R_second_run": "running",
    "R_mom_dead_r_y": "running",
    "sister_dead_35s": "running",
    "after_qdel_at_once": "running",
    "after_qrerun": "running",
    "mom_restarted_r_y": "running",
    "node_down_requeued_r_y": "running",
    "node_back_r_y": "running",
    "routing_waiting": "running",
    "E": "running",
    "E_failed": "running",
    "E_qdel_force": "running",
    "H_user": "running",
    "H_depend": "running",
    "H_out_k_doe_missing_dir": "held",
    "F_ok": "success",
    "F_noshebang": "success",
    "F_after_E": "success",
    "F_ended_while_server_down": "success",
    "F_select2": "success",
    "F_exit3": "failed",
    "F_signal2": "failed",
    "F_signal9": "failed",
    "F_signal11": "failed",
    "F_signal15": "failed",
    "F_badinterp": "failed",
    "F_dashdash_missing_prog": "failed",
    "F_walltime": "failed",
    "F_memory": "failed",
    "F_qdel_running": "failed",
    "F_qdel_trapped_term": "failed",
    "F_qdel_trapped_term_exit0": "failed",
    "F_qdel_ignored_term": "failed",
    "F_qdel_force": "failed",
    "F_qdel_queued": "failed",
    "F_out_o_missing_dir": "success",
    "depend_after_parent_failed_afterok": "failed",
    "depend_after_parent_failed_afterany": "success",
    "depend_after_parent_failed_afternotok": "success",
    "qdel_force_node_down": "failed",
    "mom_restarted_r_n": "failed",
    "node_down_r_n": "failed",
}


@pytest.mark.parametrize(("case", "kind"), RULES.items())
def test_every_recorded_state_has_its_answer(case: str, kind: str) -> None:
    (record,) = read_jobs(recorded_text(f"qstat_json_{case}"))
    assert judge(record).kind == kind


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("F_walltime", "ran out of its walltime of 00:00:12: ask for more"),
        ("F_memory", "more memory than it asked for"),
        ("F_qdel_running", "PBS says: Job run at .* and terminated by user@pbs01"),
        (
            "F_qdel_queued",
            "it was deleted. PBS says: Not Running: Queue not started. and terminated",
        ),
        ("F_signal9", "killed by signal 9"),
        ("F_qdel_force", "killed by force"),
        ("node_down_r_n", "its node was lost"),
        ("F_badinterp", "interpreter was not found"),
        ("H_out_k_doe_missing_dir", "too many failed attempts to run"),
    ],
)
def test_failures_are_told_in_words(case: str, words: str) -> None:
    (record,) = read_jobs(recorded_text(f"qstat_json_{case}"))
    assert re.search(words, judge(record).words)


def test_a_dependent_of_a_failed_job_is_failed_though_its_substate_is_that_of_success() -> None:
    text = recorded_text("qstat_json_F_qdel_queued").replace("substate = 91", "substate = 92")
    verdict = judge(next(iter(read_jobs(text))))
    assert verdict.kind == "failed"
    assert "a job before it failed" in verdict.words


def test_a_filesystem_that_is_down_is_no_failure_whatever_the_comment_says() -> None:
    comment = "Can Never Run: Insufficient amount of server resource: eagle_fs (True != False)"
    text = recorded_text("qstat_json_Q").replace("Not Running: Queue not started.", comment)
    (record,) = read_jobs(text)
    assert record.comment == comment
    assert judge(record).kind == "running"


def test_text_of_a_real_client_is_read_folded_or_wide() -> None:
    (folded,) = read_jobs(CASES["qstat_full_text_R"]["stdout"])
    (wide,) = read_jobs(CASES["qstat_full_text_R_w"]["stdout"])
    assert folded == wide
    assert (folded.id, folded.state, folded.substate, folded.exit_status) == (
        "35.pbs01",
        "R",
        42,
        None,
    )
    assert folded.comment == "Job run at Sat Nov 21 at 03:56 on (node01:ncpus=1:ngpus=1)"


def test_odd_variables_of_a_login_shell_do_not_disturb() -> None:
    (record,) = read_jobs(CASES["json_V_bashfunc_text"]["stdout"])
    assert (record.state, record.comment) == ("Q", "Not Running: Queue not started.")


def test_a_bad_id_among_good_ones_hides_nothing() -> None:
    recorded = CASES["qstat_json_many_one_unknown_oldclient"]
    text = "".join(
        render.text(recorded_job("qstat_json_many_one_unknown_oldclient", at), wide=False)
        for at in (0, 1)
    )
    report = read_report(Answer(recorded["exit_code"], text, recorded["stderr"]))
    assert {key: record.state for key, record in report.records.items()} == {"36": "F", "37": "F"}
    assert report.unknown == {"999999"}


def test_a_missing_history_is_seen_though_the_exit_code_is_0() -> None:
    recorded = CASES["qstat_json_history_off_running_x"]
    report = read_report(Answer(recorded["exit_code"], "", recorded["stderr"]))
    assert report.no_history
    assert not report.records
    assert not report.unknown


@pytest.mark.parametrize(
    "case",
    [
        "qselect_server_down",
        "qstat_server_down_text",
        "qsub_server_down",
        "qdel_server_down",
        "qsub_server_hung",
    ],
)
def test_an_absent_or_hung_server_is_no_answer_about_jobs(case: str) -> None:
    assert Answer(CASES[case]["exit_code"], "", CASES[case]["stderr"]).away


@pytest.mark.parametrize(
    "case", ["qstat_unknown", "submit_max_queued_3", "submit_bad_queue", "qdel_node_down"]
)
def test_a_refusal_is_an_answer(case: str) -> None:
    assert not Answer(CASES[case]["exit_code"], "", CASES[case]["stderr"]).away


def test_a_usage_text_does_not_hide_the_message() -> None:
    assert Answer(2, "", CASES["submit_name_slash"]["stderr"]).words == "qsub: illegal -N value"


@pytest.mark.parametrize(
    "job_id", ["12.pbs01", "12", "12.polaris*", "12.polaris-pbs-01.hsn.cm.polaris.alcf.anl.gov"]
)
def test_ids_are_the_same_by_their_number(job_id: str) -> None:
    assert number(job_id) == "12"


@settings(max_examples=40)
@given(
    st.text(
        alphabet=st.characters(codec="utf-8", exclude_categories=["Cc", "Cs", "Zl", "Zp"]),
        max_size=300,
    )
)
def test_comments_survive_folding(comment: str) -> None:
    job = recorded_job("qstat_json_Q")
    job.given = {**(job.given or {}), "comment": comment}
    (record,) = read_jobs(render.text(job, wide=False))
    assert record.comment == comment.strip()
    assert record.state == "Q"


@pytest.mark.parametrize(
    ("case", "cause"),
    [("F_walltime", "time"), ("F_memory", "memory"), ("F_exit3", None), ("F_qdel_running", None)],
)
def test_time_and_memory_are_told_apart_from_other_failures(case: str, cause: str | None) -> None:
    [record] = read_jobs(recorded_text(f"qstat_json_{case}"))
    assert judge(record).cause == cause


def test_a_finished_job_asked_for_without_the_history_is_noticed() -> None:
    """And none is taken for finished that another answer speaks of."""
    found = {
        case for case in CASES if case.startswith("qstat") and read_report(answer_of(case)).finished
    }
    assert found >= {"qstat_json_after_qdel_queued_no_x", "qstat_json_many_one_finished_no_x"}
    assert all("_no_x" in case or "without_x" in case for case in found)


def answer_of(case: str) -> Answer:
    return Answer(CASES[case]["exit_code"], CASES[case]["stdout"], CASES[case]["stderr"])
