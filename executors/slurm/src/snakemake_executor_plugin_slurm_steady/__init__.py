"""Snakemake executor for SLURM: the plain one, which loses sight of no job, waits for none that is
gone or can never start, and gives up neither for a silent controller nor for a full queue.
"""

import atexit
import shlex
import threading
from collections.abc import AsyncGenerator, Iterator
from logging import Logger
from typing import Any

from snakemake_executor_plugin_slurm import Executor as PlainExecutor
from snakemake_executor_plugin_slurm import ExecutorSettings, common_settings
from snakemake_executor_plugin_slurm.utils import get_job_wildcards
from snakemake_interface_common.exceptions import WorkflowError
from snakemake_interface_executor_plugins.executors.base import SubmittedJobInfo
from snakemake_interface_executor_plugins.jobs import JobExecutorInterface

from . import reasons
from .job_script import job_script
from .queue import SHORTEST_INTERVAL, Job, Queue, answer, cancel_jobs_of
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
FAILED = {
    "BOOT_FAIL",
    "CANCELLED",
    "DEADLINE",
    "FAILED",
    "NODE_FAIL",
    "OUT_OF_MEMORY",
    "PREEMPTED",
    "REVOKED",
    "TIMEOUT",
}


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
        settings.pass_command_as_script = True  # only one shell reads it
        settings.status_command = None  # the plain plugin's advice on it does not hold here
        # these before the base class, whose status loop starts at once
        self._queue = Queue(logger)
        self._warnings: set[str] = set()
        self._hopeless: set[str] = set()
        """Jobs that, at the last look, could never start."""
        self._tries: dict[JobExecutorInterface, int] = {}
        """Nodes on which a job has met a fault of the node."""
        self._faulty: set[str] = set()
        self._submission = threading.Lock()
        self._refusal = ""
        """Words of sbatch, which does not take the present job yet."""
        self._room = threading.Event()
        """Set when a job has ended, or the run."""
        self._over = threading.Event()
        self._can_be_stopped = False
        super().__init__(workflow, logger)  # type: ignore[no-untyped-call]

    def run_jobs(self, jobs: list[JobExecutorInterface]) -> None:
        """Take jobs in Snakemake's thread; they are then submitted in others."""
        if not self._can_be_stopped:  # not earlier: the scheduler sets its handler after __init__
            stop_without_deadlock()
            interrupt_for_certain()
            atexit.register(self._cancel_what_is_left)
            # earlier than that: the pool of the submission would first work off what is in line
            threading._register_atexit(self._submit_no_more)  # type: ignore[attr-defined]
            self._can_be_stopped = True
        super().run_jobs(jobs)

    def run_job(self, job: JobExecutorInterface) -> None:
        """Submit one job, once SLURM takes it."""
        with self._submission:  # where one job has to wait, the next one would, too
            while True:
                self._room.clear()
                if self._over.is_set():
                    return
                self._refusal = ""
                super().run_job(job)
                if not self._refusal:
                    return
                self._warn(f"{self._refusal}. The run waits, and submits later.")
                if reasons.FULL.search(self._refusal):
                    self._room.wait(SECONDS_TO_SUBMIT_LATER)
                    continue
                # what was taken without an answer must not run beside the same job
                taken = f"--name={self._name(job)}"
                while not self._over.wait(SHORTEST_INTERVAL) and answer("scancel", taken) is None:
                    pass

    def _report_job_error_threadsafe(self, job_info: SubmittedJobInfo, msg: str) -> None:
        """Report in the words of sbatch why a job was not submitted, or keep them to try again."""
        words = reasons.of_submission(msg)
        if reasons.FULL.search(words) or reasons.AWAY.search(words):
            self._refusal = words
            return
        if reasons.NO_NODE in words and self._faulty:
            nodes = ",".join(sorted(self._faulty))
            words = (
                f"no node is left but {nodes}, where jobs met a fault; the next one may run there"
            )
            self._failed_nodes -= self._faulty
            self._faulty.clear()
        elif reasons.FOR_GOOD.search(words):
            fail_for_good(job_info.job)
            words += ". It is not tried again"
        super()._report_job_error_threadsafe(job_info, f"{words}. ")

    def additional_general_args(self) -> str:
        """Return nothing: the job's Snakemake runs its rule itself, not below srun."""
        return ""

    def get_python_executable(self) -> str:
        """Quote it: a clone may lie in a folder of any name."""
        return shlex.quote(super().get_python_executable())  # type: ignore[no-untyped-call]

    def format_job_exec(self, job: JobExecutorInterface) -> str:
        """Return the job's script."""
        with quoted_for_the_shell():
            return job_script(super().format_job_exec(job))

    def get_account_arg(self, job: JobExecutorInterface) -> Iterator[str]:
        """Yield the account without a question to accounting: sbatch judges it."""
        account = job.resources.get("slurm_account")
        yield f" -A {shlex.quote(str(account))}" if account else ""

    def get_partition_arg(self, job: JobExecutorInterface) -> str:
        """Add a name that a person can read: of two, sbatch takes the last."""
        partition = super().get_partition_arg(job)
        return f"{partition} --job-name={shlex.quote(self._name(job))}"

    def _name(self, job: JobExecutorInterface) -> str:
        """Return "plm-embed: embed esm2_650m_0042 1a2b3c4d", with the prefix that is set."""
        prefix = self.executor_settings.jobname_prefix
        words = [f"{prefix}:" if prefix else "", job.name, get_job_wildcards(job)]
        return " ".join(filter(None, words)) + self._end_of_names()

    def _end_of_names(self) -> str:
        """Return what the names of all jobs of this run, and of no other, end with."""
        return f" {self.run_uuid.rpartition('_')[2][:8]}"

    async def check_active_jobs(  # type: ignore[override]  # the interface means this
        self, active_jobs: list[SubmittedJobInfo]
    ) -> AsyncGenerator[SubmittedJobInfo, None]:
        """Look once at all jobs; yield those that have not ended."""
        if not active_jobs:  # as in the first look, which may come before __init__ is done
            self.next_seconds_between_status_checks = SHORTEST_INTERVAL
            return
        left = 0
        jobs = self._queue.look([str(job_info.external_jobid) for job_info in active_jobs])
        for job_info in active_jobs:
            job = jobs.get(str(job_info.external_jobid))
            if job is None or not self._has_ended(job_info, job):
                left += 1
                yield job_info
        self.next_seconds_between_status_checks = self._queue.interval(left)
        if left < len(active_jobs):
            self._room.set()

    def _has_ended(self, job_info: SubmittedJobInfo, job: Job) -> bool:
        """Return if a job has ended, and then report it, or submit it again for another node."""
        log = job_info.aux["slurm_logfile"]  # type: ignore[index]
        if job.state == "PENDING":
            return self._can_never_start(job_info, job.reason)
        if job.state == "COMPLETED" and not self.executor_settings.keep_successful_logs:
            log.unlink(missing_ok=True)
        if job.state in ("COMPLETED", "UNKNOWN"):  # UNKNOWN: its outputs say how it ended
            self.report_job_success(job_info)
        elif job.state in FAILED:
            end = reasons.tail(log)
            if not (reasons.is_node_fault(end) and self._tries_elsewhere(job_info, job.nodes)):
                why = reasons.of_failure(job.state, end, job_info.job)
                self._fail(job_info, why, aux_logs=[str(log)])
        else:
            return False
        return True

    def _can_never_start(self, job_info: SubmittedJobInfo, reason: str) -> bool:
        """Return if a second look shows that a job can never start, and then cancel it for good.

        Say once for each reason what to do about a job that waits for ever.
        """
        number = str(job_info.external_jobid)
        never, remedy = reasons.of_waiting(reason)
        if remedy:
            name = self._name(job_info.job)
            self._warn(f"SLURM job {number} ({name}), {reason}: {remedy}.", once=reason)
        again, self._hopeless = number in self._hopeless, self._hopeless - {number}
        if not never:
            return False
        if not again or answer("scancel", number) is None:
            self._hopeless.add(number)
            return False
        fail_for_good(job_info.job)
        self._fail(job_info, f"it can never start: {reason}")
        return True

    def _tries_elsewhere(self, job_info: SubmittedJobInfo, nodes: str) -> bool:
        """Submit a job again, without a failed attempt, for other nodes than those."""
        job, tries = job_info.job, self._tries.get(job_info.job, 0) + 1
        if not nodes or tries >= MOST_NODES or self._over.is_set():
            return False
        self._tries[job] = tries
        self._faulty.add(nodes)
        self._failed_nodes.add(nodes)
        self.logger.warning(
            f"SLURM job {job_info.external_jobid} ({self._name(job)}) met a fault of {nodes}: exit "
            f"status {reasons.NODE_FAULT}. It is tried elsewhere, and {nodes} is left out."
        )
        self._job_submission_executor.submit(self.run_job, job)
        return True

    def _fail(self, job_info: SubmittedJobInfo, why: str, **more: Any) -> None:
        self._tries.pop(job_info.job, None)
        self.report_job_error(job_info, f"SLURM job {job_info.external_jobid}: {why}. ", **more)

    def _warn(self, words: str, once: str = "") -> None:
        """Warn once for each key."""
        if (once or words) not in self._warnings:
            self._warnings.add(once or words)
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
        """Cancel all jobs of this run, also when Snakemake ends without a word to its executor: if
        a Ctrl-C ends the `tee` of its output first, it fails of its own message.
        """
        end = self._end_of_names()
        if not cancel_jobs_of(end):
            self.logger.warning(
                f"SLURM does not answer: cancel yourself the jobs whose names end with{end}."
            )

    def shutdown(self) -> None:
        """End in order: jobs that are left are left on purpose."""
        atexit.unregister(self._cancel_what_is_left)
        super().shutdown()
