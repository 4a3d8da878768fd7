"""A campaign of the shipped workflow through the shipped SLURM profile, on the test cluster."""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

import h5py
import psutil
from cluster import GPU_NODES, Cluster, descendants

ROOT = Path(__file__).parents[2]
# It ends when the test session does, however that ends.
SNAKEMAKE = ("setpriv", "--pdeathsig", "KILL", sys.executable, "-m", "snakemake")
MODEL = "esm2_t3_untrained"
MASTER = f"results/{MODEL}/master_esm2_embeddings.h5"
GATHERED = f"results/{MODEL}/gathered.json"
RULES = ("embed", "deduplicate", "gather", "validate", "report")
LENGTHS = (1000, 3000)
"""Long: 0.05 s each on a CPU even with the tiny model, so that there is time to disturb a job."""

# What a user does to the profile: uncomment the lines of his site.
SITE = {
    "slurm_account": ("# slurm_account: my_account", "slurm_account: lab"),
    "cpu": ("# slurm_partition: cpu", "slurm_partition: cpu"),
    "gpu": ("# slurm_partition: gpu", "slurm_partition: gpu"),
}

CONFIG = """\
inputs: [proteins.fasta]
model: {model}
weights: {root}/config/demo/{model}.pt
buckets: {buckets}
speed:
  device: cpu
  toks_per_batch: 8000
  flush_minutes: {flush_minutes}
validate:
  spot_checks: 2
"""


class Campaign:
    """A working folder, the profile in it, and the `snakemake` that runs there."""

    def __init__(
        self,
        folder: Path,
        cluster: Cluster,
        *,
        profile: str = "slurm",
        buckets: int = 2,
        sequences: int = 320,
        lengths: tuple[int, int] = LENGTHS,
        flush_minutes: float = 0.001,
    ) -> None:
        """Make the folder with its input, its configuration and the edited profile."""
        self.folder = folder
        self.buckets = buckets
        self.sequences = sequences
        self.lengths = lengths
        self.cluster = cluster
        self.profile = profile
        self.log = folder / "snakemake.log"
        self._process: subprocess.Popen[bytes] | None = None
        (folder / "config").mkdir(parents=True)
        values = {"root": ROOT, "model": MODEL, "buckets": buckets, "flush_minutes": flush_minutes}
        (folder / "config" / "config.yaml").write_text(CONFIG.format(**values))
        random = Random(1)
        with (folder / "proteins.fasta").open("w") as fasta:
            for number in range(sequences):
                residues = "".join(
                    random.choices("ACDEFGHIKLMNPQRSTVWY", k=random.randint(*lengths))
                )
                fasta.write(f">p{number}\n{residues}\n")
        # as it is committed: the one here may have the lines of its user's site
        committed = ["git", "-C", str(ROOT), "show", f"HEAD:profiles/{profile}/profile.yaml"]
        text = subprocess.run(committed, capture_output=True, check=True).stdout
        (folder / profile).mkdir()
        (folder / profile / "profile.yaml").write_bytes(text)
        self.edit_profile(*SITE.values())

    def edit_profile(self, *replacements: tuple[str, str]) -> None:
        """Replace lines of the profile; each must be there."""
        path = self.folder / self.profile / "profile.yaml"
        text = path.read_text()
        for before, after in replacements:
            assert before in text, f"{path} has no line {before!r}"
            text = text.replace(before, after)
        path.write_text(text)

    def adopt(self, other: "Campaign") -> None:
        """Take over the weights and the sequences of another campaign, so that only embedding is
        left to do.
        """
        shutil.copy2(
            other.folder / "proteins.fasta", self.folder
        )  # With its age, or all would be done anew.
        self.adopt_weights(other)
        shutil.copytree(
            other.folder / "results" / "sequences", self.folder / "results" / "sequences"
        )

    def adopt_weights(self, other: "Campaign") -> None:
        shutil.copytree(other.folder / "resources", self.folder / "resources")
        for record in (other.folder / "results").glob("*/weights.json"):
            copy = self.folder / record.relative_to(other.folder)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(record, copy)

    def command(self, *options: str) -> list[str]:
        command = [
            *SNAKEMAKE,
            "--snakefile",
            str(ROOT / "Snakefile"),
            "--profile",
            self.profile,
            *options,
        ]
        # One thread for each rule: this machine has fewer cores than the virtual nodes pretend to
        # have.
        return [*command, "--set-threads", *(f"{rule}=1" for rule in RULES)]

    def start(self, *options: str, without: str = "") -> "subprocess.Popen[bytes]":
        """Start Snakemake, on a machine that lacks the command `without`; its output goes to
        `log`.
        """
        hide = (
            "unshare",
            "--mount",
            "sh",
            "-c",
            f'mount --bind /dev/null $(command -v {without}) && exec "$@"',
            "hide",
        )
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [*(hide if without else ()), *self.command(*options)],
                cwd=self.folder,
                env=self.cluster.env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        return self._process

    def finish(self, process: "subprocess.Popen[bytes]", *, timeout: float = 1800) -> int:
        """Wait for Snakemake and return its exit status; kill it when it does not end."""
        try:
            return process.wait(timeout)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()

    @contextlib.contextmanager
    def running(self, *options: str, without: str = "") -> Iterator["subprocess.Popen[bytes]"]:
        """Run Snakemake while the block disturbs it, then let it end; it must succeed.

        If it does not, or if the block fails, nothing of it is left: no process and no job.
        """
        process = self.start(*options, without=without)
        try:
            yield process
            assert self.finish(process) == 0, self.words()
        finally:
            self.abandon(process)

    def abandon(self, process: "subprocess.Popen[bytes]") -> None:
        """End Snakemake and all jobs at once."""
        if process.poll() is None:
            process.kill()
            process.wait()
        if self.cluster.jobs():
            self.cluster.run("scancel", "--user=root")
            self.cluster.wait_for("no jobs", lambda: not self.cluster.jobs())

    def words(self) -> str:
        """What the user has seen so far."""
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def job_of(self, submission: int) -> tuple[str, str]:
        """Return (job, node) of the running job of a submission, or ("", "")."""
        lines = self.cluster.run(
            "squeue", "--noheader", "--states=R", "--format=%k|%i|%N"
        ).splitlines()
        for comment, job, node in (line.split("|") for line in lines):
            if comment == f"rule_embed_wildcards_{submission:04d}":
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
                and f"results/{MODEL}/submissions/{submission:04d}.json" in words
            ):
                return [process, *descendants(process)]
        return []

    def step_of(self, submission: int) -> int:
        """Return the slurmstepd of a submission's step."""
        return next(
            parent.pid
            for parent in psutil.Process(self.processes(submission)[0]).parents()
            if parent.cmdline()[0].startswith("slurmstepd: [")
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

    def expire_claims(self, *buckets: int) -> None:
        """Let the two minutes pass after which the claim of a job that died on another node counts
        no more.
        """
        for bucket in buckets:
            with contextlib.suppress(FileNotFoundError):
                os.utime(
                    self.folder / "results" / MODEL / "embedded" / "claims" / f"{bucket:04d}",
                    (0, 0),
                )

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
        cannot end yet.

        SLURM wakes what it signals, and so does SIGKILL; `expire_claims` is due within two minutes.
        """
        open_buckets = set(buckets)

        def held() -> bool:
            assert self._process is None or self._process.poll() is None, self.words()
            for bucket in list(open_buckets):
                processes = self.processes(bucket)
                with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
                    began = (
                        psutil.Process(processes[0]).create_time() if processes else float("inf")
                    )
                    if any(part.stat().st_mtime > began for part in self.parts(bucket)):
                        for process in processes:
                            os.kill(process, signal.SIGSTOP)
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

    def states(self) -> dict[str, list[str]]:
        """Return the accounted states of each job of this campaign, in order."""
        names = re.findall(r"SLURM run ID: (\S+)", self.words())
        lines = self.cluster.run(
            "sacct", "-X", "-D", "-n", "-P", "--format=JobID,State", f"--name={','.join(names)}"
        ).splitlines()
        states: dict[str, list[str]] = {}
        for job, state in (line.split("|") for line in lines):
            states.setdefault(job, []).append(state.split()[0])
        return states

    def master(self) -> dict[str, object]:
        """What the master holds and says, but for the commit: this clone may have moved on between
        two campaigns.

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


def command_line(process: int) -> list[str]:
    """Return a process's command line; nothing when it has ended."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{process}/cmdline").read_text().split("\0")
    return []


def kill(processes: list[int]) -> None:
    """SIGKILL for each of some processes; there must be one."""
    assert processes
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
