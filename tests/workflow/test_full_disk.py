"""A disk that is really full: said in words, exit code 1, nothing half-written, and the same
command goes on later.
"""

import contextlib
import subprocess
import sys
import time
from pathlib import Path
from typing import get_args

import pytest
import torch

from plm_embed.io.files import atomic_path
from plm_embed.jobs.completion_record import read_completion
from plm_embed.models.weights import Stored, write
from plm_embed.reading.exports import Format
from support.buckets import write_bucket
from support.campaigns import gathered_campaign


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=300
    )


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


COMMAND = """
import sys
import plm_embed.reporting.summary
from pathlib import Path
def fill(results):
    import numpy as np
    from plm_embed.io.files import atomic_path
    from plm_embed.store.hdf5 import connect, create_dataset, write_bits
    with atomic_path(Path(results) / "master.h5") as path, connect(path, "w") as file:
        vectors = create_dataset(file, "x", (4096, 512), "float16")
        write_bits(vectors, 0, np.zeros((4096, 512), "<u2"))
plm_embed.reporting.summary.gathered = fill
sys.argv = ["plm-embed", "summary", {folder!r}]
from plm_embed.cli.main import main; main()
"""


def test_hdf5_on_a_full_disk_ends_in_words(small_disk: Path) -> None:
    done = run(COMMAND.format(folder=str(small_disk)))
    assert done.returncode == 1, done.stderr
    assert "no space left" in done.stderr
    assert "Traceback" not in done.stderr
    assert files(small_disk) == []


@pytest.mark.workflow
def test_an_export_on_a_full_disk_leaves_nothing(small_disk: Path, tmp_path: Path) -> None:
    campaign = gathered_campaign(tmp_path / "results")
    output = small_disk / "x"
    for room in (0, 4096):
        fill(small_disk)
        with (small_disk / "filler").open("r+b") as filler:
            filler.truncate(filler.seek(0, 2) - room)
        for to in get_args(Format):
            command = [sys.executable, "-m", "plm_embed", "export", campaign.master, output]
            done = subprocess.run(
                [*map(str, command), "--to", to], capture_output=True, text=True, check=False
            )
            assert done.returncode == 1, (to, done.stdout)
            assert done.stderr.count("\n") == 2, (to, done.stderr)
            assert "no space left" in done.stderr and str(output) in done.stderr, to
            assert files(small_disk) == ["filler"], to


@pytest.mark.workflow
def test_deduplicate_on_a_full_disk(small_disk: Path, tmp_path: Path) -> None:
    fasta = tmp_path / "many.fasta"
    residues = "ACDEFGHIKLMNPQRSTVWY"
    with fasta.open("w") as lines:
        for i in range(20_000):
            lines.write(
                f">{i}\n"
                + "".join(residues[(i // 20**place) % 20] for place in range(5)) * 40
                + "\n"
            )
    command = [sys.executable, "-m", "plm_embed", "deduplicate", str(fasta)]
    command += ["--output", str(small_disk / "sequences")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 1, done.stderr
    assert "full" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (small_disk / "sequences" / "summary.json").exists()


def test_weights_on_a_full_disk_leave_nothing(small_disk: Path) -> None:
    final = small_disk / "model.safetensors"
    with (
        pytest.raises(OSError, match="No space left") as raised,
        atomic_path(final) as temporary,  # as `prepare` does
    ):
        write(temporary, {"a": Stored.of(torch.zeros(1 << 20))})
    assert raised.value.errno == 28
    assert files(small_disk) == []


def fill(folder: Path) -> None:
    with contextlib.suppress(OSError), (folder / "filler").open("wb", buffering=0) as filler:
        for size in (65536, 4096, 1):
            with contextlib.suppress(OSError):
                while True:
                    filler.write(b"x" * size)


def embed(
    results: Path, weights: Path, scratch: Path, bucket: Path, flush_minutes: float
) -> "subprocess.Popen[str]":
    command = [
        *(sys.executable, "-m", "plm_embed", "embed", str(bucket), "--weights", str(weights)),
        *("--store", str(results / "store"), "--record", str(results / "embedded" / "0000.json")),
        *("--device", "cpu", "--toks-per-batch", "512"),
        *("--flush-minutes", str(flush_minutes), "--scratch", str(scratch)),
    ]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)


@pytest.mark.workflow
def test_results_that_cannot_be_written_any_more_end_a_job(
    small_disk: Path, tmp_path: Path, short_tmp: Path, prepared: Path
) -> None:
    """With the path; when the disk is mended the same command goes on."""
    texts = ["M" * number + "LAGV" * i for number in range(3) for i in range(1, 200)]
    bucket = write_bucket(tmp_path, texts)
    subprocess.run(["mount", "-o", "remount,size=8m", str(small_disk)], check=True)

    with at_work(small_disk, prepared, short_tmp, bucket) as job:
        fill(small_disk)
        assert "no space left" in last_words(job, small_disk)
    (small_disk / "filler").unlink()

    with at_work(small_disk, prepared, short_tmp, bucket) as job:
        # refused as long as a file is open for writing
        read_only = ["mount", "-o", "remount,ro", str(small_disk)]
        while subprocess.run(read_only, capture_output=True, check=False).returncode:
            assert job.poll() is None, "it ended before its disk was read-only"
        assert "read-only" in last_words(job, small_disk)
    subprocess.run(["mount", "-o", "remount,rw", str(small_disk)], check=True)

    # few parts, however slow the machine is: each takes more room than its vectors
    with embed(small_disk, prepared, short_tmp, bucket, 5) as again:
        _, errors = again.communicate(timeout=300)
    assert again.returncode == 0, errors
    assert read_completion(small_disk / "embedded" / "0000.json").unique == len(set(texts))


def at_work(results: Path, weights: Path, scratch: Path, bucket: Path) -> "subprocess.Popen[str]":
    """A job that has written a part and will write many more."""

    def parts() -> int:
        return len(list(results.glob("store/*/parts/[0-9a-f]*.h5")))

    before = parts()
    job = embed(results, weights, scratch, bucket, 0.001)
    end = time.monotonic() + 300
    while parts() == before:
        assert time.monotonic() < end and job.poll() is None, job.communicate()
        time.sleep(0.02)
    return job


def last_words(job: "subprocess.Popen[str]", results: Path) -> str:
    """Errors of a job that fails because of its folder of results, which they name."""
    _, errors = job.communicate(timeout=300)
    assert job.returncode == 1
    assert "Traceback" not in errors
    last = errors[errors.index("plm-embed: error: ") :]
    assert f"{results}/" in last
    return last
