"""Reasons in words, from the words of SLURM and of a job's log."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from snakemake_executor_plugin_slurm_steady import reasons
from snakemake_executor_plugin_slurm_steady.queue import SlurmError, ask
from standin import script

JOB: Any = SimpleNamespace(resources={"mem_mb": 300})
VIOLATES = "Batch job submission failed: Job violates accounting/QOS policy"


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        (f"sbatch: error: QOSMaxSubmitJobPerUserLimit\nsbatch: error: {VIOLATES}", "FULL"),
        (f"sbatch: error: AssocMaxSubmitJobLimit\nsbatch: error: {VIOLATES}", "FULL"),
        ("sbatch: error: Required partition not available (inactive or drain)", "FULL"),
        ("sbatch: error: Unable to contact slurm controller (connect failure)", "AWAY"),
        ("sbatch: error: Socket timed out on send/recv operation", "AWAY"),
        ("sbatch: error: Slurm temporarily unable to accept job", "AWAY"),
        (
            "sbatch: error: Munge encode failed\nsbatch: error: Invalid authentication credential",
            "AWAY",
        ),
        ("sbatch: error: invalid partition specified: nosuch", "FOR_GOOD"),
        ("sbatch: error: Memory specification can not be satisfied", "FOR_GOOD"),
        (f"sbatch: error: QOSMaxGRESPerJob\nsbatch: error: {VIOLATES}", ""),
        ("sbatch: error: Requested node configuration is not available", ""),
    ],
)
def test_what_sbatch_says_decides_when_a_job_is_submitted_again(
    words: str, kind: str, tmp_path: Path
) -> None:
    script(tmp_path / "sbatch", f"echo '{words}' >&2; exit 1")
    with pytest.raises(SlurmError) as error:
        ask(str(tmp_path / "sbatch"))
    answer = str(error.value)
    assert answer.startswith("sbatch: ")
    assert "error" not in answer and "\n" not in answer
    matching = [
        name for name in ("FULL", "AWAY", "FOR_GOOD") if getattr(reasons, name).search(answer)
    ]
    assert matching[:1] == ([kind] if kind else [])
    assert error.value.away == (kind == "AWAY")


@pytest.mark.parametrize(
    ("reason", "never", "remedy"),
    [
        ("Priority", False, ""),
        ("AssocGrpCPURunMinutesLimit", False, ""),
        ("QOSMaxJobsPerUserLimit", False, ""),
        ("PartitionTimeLimit", True, "runtime"),
        ("MaxMemPerLimit", True, "mem_mb"),
        ("QOSMaxWallDurationPerJobLimit", True, "runtime"),
        ("AssocGrpCPUMinutesLimit", False, "used up"),
        ("QOSGrpGRESMinutes", False, "used up"),
        ("JobHeldUser", False, "scontrol release"),
        ("job requeued in held state", False, "scontrol release"),
        ("launch failed requeued held", False, ""),
    ],
)
def test_what_waits_for_ever_is_told_from_what_waits(reason: str, never: bool, remedy: str) -> None:
    hopeless, words = reasons.of_waiting(reason)
    assert hopeless == never
    assert bool(words) == bool(remedy)
    assert remedy in words


@pytest.mark.parametrize(
    ("state", "log", "words"),
    [
        ("OUT_OF_MEMORY", b"", "out of main memory (mem_mb=300)"),
        ("FAILED", b"error: Detected 1 oom-kill event(s) in StepId=6.0", "out of main memory"),
        ("FAILED", b"error: Detected 1 oom_kill event in StepId=6.0", "out of main memory"),
        ("FAILED", b"returned non-zero exit status 75.", "fault of the node"),
        ("FAILED", b"returned non-zero exit status 175. exit status 75 x", "its log says why"),
        ("FAILED", b"returned non-zero exit status 78.", "It is not tried again"),
        ("TIMEOUT", b"", "time limit"),
        ("BOOT_FAIL", b"", "SLURM says BOOT_FAIL"),
    ],
)
def test_why_a_job_failed(state: str, log: bytes, words: str) -> None:
    assert words in reasons.of_failure(state, log, JOB)


def test_only_the_end_of_a_log_is_read(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert reasons.tail(log) == b""
    log.write_bytes(b"first" + b"." * 2**17 + b"last")
    assert reasons.tail(log).endswith(b"last")
    assert len(reasons.tail(log)) == 2**16
