"""A stand-in for SLURM's commands: shell scripts on PATH that run jobs on this machine at once.

No cluster and no scheduling: whole campaigns go through a real SLURM elsewhere. Each call is a
line of `calls`. Jobs run on node n1, or on n2 where that is excluded.
"""

import os
import shlex
from pathlib import Path

SBATCH = """\
if [ -e refuse ]; then cat refuse >&2; exit 1; fi
if [ -e limit ] && [ $(cat jobs/* 2>/dev/null | grep -c ING) -ge $(cat limit) ]; then
  echo 'sbatch: error: QOSMaxSubmitJobPerUserLimit' >&2; exit 1
fi
SLURMD_NODENAME=n1
while [ $# -gt 0 ]; do
  case "$1" in
    --output) out=$2;;
    --job-name) name=$2;;
    --exclude=*n1*) SLURMD_NODENAME=n2;;
  esac
  shift
done
SLURM_JOB_ID=$(ls jobs | wc -l)
out=$(echo "$out" | sed "s/%j/$SLURM_JOB_ID/")
echo "$name" > names/$SLURM_JOB_ID
cat > scripts/$SLURM_JOB_ID
state() {
  echo "$1|$SLURMD_NODENAME|${2:-None}" > "$HERE/new.$SLURM_JOB_ID"
  mv "$HERE/new.$SLURM_JOB_ID" "$HERE/jobs/$SLURM_JOB_ID"
}
if [ -e lost ]; then
  rm lost; state PENDING Priority; echo 'sbatch: error: Socket timed out' >&2; exit 1
fi
if [ -e waits ]; then state PENDING "$(cat waits)"; echo $SLURM_JOB_ID; exit; fi
state RUNNING
if [ -e silent.$SLURM_JOB_ID ]; then echo $SLURM_JOB_ID; exit; fi
export SLURM_JOB_ID SLURMD_NODENAME
( cd "$RUNS"; setsid sh "$HERE/scripts/$SLURM_JOB_ID" > "$out" 2>&1
  s=$?; [ ! -e "$HERE/unnoticed" ] || exit; grep -q RUNNING "$HERE/jobs/$SLURM_JOB_ID" || exit 0
  if [ $s = 0 ]; then state COMPLETED; else state FAILED; fi
) > /dev/null 2>&1 < /dev/null &
echo $SLURM_JOB_ID"""
SQUEUE = """\
for job in jobs/*; do
  [ -e "$job" ] || continue
  case "$*" in
    *%P*) echo '4:00:00 gpu'; break;;
    *%j*) grep -q ING $job && echo "${job#jobs/}| $(cat names/${job#jobs/})";;
    *) echo "${job#jobs/}|$(cat $job)";;
  esac
done
true"""
SCANCEL = """\
if [ -e keep ]; then cat keep >&2; exit 1; fi
for job; do [ ! -e "jobs/$job" ] || echo "CANCELLED||None" > jobs/$job; done"""
COMMANDS = {
    "sbatch": SBATCH,
    "squeue": SQUEUE,
    "scancel": SCANCEL,
    "scontrol": "echo 'BatchStartTimeout       = 1 sec'",
    "sinfo": 'case "$*" in *%l*) echo 2:00:00;; esac',
    "sacct": "exit 1",
    "sacctmgr": "exit 1",
}


def script(path: Path, *lines: str) -> None:
    """Write a shell script that can be run."""
    path.write_text("\n".join(["#!/bin/sh", *lines, ""]))
    path.chmod(0o755)


class StandIn:
    """The commands in a folder, and their calls."""

    def __init__(self, folder: Path, runs: Path) -> None:
        """Jobs run in the folder `runs`."""
        self.folder, self.bin = folder, folder / "bin"
        for name in ("bin", "jobs", "names", "scripts"):
            (folder / name).mkdir(parents=True)
        keep = f"HERE={shlex.quote(str(folder))} RUNS={shlex.quote(str(runs))}; export HERE RUNS"
        for name, lines in COMMANDS.items():
            log = f'echo "{name} $*" >> calls'
            script(self.bin / name, keep, 'cd "$HERE"', log, lines)
        self.environment = {**os.environ, "PATH": f"{self.bin}:{os.environ['PATH']}"}

    def calls(self, command: str) -> list[str]:
        """Return the calls of a command, in order."""
        log = self.folder / "calls"
        lines = log.read_text().splitlines() if log.exists() else []
        return [line for line in lines if line.split(" ", 1)[0] == command]

    def names(self) -> list[str]:
        """Return the names of the jobs, in the order of their submission."""
        return [path.read_text().strip() for path in sorted((self.folder / "names").iterdir())]
