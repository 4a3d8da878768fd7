"""Snakemake executor for SLURM: the plain one, which loses sight of no job, waits for none that is
gone or can never start, and gives up neither for a silent controller nor for a full queue.
"""

import atexit
import contextlib
import shlex
import threading
import time
from collections.abc import AsyncGenerator
from logging import Logger
from pathlib import Path
from typing import Any

from snakemake_executor_plugin_slurm import Executor as PlainExecutor
from snakemake_executor_plugin_slurm import ExecutorSettings, common_settings
from snakemake_executor_plugin_slurm.submit_string import get_submit_command
from snakemake_executor_plugin_slurm.utils import get_job_wildcards, set_gres_string
from snakemake_executor_plugin_slurm.validation import (
    validate_or_get_slurm_job_id,
    validate_slurm_extra,
)
from snakemake_interface_common.exceptions import WorkflowError
from snakemake_interface_executor_plugins.executors.base import SubmittedJobInfo
from snakemake_interface_executor_plugins.jobs import JobExecutorInterface

from . import reasons
from .job_script import job_script
from .queue import (
    FAILED,
    SECONDS_TO_REPEAT,
    SHORTEST_INTERVAL,
    Job,
    Queue,
    SlurmError,
    ask,
    batch_start_timeout,
    cancel,
)
from .workarounds import (
    fail_for_good,
    interrupt_for_certain,
    quoted_for_the_shell,
    stop_without_deadlock,
)

__all__ = ["Executor", "ExecutorSettings", "common_settings"]

MOST_NODES = 3
"""Tried by a job before a fault of the node counts as a failed attempt."""
SECONDS_TO_SUBMIT_LATER = 60.0
"""At most, after sbatch has named a limit; there may be room as soon as a job ends."""
SECONDS_TO_NOTICE = 60.0
"""Between two readings of the logs of running jobs; SLURM notices their ends by itself, at once."""

SECONDS_TO_BEGIN = 300.0
"""At least, for the script of a running job to write the first line of its log."""


class Executor(PlainExecutor):
    """The plain executor with its methods overridden: three threads are in it, Snakemake's
    scheduler, the status loop and the submission, the last of them twice."""

    logger: Logger  # type: ignore[assignment]  # which is what it is

    def __init__(self, workflow: Any, logger: Logger) -> None:
        settings = workflow.executor_settings
        if settings.array_jobs:
            raise WorkflowError(
                "slurm-steady submits each job by itself: leave out --slurm-steady-array-jobs, "
                "or use --executor slurm."
            )
        settings.status_command = None  # the plain plugin's advice on it does not hold here
        # these before the base class, whose status loop starts at once
        self._queue = Queue(logger)
        self._warnings: dict[str, float] = {}
        """Keys of what the user was told, and when."""
        self._hopeless: set[str] = set()
        """Jobs that, at the last look, could never start."""
        self._logs_read = 0.0
        self._sees_logs = False
        """A job of this run has left a log that can be read here."""
        self._unnoticed: set[str] = set()
        """Running jobs whose scripts, at the last reading of their logs, had ended."""
        self._tries: dict[JobExecutorInterface, int] = {}
        """Nodes on which a job has met a fault of the node."""
        self._faulty: set[str] = set()
        self._submission = threading.Lock()
        self._room = threading.Event()
        """Set when a job has ended, or the run."""
        self._over = threading.Event()
        self._can_be_stopped = False
        interrupt_for_certain()  # before the first message
        super().__init__(workflow, logger)  # type: ignore[no-untyped-call]
        self._fallback_partition = ""  # type: ignore[assignment]  # sbatch knows the default one

    def run_jobs(self, jobs: list[JobExecutorInterface]) -> None:
        """Take jobs in Snakemake's thread; they are then submitted in others."""
        if not self._can_be_stopped:  # not earlier: the scheduler sets its handler after __init__
            stop_without_deadlock()
            atexit.register(self._cancel_what_is_left)
            # earlier than that: the pool of the submission would first work off what is in line
            threading._register_atexit(self._submit_no_more)  # type: ignore[attr-defined]
            self._can_be_stopped = True
        super().run_jobs(jobs)

    def run_job(self, job: JobExecutorInterface) -> None:
        """Submit one job, once SLURM takes it, or report why it does not."""
        with self._submission:  # where one job has to wait, the next one would, too
            try:
                submitted = self._submit(job)
            except (SlurmError, WorkflowError, OSError) as error:
                self._report_refusal(job, error)
            except Exception as error:  # nobody looks at the result of this thread
                self.workflow.scheduler.executor_error_callback(error)
            else:
                if submitted:
                    self.report_job_submission(submitted)

    def _submit(self, job: JobExecutorInterface) -> SubmittedJobInfo | None:
        """Return the job as SLURM took it, perhaps after a while; None where the run ends first.

        Raises SlurmError where SLURM refuses it.
        """
        name, unanswered = self._name(job), False
        while True:
            self._room.clear()
            if self._over.is_set():
                return None
            try:
                if unanswered:  # what was taken all the same must not run beside the same job
                    cancel(name)
                submitted = self._sbatch(job, name)
            except SlurmError as error:
                if not error.away and not reasons.FULL.search(str(error)):
                    raise
                unanswered = unanswered or error.away
                self._warn(f"{error}. The run waits, and submits later.")
                self._room.wait(SHORTEST_INTERVAL if error.away else SECONDS_TO_SUBMIT_LATER)
            else:
                if unanswered:
                    with contextlib.suppress(SlurmError):  # a late answer to the first request
                        cancel(name, but=str(submitted.external_jobid))
                return submitted

    def _sbatch(self, job: JobExecutorInterface, name: str) -> SubmittedJobInfo:
        """Submit a job. Raises SlurmError, or WorkflowError for resources that can't be right."""
        rule = f"{'group' if job.is_group() else 'rule'}_{job.name}"
        wildcards = get_job_wildcards(job)
        log = self.slurm_logdir / rule / wildcards / "%j.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        validate_slurm_extra(job)  # type: ignore[no-untyped-call]
        account = job.resources.get("slurm_account")  # judged by sbatch, not by accounting
        parameters = {
            "run_uuid": name,
            "slurm_logfile": log,
            "comment_str": f"{rule}_wildcards_{wildcards}" if wildcards else rule,
            "account": f"-A {shlex.quote(str(account))}" if account else "",
            "partition": self.get_partition_arg(job),
            "workdir": self.workflow.workdir_init,
        }
        call = get_submit_command(
            job, parameters, settings=self.executor_settings, failed_nodes=self._failed_nodes
        )
        with quoted_for_the_shell():
            script = f"#!/bin/sh\n{job_script(self.format_job_exec(job))}"
        call += f"{set_gres_string(job)} /dev/stdin"
        answer = ask("sh", "-c", f"exec {call}", stdin=script, name="sbatch")
        number = answer.strip().split(";")[0]
        number = validate_or_get_slurm_job_id(number, answer)  # type: ignore[no-untyped-call]
        log = log.with_name(f"{number}.log")
        self.logger.info(f"Job {job.jobid} was submitted as SLURM job {number} (log: {log}).")
        return SubmittedJobInfo(job, external_jobid=number, aux={"slurm_logfile": log})

    def _report_refusal(self, job: JobExecutorInterface, error: Exception) -> None:
        """Report why a job was not submitted, and for good where another attempt can't help."""
        words = str(error)
        if reasons.NO_NODE in words and self._faulty:
            nodes = ",".join(sorted(self._faulty))
            words = f"only {nodes} is left, where jobs have failed; the next job may run there"
            self._failed_nodes -= self._faulty
            self._faulty.clear()
        elif isinstance(error, WorkflowError) or reasons.FOR_GOOD.search(words):
            fail_for_good(job)
            words += ". It is not tried again"
        self.report_job_error(SubmittedJobInfo(job), msg=f"{words}. ")

    def additional_general_args(self) -> str:
        """Return nothing: the job's Snakemake runs its rule itself, not below srun."""
        return ""

    def get_python_executable(self) -> str:
        """Quote it: a clone may lie in a folder of any name."""
        return shlex.quote(super().get_python_executable())  # type: ignore[no-untyped-call]

    def _name(self, job: JobExecutorInterface) -> str:
        """Return "plm-embed: embed esm2_650m_0042 1a2b3c4d", with the prefix that is set."""
        prefix = self.executor_settings.jobname_prefix
        words = [f"{prefix}:" if prefix else "", job.name, get_job_wildcards(job), self._run]
        return " ".join(filter(None, words))

    @property
    def _run(self) -> str:
        """The last word of the names of all jobs of this run, and of no other."""
        return self.run_uuid.rpartition("_")[2][:8]

    async def check_active_jobs(  # type: ignore[override]  # the interface means this
        self, active_jobs: list[SubmittedJobInfo]
    ) -> AsyncGenerator[SubmittedJobInfo, None]:
        """Look once at all jobs; yield those that have not ended."""
        if not active_jobs:  # as in the first look, which may come before __init__ is done
            self.next_seconds_between_status_checks = SHORTEST_INTERVAL
            return
        left, now = 0, time.monotonic()
        reads_logs = now - self._logs_read >= SECONDS_TO_NOTICE
        self._logs_read = now if reads_logs else self._logs_read
        jobs = self._queue.look([str(job_info.external_jobid) for job_info in active_jobs])
        for job_info in active_jobs:
            job = jobs.get(str(job_info.external_jobid))
            ended = job is not None and (
                self._has_ended(job_info, job)
                or (job.state == "RUNNING" and reads_logs and self._has_ended_unnoticed(job_info))
            )
            if not ended:
                left += 1
                yield job_info
        self.next_seconds_between_status_checks = self._queue.interval(left)
        if left < len(active_jobs):
            self._room.set()

    def _has_ended(self, job_info: SubmittedJobInfo, job: Job) -> bool:
        """Return if a job has ended, and then report it, or submit it again for another node."""
        log = job_info.aux["slurm_logfile"]  # type: ignore[index]
        if job.state == "UNKNOWN":
            self._warn(
                f"SLURM has forgotten job {job_info.external_jobid} ({self._name(job_info.job)}). "
                "Its outputs say how it ended."
            )
            self.report_job_success(job_info)
        elif job.state == "COMPLETED":
            self._tail(log)
            if not self.executor_settings.keep_successful_logs:
                with contextlib.suppress(OSError):
                    log.unlink()
            self.report_job_success(job_info)
        elif job.state in FAILED:
            end = self._tail(log)
            status = reasons.command_status(end)
            if status == reasons.CONFIG_FAULT:
                fail_for_good(job_info.job)
            if status != reasons.NODE_FAULT or not self._tries_elsewhere(job_info, job.nodes):
                why = reasons.of_failure(job.state, end, job_info.job)
                self._fail(job_info, why, aux_logs=[str(log)])
        else:  # held ones, too, are not always called PENDING
            waits = job.state not in {"RUNNING", "COMPLETING"}
            return waits and self._can_never_start(job_info, job.reason)
        return True

    def _tail(self, log: Path) -> bytes:
        """Return the end of a job's log, and note that logs can be seen here."""
        end = reasons.tail(log)
        self._sees_logs = self._sees_logs or bool(end)
        return end

    def _has_ended_unnoticed(self, job_info: SubmittedJobInfo) -> bool:
        """Return if the script of a running job has ended a while ago, or never began, and then
        cancel the job and report it: without its slurmstepd, SLURM would wait for its time limit.
        """
        number = str(job_info.external_jobid)
        log = job_info.aux["slurm_logfile"]  # type: ignore[index]
        end = self._tail(log)
        status = reasons.exit_status(end)
        again, self._unnoticed = number in self._unnoticed, self._unnoticed - {number}
        if status is None:
            return not end and self._never_began(job_info)
        if not again or not self._cancelled(number):
            self._unnoticed.add(number)
            return False
        if status == 0:
            self.report_job_success(job_info)
        else:
            why = f"exit status {status}. SLURM did not notice its end, and it is cancelled"
            self._fail(job_info, why, aux_logs=[str(log)])
        return True

    def _never_began(self, job_info: SubmittedJobInfo) -> bool:
        """Return if a running job without a log has had the time to begin, and then cancel the job
        and report it. Where no log can be read here, only warn.
        """
        number = str(job_info.external_jobid)
        seconds = self._queue.seconds_running(number)
        if seconds < SECONDS_TO_BEGIN or seconds < batch_start_timeout():
            return False
        silence = f"it has run for {seconds / 60:.0f} minutes without a word in its log"
        if not self._sees_logs:
            name = self._name(job_info.job)
            self._warn(
                f"SLURM job {number} ({name}): {silence}. If its node is lost: scancel {number}",
                once=f"silent {number}",
            )
            return False
        if not self._cancelled(number):
            return False
        self._fail(job_info, f"{silence}. Its slurmstepd seems to be gone, and it is cancelled")
        return True

    def _cancelled(self, number: str) -> bool:
        """Cancel a job; return False where SLURM does not answer."""
        try:
            ask("scancel", number)
        except SlurmError as error:
            return not error.away
        return True

    def _can_never_start(self, job_info: SubmittedJobInfo, reason: str) -> bool:
        """Return if a job can't start, as a second look shows, or SLURM holds it after a launch
        that failed; it is then cancelled. Say what to do about one that waits for ever.
        """
        number = str(job_info.external_jobid)
        never, remedy = reasons.of_waiting(reason)
        if remedy:
            name = self._name(job_info.job)
            self._warn(f"SLURM job {number} ({name}), {reason}: {remedy}.", once=reason)
        again, self._hopeless = number in self._hopeless, self._hopeless - {number}
        if never and not again:
            self._hopeless.add(number)
            return False
        if not never and reasons.LAUNCH_FAILED not in reason:
            return False
        times = self._times(number) if "PartitionTimeLimit" in reason else ""
        if not self._cancelled(number):
            return False
        if never:
            fail_for_good(job_info.job)
            self._fail(job_info, f"it can never start: {reason}{times}")
        else:
            self._fail(job_info, f"SLURM could not start it ({reason})")
        return True

    @staticmethod
    def _times(number: str) -> str:
        """Return the time that a job asks for and the one that its partition allows, in words; ''
        where SLURM does not say.
        """
        try:
            answer = ask("squeue", "--noheader", "--jobs", number, "--format", "%l %P")
            time, partition = answer.split()
            limit, *_ = ask("sinfo", "--noheader", "--format", "%l", "-p", partition).split()
        except (SlurmError, ValueError):
            return ""
        return f" (it asks for {time}, and the partition {partition} allows {limit})"

    def _tries_elsewhere(self, job_info: SubmittedJobInfo, nodes: str) -> bool:
        """Submit a job again, without a failed attempt, for other nodes than those."""
        job, tries = job_info.job, self._tries.get(job_info.job, 0) + 1
        if not nodes or tries >= MOST_NODES or self._over.is_set():
            return False
        self._tries[job] = tries
        self._faulty.add(nodes)
        self._failed_nodes.add(nodes)
        self.logger.warning(
            f"SLURM job {job_info.external_jobid} ({self._name(job)}) could not work on {nodes} "
            f"(exit status {reasons.NODE_FAULT}). Retrying on another node."
            f"{reasons.last_words(job)}"
        )
        self._job_submission_executor.submit(self.run_job, job)
        return True

    def _fail(self, job_info: SubmittedJobInfo, why: str, **more: Any) -> None:
        self._tries.pop(job_info.job, None)
        self.report_job_error(job_info, f"SLURM job {job_info.external_jobid}: {why}. ", **more)

    def _warn(self, words: str, once: str = "") -> None:
        """Warn, but of the same not again too soon."""
        now, key = time.monotonic(), once or words
        if now - self._warnings.get(key, -SECONDS_TO_REPEAT) >= SECONDS_TO_REPEAT:
            self._warnings[key] = now
            self.logger.warning(words)

    def cancel_jobs(self, active_jobs: list[SubmittedJobInfo]) -> None:  # noqa: ARG002
        """Cancel all jobs of this run, whatever the status loop or sbatch did when Ctrl-C came."""
        self._submit_no_more()
        self._job_submission_executor.shutdown(wait=True)  # what is in line returns at once
        self._cancel_what_is_left()

    def _submit_no_more(self) -> None:
        self._over.set()
        self._room.set()

    def _cancel_what_is_left(self) -> None:
        """Cancel all jobs of this run, also where Snakemake ends without calling its executor: if a
        Ctrl-C ends the `tee` of its output first, it fails of its own message.
        """
        try:
            cancel(self._run)
        except SlurmError as error:
            self.logger.warning(
                f"{error}. Cancel the jobs whose names end with {self._run} yourself."
            )

    def shutdown(self) -> None:
        """End in order: none is still to be sent, and of those that a killed controller has brought
        back after their end none is left. Where others are left, that is on purpose.
        """
        self._submit_no_more()
        if not self.active_jobs:
            with contextlib.suppress(SlurmError):
                cancel(self._run)
        atexit.unregister(self._cancel_what_is_left)
        super().shutdown()
