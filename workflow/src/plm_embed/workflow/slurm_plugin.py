"""What snakemake-executor-plugin-slurm 2.8.0 is told, in the process that submits and watches, so that it never waits
for a job that is gone and never gives up because SLURM does not answer for a while.

By itself it waits for ever for jobs that were preempted and not put back into the queue, whose node failed while
requeueing is on, and that squeue has forgotten; it loses sight of all jobs when SLURM stays silent; it counts
submissions that SLURM did not answer as failed jobs; it looks after 40 s at the earliest; each of its jobs starts
Snakemake twice, the first time only to call srun; and its shell takes `$` in paths for the sign of a variable.

Why a job failed goes to `retries`, in `aux`.
"""

import os
import re
import shlex
import subprocess
import threading
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from functools import wraps
from logging import Logger
from pathlib import Path
from typing import Any

from plm_embed.workflow.slurm_states import SHORTEST_INTERVAL, States

SECONDS_WITHOUT_CONTROLLER = 600.0
"""A submission waits this long for a controller that does not answer."""
SECONDS_TO_END = 20
"""Within which a job is over whose slurmstepd has ended in order."""
_guards: list["subprocess.Popen[bytes]"] = []
FOR_GOOD = re.compile(
    "invalid|not available|unrecognized|not permitted|not allowed|can not be satisfied", re.IGNORECASE
)
"""In what sbatch or the plugin says of a request: the same one will be refused again."""

_STEP_DEFAULTS = (
    "CPUS_PER_GPU CPUS_PER_TASK CPU_BIND DISTRIBUTION EXPORT_ENV GPU_BIND GPU_FREQ GPUS GPUS_PER_NODE GPUS_PER_SOCKET "
    "GPUS_PER_TASK GRES HINT MEM_BIND MEM_PER_CPU MEM_PER_GPU MEM_PER_NODE NNODES NPROCS NTASKS NTASKS_PER_CORE "
    "NTASKS_PER_GPU NTASKS_PER_NODE NTASKS_PER_SOCKET OVERCOMMIT PROFILE THREADS_PER_CORE TRES_PER_TASK"
)
"""Of SLURM_*: what sbatch says of the job and srun would take for options of its step; some exclude each other."""


class Controller:
    """Whether slurmctld answers, asked before each submission."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def wait(self, logger: Logger) -> None:
        """Return when it answers, or after SECONDS_WITHOUT_CONTROLLER: then sbatch says what is wrong."""
        with self._lock:
            began = time.monotonic()
            while not _answers() and time.monotonic() - began < SECONDS_WITHOUT_CONTROLLER:
                logger.warning("SLURM does not answer (scontrol ping); waiting to submit.")
                time.sleep(SHORTEST_INTERVAL)


def _answers() -> bool:
    try:
        said = subprocess.run(["scontrol", "ping"], capture_output=True, text=True, check=False, timeout=60)
    except subprocess.TimeoutExpired:
        return False
    except OSError:
        return True  # no scontrol here: nobody to ask
    return " is UP" in said.stdout


def step(jobstep: Any, job: Any) -> str:
    """The srun that starts a job's Snakemake on its node, with the options that the plugin `jobstep` gives it."""
    options = (
        jobstep.get_cpu_setting(job, gpu=bool(job.resources.get("gpu"))),
        jobstep.get_gpu_setting(job),
        jobstep.get_node_setting(job),
    )
    unset = " ".join(f"-u SLURM_{name}" for name in _STEP_DEFAULTS.split())
    return (
        f"env {unset} -u SRUN_CPUS_PER_TASK -u SRUN_EXPORT_ENV srun -n1 --cpu-bind=q {' '.join(filter(None, options))}"
    )


def end_with_step() -> None:
    """Called in a job: should its slurmstepd die (kill -9), srun would wait for its word until the time limit, with the
    GPU. So a shell waits for this process to end, and has SLURM end the job when there is no slurmstepd then."""
    parent = Path(f"/proc/{os.getppid()}")
    with suppress(OSError):
        if (parent / "comm").read_text() == "slurmstepd\n":
            script = f"read _; [ -d {parent} ] || {{ sleep {SECONDS_TO_END}; scancel {os.environ['SLURM_JOB_ID']}; }}"
            null = subprocess.DEVNULL
            guard = subprocess.Popen(
                ["/bin/sh", "-c", script], stdin=subprocess.PIPE, stdout=null, stderr=null, start_new_session=True
            )
            _guards.append(guard)  # which lets go of its standard input only when this process ends


def mend(plugin: Any, jobstep: Any) -> None:
    """Put the corrections into the plugin's module; nothing happens without one, or with one of another build."""
    names = ("query_job_status", "validate_account", "Executor")
    if not all(hasattr(plugin, name) for name in names) or hasattr(plugin.validate_account, "__wrapped__"):
        return
    states, controller, executor = States(plugin.query_job_status), Controller(), plugin.Executor
    look, submit, validate = executor.check_active_jobs, executor.run_job, plugin.validate_account
    arguments, python = executor.additional_general_args, executor.get_python_executable
    command, report = executor.format_job_exec, executor.report_job_error
    refusals: set[str] = set()
    can_step = all(hasattr(jobstep, f"get_{name}_setting") for name in ("cpu", "gpu", "node"))
    # .job: the one that this thread submits. Those of an array, and scripts, need the plugin's own job step.
    alone = threading.local()

    @wraps(look)
    async def check_active_jobs(self: Any, active_jobs: list[Any]) -> AsyncIterator[Any]:
        states.await_(job.external_jobid for job in active_jobs)
        left = 0
        async for job in look(self, active_jobs):
            left += 1
            yield job
        self.next_seconds_between_status_checks = states.interval(left)

    @wraps(submit)
    def run_job(self: Any, job: Any) -> None:
        controller.wait(self.logger)
        script = self.workflow.executor_settings.pass_command_as_script
        alone.job = job if can_step and not script and not job.resources.get("mpi") else None
        try:
            submit(self, job)
        finally:
            alone.job = None

    @wraps(arguments)
    def additional_general_args(self: Any) -> Any:
        return "" if getattr(alone, "job", None) else arguments(self)

    @wraps(python)
    def get_python_executable(self: Any) -> str:
        job, words = getattr(alone, "job", None), shlex.quote(str(python(self)))
        return f"{step(jobstep, job)} {words}" if job else words

    @wraps(command)
    def format_job_exec(self: Any, job: Any) -> str:
        """The plugin puts it between double quotes, where these characters mean something."""
        words = command(self, job)
        return re.sub(r"[\\$`]", r"\\\g<0>", words) if getattr(alone, "job", None) else words

    @wraps(report)
    def report_job_error(self: Any, info: Any, msg: str = "", **more: Any) -> None:
        why = states.why.pop(info.external_jobid, {})
        words = msg.partition("\n    sbatch call:")[0]
        if info.external_jobid is None and FOR_GOOD.search(words):
            why = {"cause": "refused"}
            msg = "SLURM refuses it for the same reason. " if words in refusals else msg
            refusals.add(words)
        info.aux = (info.aux or {}) | why
        report(self, info, msg, **more)

    @wraps(validate)
    def validate_account(account: str, logger: Logger) -> Any:
        """Accounting that is silent or not there is no reason to refuse an account: sbatch will judge it."""
        try:
            return validate(account, logger)
        except Exception as error:
            if "appears to be invalid" in str(error):
                raise
            return account

    executor.check_active_jobs, executor.run_job = check_active_jobs, run_job
    executor.additional_general_args, executor.get_python_executable = additional_general_args, get_python_executable
    executor.format_job_exec, executor.report_job_error = format_job_exec, report_job_error
    plugin.query_job_status, plugin.validate_account = states.query, validate_account
