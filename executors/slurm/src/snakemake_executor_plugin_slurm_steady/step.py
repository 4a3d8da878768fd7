"""The step in which a job's Snakemake runs: it starts below srun at once, tells its rule of an end
that SLURM announces, and ends with its step.

The plain plugin starts Snakemake twice in each job, the first time only to call srun.
"""

import os
import subprocess
from contextlib import suppress
from pathlib import Path

import snakemake_executor_plugin_slurm_jobstep as jobstep
from snakemake_interface_executor_plugins.jobs import JobExecutorInterface

from .announced_end import pass_on_sigterm

SECONDS_TO_END = 20
"""Within which a job is over whose slurmstepd has ended in order, or that SLURM has ended."""
TRIES = 60
"""To have SLURM end a job: its controller may be away just then. Ten seconds apart."""
MARK = "SNAKEMAKE_SLURM_STEADY_STEP"
"""In the environment of a job's Snakemake, and of no other."""
SETTINGS = ("get_cpu_setting", "get_gpu_setting", "get_node_setting")
"""Functions of the plain plugin's job step that are asked for srun's options."""

_DEFAULTS = (
    "CPUS_PER_GPU CPUS_PER_TASK CPU_BIND DISTRIBUTION EXPORT_ENV GPU_BIND GPU_FREQ GPUS "
    "GPUS_PER_NODE GPUS_PER_SOCKET GPUS_PER_TASK GRES HINT MEM_BIND MEM_PER_CPU MEM_PER_GPU "
    "MEM_PER_NODE NNODES NPROCS NTASKS NTASKS_PER_CORE NTASKS_PER_GPU NTASKS_PER_NODE "
    "NTASKS_PER_SOCKET OVERCOMMIT PROFILE THREADS_PER_CORE TRES_PER_TASK"
)
"""Of SLURM_*: what sbatch says of the job and srun would take for options of its step; some of
them exclude each other."""
_END = """end() {{
    sleep {pause}
    for _ in $(seq {tries}); do
        if found=$(scontrol -o show job {job}); then
            case "$found" in *" JobState=RUNNING "*) ;; *) exit;; esac
            case "$found" in *" Restarts={restarts} "*) ;; *) exit;; esac
            scancel {job} && exit
        fi
        sleep 10
    done
}}
"""
_guards: list["subprocess.Popen[bytes]"] = []


def possible() -> bool:
    """Whether the job step that is installed can be asked for srun's options."""
    return all(hasattr(jobstep, name) for name in SETTINGS)


def srun(job: JobExecutorInterface) -> str:
    """The srun that starts a job's Snakemake, with the options that its own job step gives it."""
    options = (
        jobstep.get_cpu_setting(job, gpu=bool(job.resources.get("gpu"))),
        jobstep.get_gpu_setting(job),
        jobstep.get_node_setting(job),
    )
    unset = " ".join(f"-u SLURM_{name}" for name in _DEFAULTS.split())
    return (
        f"env {unset} -u SRUN_CPUS_PER_TASK -u SRUN_EXPORT_ENV {MARK}=1 "
        f"srun -n1 --cpu-bind=q {' '.join(filter(None, options))}"
    )


def end_with_step() -> None:
    """Nothing but in a job that `srun` has started; there the rule is told of its end, and the job
    ends when its step has died.

    Should its slurmstepd die (kill -9), srun would wait for its word until the time limit, with
    the GPU. So a shell waits for this process to end, and has SLURM end the job when there is no
    slurmstepd then.

    The batch script has one of its own: without it nobody tells SLURM that the script has ended.
    Where neither it nor the one of the step can be seen by name, it is left out.

    When SLURM itself ends a job, to run it again under the same number (preemption, a failed node,
    requeue), all of them die together. So it is asked after a pause what it says of the job.
    """
    if not os.environ.pop(MARK, ""):
        return
    pass_on_sigterm()
    parent = os.getppid()
    with suppress(OSError, KeyError):
        # 1: who started this process died before it could be seen here
        if parent == 1 or Path(f"/proc/{parent}/comm").read_text() == "slurmstepd\n":
            job, null = os.environ["SLURM_JOB_ID"], subprocess.DEVNULL
            look = "grep -qsa '^slurmstepd: \\[{}{}' /proc/[0-9]*/cmdline".format
            batch, any_step = look(job, r"\.batch\]"), look(job, r"\.")
            seen = subprocess.run(["/bin/sh", "-c", any_step], stdin=null, check=False)
            first_node = os.environ.get("SLURM_NODEID", "0") == "0"
            watched = first_node and seen.returncode == 0
            alive = "false" if parent == 1 else f"[ -d /proc/{parent} ]"
            script = _END.format(
                job=job,
                tries=TRIES,
                pause=SECONDS_TO_END,
                restarts=os.environ.get("SLURM_RESTART_COUNT", "0"),
            )
            script += "read _; " + (f"{batch} || end; " if watched else "") + f"{alive} || end"
            guard = subprocess.Popen(
                ["/bin/sh", "-c", script],
                stdin=subprocess.PIPE,
                stdout=null,
                stderr=null,
                start_new_session=True,
            )
            _guards.append(guard)  # its standard input closes only when this process ends
