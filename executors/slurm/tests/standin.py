"""A stand-in for SLURM's commands: shell scripts on PATH that run jobs on this machine at once.

No cluster and no scheduling: whole campaigns go through a real SLURM elsewhere. What it was asked
lies in `asked`, one call a line.
"""

import os
import shlex
from pathlib import Path

SBATCH = """\
if [ -e refuse ]; then cat refuse >&2; exit 1; fi
for word; do
  case "$word" in --wrap=*) command=${word#--wrap=};; --output=*) out=${word#--output=};; esac
done
id=$(ls jobs | wc -l); id=$((id + 1))
if [ -e busy ]; then echo PENDING > jobs/$id; echo $id; exit; fi
echo RUNNING > jobs/$id
( cd "$RUNS"; SLURM_JOB_ID=$id setsid sh -c "$command" > "$HERE/out.$id" 2>&1
  s=$?; grep -q RUNNING "$HERE/jobs/$id" || exit 0
  if [ $s = 0 ]; then echo COMPLETED; else echo FAILED; fi > "$HERE/jobs/$id"
) > /dev/null 2>&1 < /dev/null &
echo $id"""
SRUN = 'cd "$RUNS"; while case "$1" in -*) true;; *) false;; esac; do shift; done; exec "$@"'
SQUEUE = 'for job in jobs/*; do [ -e "$job" ] && echo "${job#jobs/}|$(cat $job)"; done; true'
SCANCEL = "for job in jobs/*; do grep -q ING $job && echo CANCELLED > $job; done; true"
SCONTROL = 'case $1 in ping) echo "Slurmctld is UP";; *) echo "MinJobAge = 300";; esac'
COMMANDS = {
    "sbatch": SBATCH,
    "srun": SRUN,
    "squeue": SQUEUE,
    "scancel": SCANCEL,
    "scontrol": SCONTROL,
    "sinfo": "true",
    "sacct": "exit 1",
    "sacctmgr": "exit 1",
    "sshare": "exit 1",
}


def script(path: Path, *lines: str) -> None:
    """Write a shell script that can be run."""
    path.write_text("\n".join(["#!/bin/sh", *lines, ""]))
    path.chmod(0o755)


class StandIn:
    """The commands in a folder, and what they were asked."""

    def __init__(self, folder: Path, runs: Path) -> None:
        """Jobs run in the folder `runs`."""
        self.folder, self.bin = folder, folder / "bin"
        self.bin.mkdir(parents=True)
        (folder / "jobs").mkdir()
        keep = f"HERE={shlex.quote(str(folder))} RUNS={shlex.quote(str(runs))}; export HERE RUNS"
        for name, lines in COMMANDS.items():
            ask = f'echo "{name} $*" >> asked'
            script(self.bin / name, keep, 'cd "$HERE"', ask, lines)
        self.environment = {**os.environ, "PATH": f"{self.bin}:{os.environ['PATH']}"}

    def asked(self, command: str) -> list[str]:
        """The calls of a command, in order."""
        asked = self.folder / "asked"
        lines = asked.read_text().splitlines() if asked.exists() else []
        return [line for line in lines if line.split(" ", 1)[0] == command]
