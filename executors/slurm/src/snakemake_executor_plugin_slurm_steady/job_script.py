"""The script of a SLURM job: Snakemake, and a shell that looks after it.

It starts Snakemake once, in the batch script itself. The plain plugin starts a second one below
srun; SLURM then accounts for what happens (out of memory, an exit status) to that step alone.
"""

SECONDS_BETWEEN_TRIES, TRIES = 10, 60
"""To have SLURM end a job whose slurmstepd is gone; the controller may be away just then."""

END = "slurm-steady: exit status "
"""Last line of a job's log; the first one, of a job that is run again, comes after it."""

# SIGTERM: with proctrack/cgroup SLURM announces the end of a job to this shell alone. Elsewhere it
# tells all processes, and the rule is told twice.
# slurmstepd: without it (kill -9) nobody tells SLURM that the script has ended, and the job would
# keep its GPUs until its time is up. Where /proc does not show it, or where it dies before or after
# this shell, the executor notices by the last line.
# SIGHUP: the kernel sends it to all processes when slurmstepd ends while one of them is stopped
# (scontrol suspend); a zombie's name may then still be in /proc.
_SCRIPT = """\
echo "{begin}$SLURM_JOB_ID on $SLURMD_NODENAME"
told= gone=
trap gone=1 HUP
trap 'told=1; trap "" TERM; kill -TERM 0' TERM
stepd() {{ [ "$(cat /proc/$PPID/comm 2>/dev/null)" = slurmstepd ]; }}
stepd && watched=1 || watched=
{{ trap : TERM; {command}
}} &
wait $!
status=$?
if [ "$told" ] && [ $status -gt 128 ]; then
    wait $!
    status=$?
fi
if [ "$gone" ] || {{ [ "$watched" ] && ! stepd; }}; then
    for _ in $(seq {tries}); do
        scancel "$SLURM_JOB_ID" && break
        sleep {pause}
    done
fi
echo "{end}$status"
exit $status"""


def job_script(command: str) -> str:
    """Return what follows `#!/bin/sh` in the script that runs a command of one line."""
    return _SCRIPT.format(
        command=command,
        tries=TRIES,
        pause=SECONDS_BETWEEN_TRIES,
        begin="slurm-steady: job ",
        end=END,
    )
