"""Snakemake executor for PBS Pro and OpenPBS."""

import asyncio
import atexit
import contextlib
import shlex
import threading
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from snakemake_interface_executor_plugins.executors.base import SubmittedJobInfo
from snakemake_interface_executor_plugins.executors.remote import RemoteExecutor
from snakemake_interface_executor_plugins.jobs import JobExecutorInterface
from snakemake_interface_executor_plugins.logging import LoggerExecutorInterface
from snakemake_interface_executor_plugins.settings import CommonSettings
from snakemake_interface_executor_plugins.workflow import WorkflowExecutorInterface

from .cancel import delete_all
from .commands import AwayError, Pbs
from .job_script import script_text
from .ledger import Entry, Ledger
from .logs import log_folder, log_path
from .recognize import chosen_site
from .refusals import RefusedError
from .request import Request, job_name, job_work, qsub_words, read_needs
from .settings import ExecutorSettings
from .site import load_site
from .submit import Submitter
from .verdict import Verdict
from .watch import Job, Watch
from .workarounds import (
    fail_for_good,
    interrupt_for_certain,
    quoted_for_the_shell,
    stop_without_deadlock,
)

__all__ = ["Executor", "ExecutorSettings", "common_settings"]

_CANCEL_PATIENCE = 120.0  # seconds of trying to delete jobs after Ctrl-C while the server is away
_STOPPED = "Snakemake was told to stop"

common_settings = CommonSettings(
    non_local_exec=True,
    implies_no_shared_fs=False,
    job_deploy_sources=False,
    pass_default_storage_provider_args=True,
    pass_default_resources_args=True,
    pass_envvar_declarations_to_cmd=False,  # the job's script has them, quoted
    auto_deploy_default_storage_provider=False,
)


class Executor(RemoteExecutor):
    """Glue between Snakemake's calls (three threads: scheduler, status loop, submission) and the
    modules here.
    """

    def __init__(
        self, workflow: WorkflowExecutorInterface, logger: LoggerExecutorInterface
    ) -> None:
        # these before the base class, whose status loop starts at once
        self._stopping = threading.Event()
        self._interval = 0.1
        self._cancelling = False
        super().__init__(workflow, logger)

    def __post_init__(self) -> None:
        settings: ExecutorSettings = self.executor_settings
        self._settings = settings
        self._interval = float(settings.status_interval or 30)
        self._pbs = Pbs(timeout=float(settings.command_timeout or 60))
        self._pbs.check()
        site, why = chosen_site(settings.site)
        self.logger.info(f"PBS site: {site}, {why}.")
        self._site = load_site(site)
        self._workdir = Path.cwd()
        self._logdir = log_folder(self._workdir, settings.logdir)
        self._ledger = Ledger(Path(self.workflow.persistence.aux_path).absolute() / "pbs")
        self._watch = Watch(
            self._pbs, self._ledger, float(settings.unknown_seconds or 60), self.logger.info
        )
        # by name; the base class empties its own list during every look
        self._waiting_for_id: dict[str, JobExecutorInterface] = {}
        self._alive: dict[str, Job] = {}
        self._lock = threading.Lock()
        self._refused: Counter[str] = Counter()
        self._can_be_stopped = False
        self._submitter = Submitter(
            pbs=self._pbs,
            ledger=self._ledger,
            submitted=self._on_submitted,
            refused=self._on_refused,
            in_queue=self._in_queue,
            crashed=self._end_run,
            say=self.logger.info,
            pause=self._interval / 2,
        )
        self._submitter.start()

    def _end_run(self, error: Exception) -> None:
        """End the run with this error."""
        self.workflow.scheduler.executor_error_callback(error)

    def get_job_exec_prefix(self, job: JobExecutorInterface) -> str:  # noqa: ARG002 (the interface's signature)
        """Return a change into the working folder: PBS starts jobs in the home folder."""
        if self.workflow.storage_settings.assume_common_workdir:
            return f"cd {shlex.quote(str(self.workflow.workdir_init))}"
        return ""

    def get_python_executable(self) -> str:
        """Quote it: a clone may lie in a folder of any name."""
        return shlex.quote(super().get_python_executable())  # type: ignore[no-untyped-call]

    def run_job(self, job: JobExecutorInterface) -> None:
        """Build the request here, in Snakemake's thread, and leave qsub to the submitting
        thread.
        """
        if not self._can_be_stopped:  # not earlier: Snakemake sets its handler after this is made
            stop_without_deadlock(lambda: self._submitter.withdraw(_STOPPED))
            interrupt_for_certain()
            atexit.register(self._delete_what_is_left)
            self._can_be_stopped = True
        name = job_name(job, str(self._workdir))
        log = log_path(self._logdir, str(job.name), name)
        script = Path(self.get_jobscript(job))
        try:
            queue, words = qsub_words(read_needs(job, self._settings), self._site, name, log)
        except RefusedError as refusal:
            self._give_up(job, str(refusal))
            return
        with quoted_for_the_shell():
            command = self.format_job_exec(job)
        script.touch(mode=0o700)  # variables may be secrets
        script.write_text(
            script_text(command, self._site, self._ledger.end(name), self.envvars()),
            encoding="utf-8",
        )
        with self._lock:
            self._waiting_for_id[name] = job
        self._submitter.add(
            Request(name, job_work(job), queue.name, queue.max_jobs, words, script, log)
        )

    def _on_submitted(self, request: Request, entry: Entry, adopted: bool) -> None:
        watched = Job(entry.id or "", request.name, entry.queue, entry.log)
        with self._lock:
            job = self._waiting_for_id.pop(request.name)
            self._alive[request.name] = watched
        verb = (
            "was running or waiting in PBS already and is taken over"
            if adopted
            else "was submitted to PBS"
        )
        self.logger.info(f"Job {job.jobid} ({job.name}) {verb}: {watched.id}, log {watched.log}")
        self.report_job_submission(
            SubmittedJobInfo(job, external_jobid=watched.id, aux={"pbs": watched})
        )

    def _on_refused(self, request: Request, refusal: RefusedError) -> None:
        with self._lock:
            job = self._waiting_for_id.pop(request.name)
        call = f". The call was: {shlex.join(['qsub', *request.words, str(request.script)])}"
        if refusal.for_good:
            self._give_up(job, str(refusal), call)
        else:
            self.report_job_error(SubmittedJobInfo(job), msg=f"{refusal}{call} . ")

    def _give_up(self, job: JobExecutorInterface, reason: str, call: str = ".") -> None:
        """Fail a job that no retry would bring into the queue; each reason is told once, however
        many jobs it hits.
        """
        with self._lock:
            self._refused[reason] += 1
            first = self._refused[reason] == 1
        if first:
            self.logger.error(f"Job {job.jobid} ({job.name}) is not submitted: {reason}{call}")
        fail_for_good(job)
        self.report_job_error(SubmittedJobInfo(job, aux={"refused": reason}))

    def print_job_error(
        self, job_info: SubmittedJobInfo, msg: str | None = None, **more: Any
    ) -> None:
        """Print nothing of a refused job: its reason is told, and there is no log."""
        if "refused" not in (job_info.aux or {}):
            super().print_job_error(job_info, msg, **more)

    def _in_queue(self, queue: str) -> int:
        with self._lock:
            return sum(job.queue == queue for job in self._alive.values())

    async def check_active_jobs(  # type: ignore[override]  # the interface means an asynchronous generator
        self, active_jobs: list[SubmittedJobInfo]
    ) -> AsyncGenerator[SubmittedJobInfo, None]:
        """Look once at all jobs; yield those that have not ended."""
        if not active_jobs or self._cancelling:
            return  # Snakemake asks no more about jobs that are being deleted
        verdicts = self._watch.look([info.aux["pbs"] for info in active_jobs if info.aux])
        for info in active_jobs:
            verdict = verdicts[str(info.external_jobid)]
            if verdict.kind == "running":
                yield info
            else:
                self._finish(info, verdict)

    def _finish(self, info: SubmittedJobInfo, verdict: Verdict) -> None:
        watched: Job = info.aux["pbs"]  # type: ignore[index]  # set in _on_submitted for every job
        if verdict.kind == "held":
            self._pbs.call("qdel", watched.id)
            entry = self._ledger.read(watched.name)
            if entry:
                self._ledger.write(replace(entry, deleted=True))
        else:
            self._ledger.remove(watched.name)
        with self._lock:
            self._alive.pop(watched.name, None)
        if verdict.kind == "success":
            self.report_job_success(info)
        else:
            msg = f"PBS job {watched.id} failed: {verdict.words}. Its log: {watched.log} . "
            if info.job.is_group():  # Snakemake prints no message of a group
                self.logger.error(msg)
            self.report_job_error(info, msg=msg, aux_logs=[watched.log])
        self._submitter.poke(watched.queue)

    async def sleep(self) -> None:
        """Wait for the next look, but not longer than the run lasts; notice when Snakemake takes no
        more jobs.
        """
        end = time.monotonic() + self._interval
        while not self._stopping.is_set() and (left := end - time.monotonic()) > 0:
            if reason := _stop_reason(self.workflow.scheduler):
                self._submitter.withdraw(reason)
            await asyncio.sleep(min(left, 0.2))

    def cancel_jobs(self, active_jobs: list[SubmittedJobInfo]) -> None:  # noqa: ARG002 (the interface's signature)
        """Delete all jobs of this run, whatever the status loop or a qsub was doing when Ctrl-C
        came.
        """
        try:
            left = self._delete_what_is_left(self.logger.info)
        except KeyboardInterrupt:
            self.logger.info(
                "Still deleting PBS jobs. Press Ctrl-C again to stop that and leave them running."
            )
            atexit.unregister(self._delete_what_is_left)
            left = self._delete_what_is_left(self.logger.info)
        if left:
            self.logger.error(
                f"These PBS jobs could not be deleted and may still run: qdel {' '.join(left)}"
            )

    def _delete_what_is_left(self, say: Callable[[str], None] = lambda _: None) -> list[str]:
        """Delete all jobs; in silence where Snakemake ends without calling its executor: by Ctrl-C
        when its output goes to a `tee`, which ends first.
        """
        self._cancelling = True
        with self._lock:
            names = [*self._alive, *self._waiting_for_id]
        if names:
            say(f"Deleting up to {len(names)} PBS jobs.")
        self._submitter.stop()
        pause = min(5.0, self._interval)
        return delete_all(
            self._pbs, self._ledger, names, patience=_CANCEL_PATIENCE, pause=pause, say=say
        )

    def shutdown(self) -> None:
        """End both threads; at a normal end no job is left."""
        atexit.unregister(self._delete_what_is_left)
        for reason, count in self._refused.items():
            if count > 1:
                self.logger.error(
                    f"{count - 1} more jobs are not submitted for the same reason: {reason}."
                )
        self._stopping.set()
        self._submitter.stop()
        if not self._cancelling:
            with contextlib.suppress(AwayError):
                self._submitter.living.forget_ended()
        super().shutdown()  # type: ignore[no-untyped-call]


def _stop_reason(scheduler: Any) -> str:
    """Return why Snakemake takes no more jobs, "" while it does. It then waits for every job that
    it has handed out, also for those that were never submitted.
    """
    if getattr(scheduler, "_user_kill", None):
        return _STOPPED
    if getattr(scheduler, "_errors", False) and not getattr(scheduler, "keepgoing", True):
        return "Snakemake stops, since another job has failed"
    return ""
