"""Memory that deduplicate takes, whatever it reads."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from plm_embed.startup import KEEP_MEMORY, NO_HUGE_PAGES
from support.nasty_inputs import M2

pytestmark = pytest.mark.workflow


def much(path: Path, kind: str) -> Path:
    """120,000 records, 80,001 distinct sequences."""
    drawn = np.random.default_rng(3).choice([*b"ACDEFGHIKLMNPQRSTVWY"], (120_000, 16))
    blocks = drawn.astype(np.uint8).view("S16").ravel().astype(str).tolist()
    residues = [M2 if number % 3 == 0 else block * 100 for number, block in enumerate(blocks)]
    columns = {
        "protein_id": [f"id{number}" for number in range(120_000)],
        "assembly_id": [f"assembly{number // 10}" for number in range(120_000)],
        "protein_name": ["a name"] * 120_000,
        "sequence": residues,
    }
    if kind == "parquet":  # in a single row group
        pq.write_table(pa.table(columns), path, row_group_size=120_000)
    elif kind == "csv":
        rows = (",".join(row) for row in zip(*columns.values(), strict=True))
        path.write_text("\n".join([",".join(columns), *rows]))
    else:  # the end is what the fast way leaves to the other
        texts = [*residues[:110_000], *map(str.lower, residues[110_000:])]
        path.write_text(
            "".join(f">id{number} a name\n{text}\n" for number, text in enumerate(texts))
        )
    return path


@pytest.mark.parametrize(
    ("kind", "memory_mb", "ranges"), [("csv", 500, 256), ("parquet", 500, 256), ("fasta", 700, 5)]
)
def test_memory_is_bounded(tmp_path: Path, kind: str, memory_mb: int, ranges: int) -> None:
    """128 MB of distinct residues in less; at last in few ranges of nearly the size that is sorted
    at once.
    """
    path = much(tmp_path / f"big.{kind}", kind)
    records, unique, peak = run(path, "protein", memory_mb, ranges)
    assert (records, unique) == (120_000, 80_001)
    assert peak < memory_mb


def test_contigs_of_16_million_bases_fit_into_the_least_memory(tmp_path: Path) -> None:
    """In lower case, so that each is made anew."""
    path, letters = tmp_path / "contigs.fasta", np.frombuffer(b"acgt", np.uint8)
    with path.open("wb") as file:
        for number in range(4):
            drawn = np.random.default_rng(number).integers(0, 4, 16_000_000, np.uint8)
            file.write(b">c%d\n%s\n" % (number, letters[drawn].tobytes()))
    records, unique, peak = run(path, "dna", 500, 256)
    assert (records, unique) == (4, 4)
    assert peak < 500


def test_what_is_cut_out_of_a_block_does_not_keep_all_of_it(tmp_path: Path) -> None:
    """Blocks that are headers nearly all, of which little is counted."""
    path, header = tmp_path / "headers.fasta", " of a long name" * 130
    record = f"{header}\nMKTAYIAKQRQISFVKSHFS\n"
    path.write_text("".join(f">id{number}{record}" for number in range(110_000)))
    records, unique, peak = run(path, "protein", 700, 256)
    assert (records, unique) == (110_000, 1)
    assert peak < 330


def run(path: Path, alphabet: str, memory_mb: int, ranges: int) -> tuple[float, ...]:
    """Records, distinct sequences and peak memory in MB of a process that deduplicates a file."""
    program = (
        "from plm_embed import startup; startup.set_up('deduplicate')\n"
        "import sys; from pathlib import Path; from plm_embed.sequences import sorting\n"
        "from plm_embed.sequences.deduplicate import deduplicate\n"
        "from plm_embed.sequences.residues import ResiduePolicy\n"
        "from plm_embed.sequences.settings import Table\n"
        "path, alphabet, (memory_mb, sorting.MOST_RANGES) = *sys.argv[1:3], "
        "map(int, sys.argv[3:])\n"
        "s = deduplicate([Path(path)], Path(path).parent / 'out', buckets=5, memory_mb=memory_mb,\n"
        "    table=Table('protein_id', 'sequence', ('assembly_id', 'protein_name')), "
        "policy=ResiduePolicy(alphabet=alphabet))\n"
        "peak = next(line for line in open('/proc/self/status') if "
        "line.startswith('VmHWM')).split()[1]\n"
        # ru_maxrss would be the parent's where that is larger
        "print(s.records, s.unique, int(peak) * 1.024e-3)"
    )
    command = [sys.executable, "-c", program, str(path), alphabet, str(memory_mb), str(ranges)]
    done = subprocess.run(
        command, check=True, capture_output=True, env=os.environ | KEEP_MEMORY | NO_HUGE_PAGES
    )
    return tuple(map(float, done.stdout.split()))
