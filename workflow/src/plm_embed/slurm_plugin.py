"""What snakemake-executor-plugin-slurm 2.8.0 is told, in the process that submits and watches, so that it never waits
for a job that is gone and never gives up because SLURM does not answer for a while.

By itself it waits for ever for jobs that were preempted and not put back into the queue, whose node failed while
requeueing is on, and that squeue has forgotten; it loses sight of all jobs when SLURM stays silent; it counts
submissions that SLURM did not answer as failed jobs; it looks after 40 s at the earliest; and each of its jobs starts
Snakemake twice, the first time only to call srun.
"""

import asyncio
import re
import subprocess
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import suppress
from functools import wraps
from logging import Logger
from typing import Any

SECONDS_TO_COME_BACK = 30.0
"""A job that is preempted, lost its node or is unknown to squeue may be back in the queue after this."""
LIMBO = {"PREEMPTED", "NODE_FAIL", "REVOKED"}
SHORTEST_INTERVAL, LONGEST_INTERVAL = 2.0, 60.0
"""Seconds between two looks. Well below the MinJobAge of 120 s from which on the plugin relies on squeue."""
INTERVAL_PER_AGE = 0.25
"""Time between two looks by the time since a job was submitted or started: an end is seen at most so much later."""
SECONDS_WITHOUT_CONTROLLER = 600.0
"""A submission waits this long for a controller that does not answer."""

REMEDIES = {
    "OUT_OF_MEMORY": "out of main memory. The next attempt asks for more; --set-resources embed:mem_mb=... for all",
    "TIMEOUT": "its time was up. The next attempt asks for more and computes only the rest",
    "CANCELLED": "somebody cancelled it (scancel, or the site)",
    "PREEMPTED": "preempted and not put back into the queue",
    "NODE_FAIL": "its node failed, and it was not put back into the queue",
    "REVOKED": "SLURM took it away",
    "UNKNOWN": "SLURM has forgotten it; its output says how it ended",
}

NEVER = re.compile("PartitionTimeLimit|PerJob|BadConstraints|Invalid|NotAllowed")
HELD = re.compile("JobHe|JobHold|held", re.IGNORECASE)
"""Reasons to wait, by squeue, that do not pass with time."""

_STEP_DEFAULTS = (
    "CPUS_PER_GPU CPUS_PER_TASK CPU_BIND DISTRIBUTION EXPORT_ENV GPU_BIND GPU_FREQ GPUS GPUS_PER_NODE GPUS_PER_SOCKET "
    "GPUS_PER_TASK GRES HINT MEM_BIND MEM_PER_CPU MEM_PER_GPU MEM_PER_NODE NNODES NPROCS NTASKS NTASKS_PER_CORE "
    "NTASKS_PER_GPU NTASKS_PER_NODE NTASKS_PER_SOCKET OVERCOMMIT PROFILE THREADS_PER_CORE TRES_PER_TASK"
)
"""Of SLURM_*: what sbatch says of the job and srun would take for options of its step; some exclude each other."""

Answer = tuple[dict[str, str] | None, float | None]
Ask = Callable[[str, Logger], Awaitable[Answer]]


class States:
    """The states of the jobs that the plugin waits for, as it should take them."""

    def __init__(self, ask: Ask) -> None:
        """`ask` runs squeue or sacct; its answer is None when there was none."""
        self._ask = ask
        self._active: dict[str, tuple[str, float]] = {}
        """Jobs that are waited for: their state, and since when."""
        self._silent: float | None = None
        self._asked_why = time.monotonic()
        self._told: set[str] = set()

    def await_(self, jobs: Iterable[str]) -> None:
        now = time.monotonic()
        self._active = {job: self._active.get(job, ("", now)) for job in jobs}

    def interval(self, left: int) -> float:
        """Seconds until the next look, when `left` of the jobs have not ended. Short when something is new."""
        if left < len(self._active):
            return SHORTEST_INTERVAL
        latest = max((since for _, since in self._active.values()), default=time.monotonic())
        return min(max(INTERVAL_PER_AGE * (time.monotonic() - latest), SHORTEST_INTERVAL), LONGEST_INTERVAL)

    async def query(self, command: str, logger: Logger) -> tuple[dict[str, str], float]:
        """States by job. No answer is an empty one, so that all jobs are looked at again later."""
        states, seconds = await self._ask(command, logger)
        if states is None:
            if self._silent is None:
                logger.warning(
                    f"SLURM does not answer ({command.split(maxsplit=1)[0]}). The campaign waits; its jobs go on."
                )
            self._silent = self._silent or time.monotonic()
            return {}, 0.0
        if self._silent is not None:
            logger.warning(f"SLURM answers again, after {time.monotonic() - self._silent:.0f} s.")
            self._silent = None
        # sacct says "CANCELLED by 1234"
        found = {job: words.split()[0].rstrip("+") if words.split() else "" for job, words in states.items()}
        for job in self._active:
            found[job] = await self._settled(job, _state_of(job, found))
            if found[job] in REMEDIES:
                logger.warning(f"SLURM job {job}: {REMEDIES[found[job]]}.")
            if found[job] in LIMBO:
                found[job] = "FAILED"
        waiting = [job for job in self._active if found[job] == "PENDING"]
        if waiting and time.monotonic() - self._asked_why > SECONDS_TO_COME_BACK:
            self._asked_why = time.monotonic()
            await self._say_why(waiting, logger)
        return found, seconds or 0.0

    async def _say_why(self, jobs: list[str], logger: Logger) -> None:
        """Name, once each, the reasons for which jobs would wait for ever: SLURM takes such jobs, and says nothing."""
        for line in (await _said("squeue", "--noheader", "--format=%r|%i|%k", f"--jobs={','.join(jobs)}")).splitlines():
            reason, job, rule = f"{line}||".split("|")[:3]
            if reason in self._told:
                continue
            if HELD.search(reason):
                logger.warning(f"SLURM job {job}, {rule} is held: {reason}. To let it go on: scontrol release {job}")
            elif NEVER.search(reason):
                logger.warning(
                    f"SLURM job {job}, {rule} will wait for ever: {reason}. Ctrl-C, ask for what the partition and "
                    "your account allow (runtime, mem_mb, slurm_partition: at the top of the profile, or "
                    "--set-resources RULE:runtime=MINUTES), and start again."
                )
            else:
                continue
            self._told.add(reason)

    async def _settled(self, job: str, state: str) -> str:
        """The state itself, or PENDING as long as SLURM may put the job back into the queue."""
        before, since = self._active[job]
        if state != before:
            since = time.monotonic()
            self._active[job] = state, since
        if state and state not in LIMBO:
            return state
        if time.monotonic() - since < SECONDS_TO_COME_BACK:
            return "PENDING"
        # The plugin takes UNKNOWN for an end, and Snakemake then looks for the job's output.
        return state or await _asked_by_number(job) or "UNKNOWN"


def _state_of(job: str, states: dict[str, str]) -> str:
    """The state of a job, or of the array that holds it; "" if there is none. Waiting tasks are listed as 12_[3-9]."""
    parent = job.split("_", maxsplit=1)[0]
    waiting = any(other.startswith(f"{parent}_[") for other in states)
    return states.get(job) or states.get(parent) or ("PENDING" if waiting and "_" in job else "")


async def _asked_by_number(job: str) -> str:
    """What squeue, or else accounting, knows of a job that the look at all jobs did not find."""
    squeue = ("squeue", "--noheader", "--states=all", "--format=%T", f"--jobs={job}")
    sacct = ("sacct", "--allocations", "--noheader", "--parsable2", "--format=State", f"--jobs={job}")
    for command in (squeue, sacct):
        words = (await _said(*command)).split()
        if words:
            return words[0].rstrip("+")
    return ""


async def _said(*command: str) -> str:
    """What a command of SLURM printed; nothing when it is not here or does not answer within a minute."""
    with suppress(OSError, TimeoutError):
        process = await asyncio.create_subprocess_exec(
            *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
        )
        return (await asyncio.wait_for(process.communicate(), timeout=60))[0].decode()
    return ""


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


def mend(plugin: Any, jobstep: Any) -> None:
    """Put the corrections into the plugin's module; nothing happens without one, or with one of another build."""
    names = ("query_job_status", "validate_account", "Executor")
    if not all(hasattr(plugin, name) for name in names) or hasattr(plugin.validate_account, "__wrapped__"):
        return
    states, controller, executor = States(plugin.query_job_status), Controller(), plugin.Executor
    look, submit, validate = executor.check_active_jobs, executor.run_job, plugin.validate_account
    arguments, python = executor.additional_general_args, executor.get_python_executable
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
        job, words = getattr(alone, "job", None), str(python(self))
        return f"{step(jobstep, job)} {words}" if job else words

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
    plugin.query_job_status, plugin.validate_account = states.query, validate_account
