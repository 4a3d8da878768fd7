"""Snakemake executor for PBS Pro and OpenPBS."""

import asyncio
import atexit
import contextlib
import shlex
import threading
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any

from msgspec.structs import replace
from snakemake_interface_executor_plugins.executors.base import SubmittedJobInfo
from snakemake_interface_executor_plugins.executors.remote import RemoteExecutor
from snakemake_interface_executor_plugins.jobs import JobExecutorInterface
from snakemake_interface_executor_plugins.logging import LoggerExecutorInterface
from snakemake_interface_executor_plugins.settings import CommonSettings
from snakemake_interface_executor_plugins.workflow import WorkflowExecutorInterface

from .cancel import delete_all
from .commands import AwayError, Notices, Pbs
from .job_script import script_text
from .ledger import Ledger
from .refusals import RefusedError
from .request import Request, log_folder, make_request
from .settings import ExecutorSettings
from .site import choose_site, load_site
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
_TURN = 0.2  # seconds between two turns of the status thread
_CONFIG_FAULT = b"non-zero exit status 78."  # EX_CONFIG of a rule's command, as Snakemake writes it

common_settings = CommonSettings(
    non_local_exec=True,
    implies_no_shared_fs=False,
    job_deploy_sources=False,
    pass_envvar_declarations_to_cmd=False,  # the job's script has them, quoted
    auto_deploy_default_storage_provider=False,
)


class Executor(RemoteExecutor):
    """Glue between Snakemake's calls and the modules here.

    Snakemake's thread hands over jobs. All commands of PBS are called by the status thread, one
    after another; at the end, or at Ctrl-C, by the main thread, which waits for that one's turn.
    """

    def __init__(
        self, workflow: WorkflowExecutorInterface, logger: LoggerExecutorInterface
    ) -> None:
        # these before the base class, whose status thread starts at once
        self._turn = threading.Lock()
        self._waiting: dict[str, tuple[JobExecutorInterface, Request]] = {}
        self._alive: dict[str, Job] = {}
        self._cancelling = False
        super().__init__(workflow, logger)

    def __post_init__(self) -> None:
        interrupt_for_certain()  # before the first message
        settings: ExecutorSettings = self.executor_settings
        self._settings = settings
        self._interval = float(settings.status_interval or 30)
        self._notices = Notices(self.logger.info)
        self._pbs = Pbs(float(settings.command_timeout or 60), self._notices)
        self._pbs.check()
        site, why = choose_site(settings.site)
        self.logger.info(f"PBS site: {site}, {why}.")
        self._site = load_site(site)
        self._logdir = log_folder(Path.cwd(), settings.logdir)
        self._ledger = Ledger(Path(self.workflow.persistence.aux_path).absolute() / "pbs")
        unknown_seconds = float(settings.unknown_seconds or 60)
        self._watch = Watch(self._pbs, self._ledger, unknown_seconds, self._notices)
        self._submitter = Submitter(self._pbs, self._ledger, self._notices, self._interval)
        self._forget_ended()  # perhaps nothing is to be done, and nobody calls `shutdown`
        self._pause_until = self._next_look = 0.0
        self._refused: Counter[str] = Counter()
        self._can_be_stopped = False

    def get_job_exec_prefix(self, job: JobExecutorInterface) -> str:  # noqa: ARG002 (the interface's signature)
        """Return a change into the working folder: PBS starts jobs in the home folder."""
        if self.workflow.storage_settings.assume_common_workdir:
            return f"cd {shlex.quote(str(self.workflow.workdir_init))}"
        return ""

    def get_python_executable(self) -> str:
        """Quote it: a clone may lie in a folder of any name."""
        return shlex.quote(super().get_python_executable())  # type: ignore[no-untyped-call]

    def run_job(self, job: JobExecutorInterface) -> None:
        """Write the script of a job, and leave its submission to the status thread."""
        if not self._can_be_stopped:  # not earlier: Snakemake sets its handler after this is made
            stop_without_deadlock()
            atexit.register(self._delete_what_is_left)
            self._can_be_stopped = True
        script = Path(self.get_jobscript(job))
        try:
            request = make_request(job, self._settings, self._site, self._logdir, script)
        except RefusedError as refusal:
            self._give_up(job, str(refusal))
            return
        with quoted_for_the_shell():
            command = self.format_job_exec(job)
        script.touch(mode=0o700)  # variables may be secrets
        end = self._ledger.end(request.name)
        text = script_text(command, self._site, end, self.envvars())
        script.write_text(text, encoding="utf-8")
        self._waiting[request.name] = job, request

    async def check_active_jobs(  # type: ignore[override]  # the interface means an asynchronous generator
        self, active_jobs: list[SubmittedJobInfo]
    ) -> AsyncGenerator[SubmittedJobInfo, None]:
        """Submit what waits, and look at all jobs when it is time; yield those that have not
        ended.
        """
        verdicts: dict[str, Verdict] = {}
        with self._turn:
            if self._cancelling:
                return  # Snakemake asks no more about jobs that are being deleted
            if self._waiting or active_jobs:
                jobs = [info.aux["pbs"] for info in active_jobs if info.aux]
                verdicts = self._take_turn(jobs)
        for info in active_jobs:
            verdict = verdicts.get(str(info.external_jobid))
            if verdict is None:
                yield info
            else:
                self._finish(info, verdict)

    def _take_turn(self, jobs: list[Job]) -> dict[str, Verdict]:
        """Return the verdicts on the jobs that have ended, by their ids."""
        now = time.monotonic()
        reason = _stop_reason(self.workflow.scheduler)
        if reason:
            for name in list(self._waiting):  # to which Snakemake's thread may add
                if not self._submitter.is_in_doubt(name):
                    self._give_up(self._waiting.pop(name)[0], reason)
        if now < self._pause_until:
            return {}
        try:
            for job, request in list(self._waiting.values()):
                if self._cancelling or _stop_reason(self.workflow.scheduler) != reason:
                    return {}
                self._submit(job, request, reason)
            if jobs and now >= self._next_look:
                self._next_look = now + self._interval
                return self._watch.look(jobs)
        except AwayError:
            self._pause_until = time.monotonic() + self._interval
        return {}

    def _submit(self, job: JobExecutorInterface, request: Request, reason: str) -> None:
        """Submit a job if PBS takes it now. Raises AwayError."""
        most = request.max_jobs
        if most is not None and self._jobs_in(request.queue) >= most:
            words = f"queue {request.queue} is to hold {most} of our jobs at most"
            self._notices(f"Submission of {request.name} waits: {words}.", key=words)
            return
        try:
            submitted = self._submitter.submit(request, reason)
        except RefusedError as refusal:
            del self._waiting[request.name]
            words = shlex.join(["qsub", *request.words, str(request.script)])
            call = f". The call was: {words}"
            if refusal.for_good:
                self._give_up(job, str(refusal), call)
            else:
                self.report_job_error(SubmittedJobInfo(job), msg=f"{refusal}{call} . ")
            return
        if submitted is None:
            return
        entry, adopted = submitted
        watched = self._alive[request.name] = Job(entry)
        del self._waiting[request.name]
        verb = "was running or waiting in PBS already and is taken over"
        verb = verb if adopted else "was submitted to PBS"
        self.logger.info(f"Job {job.jobid} ({job.name}) {verb}: {entry.id}, log {entry.log}")
        self.report_job_submission(
            SubmittedJobInfo(job, external_jobid=entry.id, aux={"pbs": watched})
        )

    def _jobs_in(self, queue: str) -> int:
        return sum(job.entry.queue == queue for job in self._alive.values())

    def _give_up(self, job: JobExecutorInterface, reason: str, call: str = ".") -> None:
        """Fail a job that no retry would bring into the queue; each reason is told once, however
        many jobs it hits.
        """
        self._refused[reason] += 1
        if self._refused[reason] == 1:
            self.logger.error(f"Job {job.jobid} ({job.name}) is not submitted: {reason}{call}")
        fail_for_good(job)
        self.report_job_error(SubmittedJobInfo(job, aux={"refused": reason}))

    def print_job_error(
        self, job_info: SubmittedJobInfo, msg: str | None = None, **more: Any
    ) -> None:
        """Print nothing of a refused job: its reason is told, and there is no log."""
        if "refused" not in (job_info.aux or {}):
            super().print_job_error(job_info, msg, **more)

    def _finish(self, info: SubmittedJobInfo, verdict: Verdict) -> None:
        """Report the end of a job, and why it failed."""
        entry = self._alive.pop(info.aux["pbs"].entry.name).entry  # type: ignore[index]
        if verdict.held:
            with contextlib.suppress(AwayError):  # else before the next attempt
                self._pbs.call("qdel", entry.id or "")
            self._ledger.write(replace(entry, deleted=True))
        else:
            self._ledger.remove(entry.name)
        self._submitter.open_queue(entry.queue)
        if verdict.success:
            self.report_job_success(info)
            return
        words = verdict.words
        with contextlib.suppress(OSError):  # a log that PBS has not brought back
            if _CONFIG_FAULT in Path(entry.log).read_bytes():
                fail_for_good(info.job)
                words += ". No node can do it, and it is not tried again"
        msg = f"PBS job {entry.id} failed: {words}. Its log: {entry.log} . "
        if info.job.is_group():  # Snakemake prints no message of a group
            self.logger.error(msg)
        self.report_job_error(info, msg=msg, aux_logs=[entry.log])

    async def sleep(self) -> None:
        """Wait for the next turn."""
        await asyncio.sleep(_TURN)

    def cancel_jobs(self, active_jobs: list[SubmittedJobInfo]) -> None:  # noqa: ARG002 (the interface's signature)
        """Delete all jobs of this run, whatever the status thread was doing when Ctrl-C came."""
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
        names = dict.fromkeys([*self._waiting, *self._alive])  # a job moves from left to right
        if names:
            say(f"Deleting up to {len(names)} PBS jobs.")
        pause = min(5.0, self._interval)
        with self._turn:
            return delete_all(
                self._pbs, self._ledger, names, patience=_CANCEL_PATIENCE, pause=pause, say=say
            )

    def shutdown(self) -> None:
        """End the status thread; at a normal end no job is left."""
        atexit.unregister(self._delete_what_is_left)
        for reason, count in self._refused.items():
            if count > 1:
                self.logger.error(
                    f"{count - 1} more jobs are not submitted for the same reason: {reason}."
                )
        super().shutdown()  # type: ignore[no-untyped-call]
        if not self._cancelling:
            self._forget_ended()

    def _forget_ended(self) -> None:
        with contextlib.suppress(AwayError, OSError):
            self._submitter.forget_ended()


def _stop_reason(scheduler: Any) -> str:
    """Return why Snakemake takes no more jobs, "" while it does. It then waits for every job that
    it has handed out, also for those that were never submitted.
    """
    if getattr(scheduler, "_user_kill", None):
        return "Snakemake was told to stop"
    if getattr(scheduler, "_errors", False) and not getattr(scheduler, "keepgoing", True):
        return "Snakemake stops, since another job has failed"
    return ""
