"""A disk that is really full: said in words, exit code 1, nothing half-written, and the same command goes on later."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A filesystem of 1 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)], check=False)
    if mounted.returncode:
        pytest.skip("only root may mount a small filesystem")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=300)


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


COMMAND = """
import sys
import plm_embed.summary
from pathlib import Path
def fill(results):
    import numpy as np
    from plm_embed.files import atomic_path
    from plm_embed.hdf5 import connect, create_vectors, write_bits
    with atomic_path(Path(results) / "master.h5") as path, connect(path, "w") as file:
        write_bits(create_vectors(file, "x", (4096, 512), "float16"), 0, np.zeros((4096, 512), "<u2"))
plm_embed.summary.summarise = fill
sys.argv = ["plm-embed", "summary", {folder!r}]
from plm_embed.cli import main; main()
"""


def test_hdf5_on_a_full_disk_ends_in_words(small_disk: Path) -> None:
    done = run(COMMAND.format(folder=str(small_disk)))
    assert done.returncode == 1, done.stderr
    assert "no space left" in done.stderr
    assert "Traceback" not in done.stderr
    assert files(small_disk) == []


@pytest.mark.workflow
def test_deduplicate_on_a_full_disk(small_disk: Path, tmp_path: Path) -> None:
    fasta = tmp_path / "many.fasta"
    residues = "ACDEFGHIKLMNPQRSTVWY"
    with fasta.open("w") as lines:
        for i in range(20_000):
            lines.write(f">{i}\n" + "".join(residues[(i // 20**place) % 20] for place in range(5)) * 40 + "\n")
    command = [sys.executable, "-m", "plm_embed", "deduplicate", str(fasta), "--output", str(small_disk / "sequences")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 1, done.stderr
    assert "full" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (small_disk / "sequences" / "summary.json").exists()
