"""What is known to go wrong on PBS sites and between PBS and Snakemake, and the test that shows
each.
"""

import re
from pathlib import Path

import pytest

FAILURES = {
    # of submissions, as ALCF's pages tell them
    "a routing queue takes a job and loses it": (
        "a_job_that_a_routing_queue_dropped_fails_after_repeats"
    ),
    "sizes and times that fit no class of a routing queue": "polaris_refuses_in_words_before_qsub",
    "a job held for ever, too many failed attempts": "a_job_held_for_ever_is_noticed",
    "the folder of the log does not exist": (
        "a_job_is_submitted_once_with_its_log_folder_and_ledger"
    ),
    "would exceed queue's per-user limit": "a_full_queue_is_waited_for_while_another_is_used",
    "violates queue and/or server resource limits": "what_pbs_refuses_for_good_is_told",
    "no active allocation; account, "
    "filesystems or walltime missing": "a_site_hook_is_told_with_what_to_do",
    "Can Never Run: a filesystem is down": (
        "a_filesystem_that_is_down_is_no_failure_whatever_the_comment_says"
    ),
    "preempted, not rerunnable: deleted": "a_job_deleted_by_hand_is_failed_and_retried",
    "preempted, rerunnable: runs again": "a_preempted_rerunable_job_is_running_and_then_success",
    "throttled queues: a number of jobs per user": "no_more_of_ours_than_the_site_wants",
    # between Snakemake and PBS, as measured
    "a failed job's retry": "a_failed_job_is_told_and_its_retry_is_a_new_submission",
    "a requeued job runs over a half-written output": (
        "a_preempted_job_runs_again_over_its_half_written_output"
    ),
    "SIGTERM to the main process": "a_terminated_snakemake_waits_for_its_jobs_and_submits_no_more",
    "SIGTERM while Snakemake holds its own lock": (
        "a_termination_while_snakemake_holds_its_lock_ends_it"
    ),
    "SIGTERM while submissions wait": "a_terminated_snakemake_ends_though_submissions_wait",
    "an unknown queue, tried by every job and every retry": (
        "a_refusal_for_good_is_told_once_and_not_retried"
    ),
    "job history switched off, then on": "a_history_switched_off_and_on_again_holds_nothing_up",
    "letters that qsub -o or a shell take otherwise, in folders": "folders_of_any_name_work",
    "another queue or walltime at a restart": (
        "a_waiting_job_that_was_asked_for_otherwise_is_submitted_anew"
    ),
    "SIGHUP or SIGKILL to the main process": "a_snakemake_that_is_gone_finds_its_jobs_again",
    "killed while jobs are queued or run: submitted twice": (
        "a_restart_takes_over_what_waits_and_what_runs"
    ),
    "killed between two submissions": "a_kill_between_submissions_leaves_no_second_copy",
    "Ctrl-C during a status look or a qsub": (
        "ctrl_c_while_the_server_hangs_deletes_when_it_goes_on"
    ),
    "a refusing qsub fails the job at once": "a_full_queue_is_waited_for_while_another_is_used",
    "one odd status answer ends the workflow": (
        "an_answer_that_is_not_understood_is_told_and_ends_as_unknown"
    ),
    "jobs that exit with 0 having done nothing": (
        "exit_status_0_without_the_jobs_own_record_is_failed"
    ),
    "a qsub cut by a time-out that was queued all the same": (
        "a_qsub_cut_while_the_server_hung_is_not_repeated"
    ),
}
"""Groups, arrays and a Snakemake within the job are missing here: nothing of ours uses them."""


@pytest.mark.parametrize(("failure", "test"), FAILURES.items())
def test_every_known_failure_has_its_test(failure: str, test: str) -> None:
    texts = [path.read_text(encoding="utf-8") for path in Path(__file__).parent.glob("test_*.py")]
    assert any(re.search(rf"^def test_{test}\(", text, re.MULTILINE) for text in texts), failure
