"""The shipped workflow in a working folder, by a shipped SLURM profile, on the test cluster."""

import contextlib
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from random import Random

from cluster import Cluster

from plm_embed.sequences.deduplicate import deduplicate
from plm_embed.sequences.residues import ResiduePolicy
from plm_embed.sequences.settings import LEAST_MEMORY_MB, Table

ROOT = Path(__file__).parents[2]
MODEL = "esm2_t3_untrained"
RULES = ("embed", "deduplicate", "gather_esm2", "validate", "report")
LENGTHS = (1000, 3000)
"""Long: 0.05 s each on a CPU even with the tiny model, so that there is time to disturb a job."""

# What a user does to the profile: uncomment the lines of his site.
SITE = {
    "slurm_account": ("# slurm_account: my_account", "slurm_account: lab"),
    "cpu": ("# slurm_partition: cpu", "slurm_partition: cpu"),
    "gpu": ("# slurm_partition: gpu", "slurm_partition: gpu"),
}

GPUS = (
    "    runtime: 240 # minutes: a retry goes on where the job ended",
    "    runtime: 240 # minutes",
)
"""The line of a profile below which the speed of jobs is set."""

CONFIG = """\
inputs: [proteins.fasta]
model: {model}
buckets: {buckets}
validate:
  spot_checks: 2
"""


class SnakemakeRun:
    """A working folder, the profile in it, and the `snakemake` that runs there."""

    def __init__(
        self,
        folder: Path,
        cluster: Cluster,
        *,
        profile: str = "slurm",
        buckets: int = 2,
        sequences: int = 80,
        lengths: tuple[int, int] = LENGTHS,
        flush_minutes: float = 0.001,
    ) -> None:
        """Make the folder with its input, its configuration and the edited profile; a folder that
        is there stays as it is.
        """
        self.folder = folder
        self.buckets = buckets
        self.sequences = sequences
        self.lengths = lengths
        self.cluster = cluster
        self.profile = profile
        self.log = folder / "snakemake.log"
        self._process: subprocess.Popen[bytes] | None = None
        if not folder.exists():
            self._make(flush_minutes)

    def _make(self, flush_minutes: float) -> None:
        folder, profile = self.folder, self.profile
        (folder / "config").mkdir(parents=True)
        text = CONFIG.format(model=MODEL, buckets=self.buckets)
        (folder / "config" / "config.yaml").write_text(text)
        random = Random(1)
        with (folder / "proteins.fasta").open("w") as fasta:
            for number in range(self.sequences):
                residues = "".join(
                    random.choices("ACDEFGHIKLMNPQRSTVWY", k=random.randint(*self.lengths))
                )
                fasta.write(f">p{number}\n{residues}\n")
        # as it is committed: the one here may have the lines of its user's site
        committed = ["git", "-C", str(ROOT), "show", f"HEAD:profiles/{profile}/profile.yaml"]
        content = subprocess.run(committed, capture_output=True, check=True).stdout
        (folder / profile).mkdir()
        (folder / profile / "profile.yaml").write_bytes(content)
        speed = f"device: cpu\n    toks_per_batch: 4000\n    flush_minutes: \"'{flush_minutes}'\""
        line = next(one for one in GPUS if one in content.decode())
        self.edit_profile(*SITE.values(), (line, f"{line}\n    {speed}"))

    def edit_profile(self, *replacements: tuple[str, str]) -> None:
        """Replace lines of the profile; each must be there."""
        path = self.folder / self.profile / "profile.yaml"
        text = path.read_text()
        for before, after in replacements:
            assert before in text, f"{path} has no line {before!r}"
            text = text.replace(before, after)
        path.write_text(text)

    def adopt(self, other: "SnakemakeRun") -> None:
        """Take over the weights of another campaign, and split the sequences here: SLURM is left
        to embed and to gather.
        """
        self.adopt_weights(other)
        with contextlib.chdir(self.folder):
            deduplicate(
                [Path("proteins.fasta")],
                Path("results/sequences"),
                buckets=self.buckets,
                table=Table(),
                policy=ResiduePolicy(),
                memory_mb=LEAST_MEMORY_MB,
            )

    def adopt_weights(self, other: "SnakemakeRun") -> None:
        for record in (other.folder / "results").glob("*/weights.json"):
            copy = self.folder / record.relative_to(other.folder)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(record, copy)

    @property
    def snakemake(self) -> tuple[str, ...]:
        """Return what starts Snakemake. It ends when the test session does, however that ends."""
        return ("setpriv", "--pdeathsig", "KILL", self.cluster.python, "-m", "snakemake")

    def command(self, *options: str) -> list[str]:
        command = [
            *self.snakemake,
            "--snakefile",
            str(ROOT / "workflow" / "Snakefile"),
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
        """Return all that the user has seen so far."""
        return self.log.read_text(errors="replace") if self.log.exists() else ""
