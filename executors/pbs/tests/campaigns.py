"""Whole runs of Snakemake under random trouble: `python campaigns.py FIRST LAST` runs the seeds
FIRST..LAST.

Every campaign is one small workflow that is started again until it succeeds, while Snakemake is
killed or interrupted, the server goes down or hangs, jobs are deleted, nodes are lost, daemons
restart and history is purged. At its end all outputs have to be whole, no job may live on, and no
two jobs of one name may ever have lived at the same time.
"""

import os
import random
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from standin import Config, StandIn

JOBS = 6
SNAKEFILE = f"""
rule all:
    input: expand("out/{{i}}.txt", i=range({JOBS}))

rule one:
    output: "out/{{i}}.txt"
    params: seconds=lambda wildcards: int(wildcards.i) % 3
    resources: runtime=60, mem_mb=100
    shell: "echo begun >> {{output}}; sleep {{params.seconds}}; echo $PBS_JOBID >> {{output}}"
"""
SNAKEMAKE = [sys.executable, "-m", "snakemake"]
OPTIONS = shlex.split(
    "--executor pbs --jobs 50 --latency-wait 5 --rerun-incomplete --retries 3 "
    "--pbs-status-interval 1 --pbs-unknown-seconds 4 --pbs-command-timeout 3"
)
TROUBLE = "kill kill interrupt down hang delete node daemon purge none none"
CALM_AFTER = 6  # starts, so that every campaign ends
LONGEST = 400.0


def campaign(seed: int) -> str:
    """Run one; the verdict in a line."""
    dice = random.Random(seed)
    config = Config(speed=60, kill_delay=1, nodes=3, ncpus=2, history=dice.random() < 0.8)
    seen: Counter[str] = Counter()
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as name, StandIn(config) as pbs:
        folder = Path(name)
        (folder / "Snakefile").write_text(SNAKEFILE)
        os.environ["PATH"] = f"{pbs.bin}:{os.environ['PATH']}"
        code, starts = 1, 0
        while code != 0 and time.monotonic() - begun < LONGEST:
            starts += 1
            unlock = [*SNAKEMAKE, "--unlock"]
            subprocess.run(unlock, cwd=folder, capture_output=True, check=False)
            with (folder / f"run{starts}.log").open("w") as log:
                process = subprocess.Popen(
                    [*SNAKEMAKE, *OPTIONS], cwd=folder, stdout=log, stderr=log,
                    start_new_session=True,
                )  # fmt: skip
            while process.poll() is None and time.monotonic() - begun < LONGEST:
                time.sleep(dice.uniform(0.5, 5))
                if starts <= CALM_AFTER and process.poll() is None:
                    kind = dice.choice(TROUBLE.split())
                    seen[kind] += 1
                    trouble(kind, pbs, process, dice)
            process.kill()
            code = process.wait()
        faults = problems(pbs, folder, code)
    seconds = time.monotonic() - begun
    told = ", ".join(f"{kind} {count}" for kind, count in sorted(seen.items()))
    verdict = "; ".join(faults) or "ok"
    return f"{seed}: {verdict} ({starts} starts, {len(pbs.jobs)} jobs, {seconds:.0f} s; {told})"


def trouble(kind: str, pbs: StandIn, process: subprocess.Popen[bytes], dice: random.Random) -> None:
    """Make something go wrong."""
    live = [job for job in pbs.jobs.values() if job.state != "F"]
    running = [job for job in live if job.state == "R"]
    ended = [job for job in pbs.jobs.values() if job.state == "F"]
    if kind == "kill":
        process.kill()
    elif kind == "interrupt":
        os.killpg(process.pid, signal.SIGINT)
    elif kind in {"down", "hang"}:
        stop, go = (pbs.down, pbs.up) if kind == "down" else (pbs.hang, pbs.resume)
        stop()
        time.sleep(dice.uniform(0.5, 5))
        go()
    elif kind == "delete" and live:
        with pbs.lock:
            pbs.delete(dice.choice(live))
    elif kind == "node":
        node = dice.randrange(pbs.config.nodes)
        pbs.fail_node(node)
        time.sleep(1)
        pbs.down_nodes.discard(node)
    elif kind == "daemon" and running:
        pbs.restart_mom(dice.choice(running).number)
    elif kind == "purge" and ended:
        pbs.purge(dice.choice(ended).number)


def problems(pbs: StandIn, folder: Path, code: int) -> list[str]:
    """What is wrong at the end."""
    wrong = [] if code == 0 else [f"Snakemake ended with {code}"]
    for index in range(JOBS):
        path = folder / "out" / f"{index}.txt"
        lines = path.read_text().splitlines() if path.exists() else []
        if len(lines) != 2 or lines[0] != "begun" or not lines[1].endswith(".pbs01"):
            wrong.append(f"output {index} is {lines}")
    wrong += [f"{job.id} lives on" for job in pbs.jobs.values() if job.state != "F"]
    last: dict[str, float] = {}
    for job in sorted(pbs.jobs.values(), key=lambda job: job.number):
        if job.submitted < last.get(job.name, 0.0):
            wrong.append(f"{job.id} ({job.name}) was submitted beside a living one")
        last[job.name] = job.ended or time.time()
    return wrong


if __name__ == "__main__":
    # in the background it is ignored, and that is inherited
    signal.signal(signal.SIGINT, signal.default_int_handler)
    first, final = map(int, sys.argv[1:])
    for number in range(first, final + 1):
        print(campaign(number), flush=True)
