"""Snakemake executor for SLURM: the plain one, which never waits for a job that is gone and never
gives up because SLURM does not answer for a while.

By itself snakemake-executor-plugin-slurm waits for ever for jobs that were preempted and not put
back into the queue, whose node failed while requeueing is on, and that squeue has forgotten; it
loses sight of all jobs when SLURM stays silent; it counts submissions that SLURM did not answer as
failed jobs; it looks after 40 s at the earliest; each of its jobs starts Snakemake twice, the first
time only to call srun; its shell takes `$` in paths for the sign of a variable; and after Ctrl-C it
submits what was in line.
"""

import atexit
import re
import shlex
import threading
from collections.abc import AsyncGenerator, Iterator
from logging import Logger
from typing import Any

from snakemake_executor_plugin_slurm import Executor as PlainExecutor
from snakemake_executor_plugin_slurm import common_settings
from snakemake_interface_executor_plugins.executors.base import SubmittedJobInfo
from snakemake_interface_executor_plugins.jobs import JobExecutorInterface
from snakemake_interface_executor_plugins.workflow import WorkflowExecutorInterface

from . import plain, step
from .controller import Controller, cancel_named
from .quoting import between_double_quotes, quoted_for_the_shell
from .refusals import AGAIN, Refusals, in_words
from .scheduler import fail_for_good, interrupt_for_certain, stop_without_deadlock
from .settings import ExecutorSettings
from .states import States

__all__ = ["Executor", "ExecutorSettings", "common_settings"]

UNAVAILABLE = " Detailed failure reason unavailable (status command is not 'sacct')."
"""What the plain plugin says of each job that failed, where squeue was asked: of no use."""

# Snakemake imports all executor plugins when it starts, also in a job, which runs with another
# executor: nowhere else does this plugin meet the Snakemake of its own jobs.
step.end_with_step()


class _Submitted(threading.local):
    """The job that a thread submits by itself; those of an array, and scripts, are none."""

    job: JobExecutorInterface | None = None


class Executor(PlainExecutor):
    """The plain executor with its methods overridden: three threads are in it, Snakemake's
    scheduler, the status loop and the submission, the last of them twice."""

    def __init__(self, workflow: WorkflowExecutorInterface, logger: Logger) -> None:
        plain.check(logger)
        # these before the base class, whose status loop starts at once
        self._states = States(plain.plugin.query_job_status)
        self._controller = Controller(logger)
        self._refusals = Refusals()
        self._submitted = _Submitted()
        self._can_be_stopped = False
        super().__init__(workflow, logger)  # type: ignore[no-untyped-call]

    def run_jobs(self, jobs: list[JobExecutorInterface]) -> None:
        """In Snakemake's thread; the jobs are then submitted in others."""
        if not self._can_be_stopped:  # not earlier: the scheduler sets its handler after __init__
            stop_without_deadlock()
            interrupt_for_certain()
            atexit.register(self._cancel_what_is_left)
            # earlier than that: the pool of the submission would first work off what is in line
            threading._register_atexit(self._controller.give_up)  # type: ignore[attr-defined]
            self._can_be_stopped = True
        super().run_jobs(jobs)

    def run_job(self, job: JobExecutorInterface) -> None:
        """Submit one job, once the controller answers."""
        if not self._controller.wait():
            return
        script = self.executor_settings.pass_command_as_script
        below_srun = step.possible() and not script and not job.resources.get("mpi")
        self._submitted.job = job if below_srun else None
        try:
            super().run_job(job)
        finally:
            self._submitted.job = None

    def run_array_jobs(self, jobs: list[JobExecutorInterface]) -> None:
        """Submit an array, once the controller answers. It keeps the plain plugin's job step."""
        if self._controller.wait():
            super().run_array_jobs(jobs)

    def additional_general_args(self) -> str:
        """Nothing below srun: the job's Snakemake runs its rule itself."""
        if self._submitted.job:
            return ""
        return str(super().additional_general_args())  # type: ignore[no-untyped-call]

    def get_python_executable(self) -> str:
        """Quoted: a clone may lie in a folder of any name."""
        words = shlex.quote(super().get_python_executable())  # type: ignore[no-untyped-call]
        return f"{step.srun(self._submitted.job)} {words}" if self._submitted.job else words

    def format_job_exec(self, job: JobExecutorInterface) -> str:
        """The job's command, as the shells on its way read it."""
        with quoted_for_the_shell():
            words = str(super().format_job_exec(job))
        return between_double_quotes(words) if self._submitted.job else words

    def get_account_arg(self, job: JobExecutorInterface) -> Iterator[str]:
        """Accounting that is silent or not there is no reason to refuse an account.

        sbatch will judge it; without one that was named, SLURM takes the user's own.
        """
        try:
            yield from super().get_account_arg(job)
        except Exception as error:
            if "appears to be invalid" in str(error):
                raise
            named = str(job.resources.get("slurm_account") or "")
            found = [f" -A {shlex.quote(word)}" for word in re.split(r"[,\s]+", named) if word]
            yield from found or [""]

    async def check_active_jobs(  # type: ignore[override]  # the interface means this
        self, active_jobs: list[SubmittedJobInfo]
    ) -> AsyncGenerator[SubmittedJobInfo, None]:
        """One look at all jobs; those that have not ended are yielded."""
        self._states.await_(str(job.external_jobid) for job in active_jobs)
        left = 0
        with plain.asked_through(self._states.query):
            async for job in super().check_active_jobs(active_jobs):  # type: ignore[attr-defined]
                left += 1
                yield job
        self.next_seconds_between_status_checks = self._states.interval(left)

    def report_job_error(self, job_info: SubmittedJobInfo, msg: str = "", **more: Any) -> None:
        """Say why in `aux`, for whoever decides what the next attempt asks for.

        "cause" is "time", "memory" or "refused" (for good), "at_most" what the partition gives,
        "said" the reason in words.
        """
        why = self._states.why.pop(str(job_info.external_jobid), {})
        if job_info.external_jobid is None:
            told = msg
            refused, msg = self._refusals.told_once(msg)
            why = {"said": in_words(told)}
            why |= {"cause": "refused"} if refused else {}
        msg = msg.replace(UNAVAILABLE, "")
        if why.get("cause") == "refused":
            fail_for_good(job_info.job)
        job_info.aux = (job_info.aux or {}) | why
        super().report_job_error(job_info, msg, **more)

    def print_job_error(
        self, job_info: SubmittedJobInfo, msg: str | None = None, **more: Any
    ) -> None:
        """One line where the reason was told before, instead of all that is known of the job."""
        if msg == AGAIN:
            self.logger.error(f"{job_info.job}: {msg}")
        else:
            super().print_job_error(job_info, msg, **more)

    def cancel_jobs(self, active_jobs: list[SubmittedJobInfo]) -> None:
        """Cancel all jobs of this run, whatever the status loop or sbatch did when Ctrl-C came."""
        self._controller.give_up()
        super().cancel_jobs(active_jobs)
        self._job_submission_executor.shutdown(wait=True)  # what is in line returns at once
        self._cancel_what_is_left()

    def _cancel_what_is_left(self) -> None:
        """Also when Snakemake ends without a word to its executor: by Ctrl-C when its output goes
        to a `tee`, which ends first, it fails of its own message.
        """
        cancel_named(self.run_uuid, bool(self._submitted_job_clusters))

    def shutdown(self) -> None:
        """The end in order: jobs that are left are left on purpose."""
        atexit.unregister(self._cancel_what_is_left)
        super().shutdown()
