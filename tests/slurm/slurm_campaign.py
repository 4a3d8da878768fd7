"""A campaign of the shipped workflow through the shipped SLURM profile, on the test cluster."""

import contextlib
import os
import re
import signal
import time
from pathlib import Path
from typing import Any

import h5py
import psutil
from daemons import GPU_NODES
from processes import command_line, descendants
from snakemake_run import MODEL, SnakemakeRun

MASTER = f"results/{MODEL}/master_esm2_embeddings.h5"
GATHERED = f"results/{MODEL}/records.parquet"


class Campaign(SnakemakeRun):
    """A campaign at work: its jobs and processes, its parts, and what comes of them."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._stopped: set[int] = set()

    def job_of(self, submission: int) -> tuple[str, str]:
        """Return (job, node) of the running job of a submission, or ("", "")."""
        lines = self.cluster.run(
            "squeue", "--noheader", "--states=R", "--format=%k|%i|%N"
        ).splitlines()
        for comment, job, node in (line.split("|") for line in lines):
            if comment == f"rule_embed_wildcards_{MODEL}_{submission:04d}":
                return job, node
        return "", ""

    def processes(self, submission: int) -> list[int]:
        """Return the process that the rule starts for a submission, and those below it: one worker
        for each GPU.
        """
        for process in (process for node in GPU_NODES for process in self.cluster.processes(node)):
            words = command_line(process)
            if (
                words[1:4] == ["-m", "plm_embed", "embed"]
                and f"results/{MODEL}/embedded/{submission:04d}.json" in words
            ):
                return [process, *descendants(process)]
        return []

    def script_of(self, submission: int) -> psutil.Process:
        """Return the shell that runs a submission's batch script; its parent is slurmstepd."""
        return next(
            process
            for process in psutil.Process(self.processes(submission)[0]).parents()
            if process.parent().name() == "slurmstepd"
        )

    def workers(self, submission: int) -> list[int]:
        """Return those of a submission's processes that compute."""
        return [
            process
            for process in self.processes(submission)
            if any("spawn_main" in w for w in command_line(process))
        ]

    def gpus_of(self, submission: int) -> tuple[str, str]:
        """Return (node, CUDA_VISIBLE_DEVICES) of a submission."""
        words = Path(f"/proc/{self.processes(submission)[0]}/environ").read_text().split("\0")
        environment = dict(word.split("=", 1) for word in words if word)
        return environment["SLURMD_NODENAME"], environment["CUDA_VISIBLE_DEVICES"]

    def parts(self, bucket: int | None = None) -> list[Path]:
        """Return the published parts, of one bucket or of all."""
        parts = list((self.folder / "results" / MODEL / "store").glob("*/parts/[0-9a-f]*.h5"))
        return (
            parts if bucket is None else [part for part in parts if self._bucket_of(part) == bucket]
        )

    def _bucket_of(self, part: Path) -> int:
        return int(part.name[:8], 16) * self.buckets >> 32

    def unsecured(self, bucket: int) -> float:
        """Seconds of computing that a kill would take from a bucket now: since its job or its last
        part.
        """
        log = self.folder / "results" / "logs" / MODEL / "embed" / f"{bucket:04d}.log"
        text = log.read_text() if log.exists() else ""
        loaded = re.search(r"^(\d\d):(\d\d):(\d\d) model loaded", text, re.MULTILINE)
        if loaded is None:
            return 0.0
        now = time.time()
        today = (*time.localtime(now)[:3], *map(int, loaded.groups()), 0, 0, -1)
        began = now - (now - time.mktime(today)) % 86400
        return now - max([began, *(part.stat().st_mtime for part in self.parts(bucket))])

    def wait_for_parts(self, *buckets: int) -> None:
        """Return when each of these buckets has a part more than now."""
        before = {bucket: len(self.parts(bucket)) for bucket in buckets}

        def more() -> bool:
            assert self._process is None or self._process.poll() is None, self.words()
            return all(len(self.parts(bucket)) > count for bucket, count in before.items())

        self.cluster.wait_for(f"parts of buckets {buckets}", more, timeout=600)

    def hold(self, *buckets: int) -> None:
        """Stop each of these buckets' jobs as soon as it has published a part itself, so that it
        cannot end yet. A process that was stopped before is that of the job before.

        SLURM wakes what it signals, and so does SIGKILL.
        """
        open_buckets = set(buckets)

        def held() -> bool:
            assert self._process is None or self._process.poll() is None, self.words()
            for bucket in list(open_buckets):
                processes = self.processes(bucket)
                if not processes or processes[0] in self._stopped:
                    continue
                with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
                    began = psutil.Process(processes[0]).create_time()
                    if any(part.stat().st_mtime > began for part in self.parts(bucket)):
                        for process in processes:
                            os.kill(process, signal.SIGSTOP)
                        self._stopped.add(processes[0])
                        open_buckets.discard(bucket)
            return not open_buckets

        self.cluster.wait_for(f"a part of each of buckets {buckets}", held, timeout=600)

    def go_on(self, *buckets: int) -> None:
        """Let the jobs of these buckets run that `hold` has stopped."""
        for process in (process for bucket in buckets for process in self.processes(bucket)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGCONT)

    def computed_again(self) -> int:
        """Return how many vectors lie in the store more than once."""
        return sum(int(part.name.split("-")[2]) for part in self.parts()) - self.sequences

    def states(self, rule: str = "") -> dict[str, list[str]]:
        """Return the accounted states of each job of this campaign, or of one rule, in order."""
        states: dict[str, list[str]] = {}
        for job, state, name in self.accounted("JobID", "State"):
            if f" {rule}" in name:
                states.setdefault(job, []).append(state.split()[0])
        return states

    def accounted(self, *fields: str) -> list[list[str]]:
        """Return these fields, and the name, of each time that a job of this campaign was run."""
        runs = re.findall(r"SLURM run ID: (?:\S+_)?(\w{8})-", self.words())
        asked = f"--format={','.join(fields)},JobName"
        lines = self.cluster.run("sacct", "-X", "-D", "-n", "-P", asked).splitlines()
        return [line.split("|") for line in lines if line.endswith(tuple(runs))]

    def master(self) -> dict[str, object]:
        """Return data and attributes of the master, but the commit: this clone may have moved on
        between two campaigns.

        Nor the digest of what it says, in which the commit is.
        """
        with h5py.File(self.folder / MASTER) as master:
            said = {name: str(value) for name, value in master.attrs.items()}
            held: dict[str, object] = {
                name: said[name] for name in set(said) - {"workflow_commit", "attributes_sha256"}
            }

            def add(name: str, item: h5py.Group | h5py.Dataset) -> None:
                held[name] = (
                    (item.dtype, item[...].tolist())
                    if isinstance(item, h5py.Dataset)
                    else sorted(item)
                )

            master.visititems(add)
        return held
