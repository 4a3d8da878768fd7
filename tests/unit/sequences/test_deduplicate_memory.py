"""What deduplicate holds in memory, whatever it reads."""

import os
import random
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from plm_embed.startup import KEEP_MEMORY, NO_HUGE_PAGES
from support.nasty_inputs import M2

pytestmark = pytest.mark.workflow


def much(path: Path, kind: str) -> Path:
    """120,000 records, 80,001 distinct sequences."""
    rng = random.Random(3)
    block = ["".join(rng.choices("ACDEFGHIKLMNPQRSTVWY", k=16)) for _ in range(120_000)]
    residues = (M2 if number % 3 == 0 else each * 100 for number, each in enumerate(block))
    if kind == "parquet":  # in a single row group
        columns = {
            "protein_id": [f"id{number}" for number in range(120_000)],
            "assembly_id": [f"assembly{number // 10}" for number in range(120_000)],
            "protein_name": ["a name"] * 120_000,
            "sequence": list(residues),
        }
        pq.write_table(pa.table(columns), path, row_group_size=120_000)
        return path
    with path.open("w") as handle:
        if kind == "csv":
            handle.write("protein_id,assembly_id,protein_name,sequence\n")
        for number, each in enumerate(residues):
            if kind == "csv":
                handle.write(f"id{number},assembly{number // 10},a name,{each}\n")
            else:  # the end is what the fast way leaves to the other
                handle.write(f">id{number} a name\n{each if number < 110_000 else each.lower()}\n")
    return path


@pytest.mark.parametrize(
    ("kind", "memory_mb", "ranges"),
    [("csv", 500, 256), ("fasta", 500, 256), ("parquet", 500, 256), ("fasta", 700, 5)],
)
def test_memory_is_bounded(tmp_path: Path, kind: str, memory_mb: int, ranges: int) -> None:
    """128 MB of distinct residues in less; at last in few ranges of nearly the size that is sorted
    at once.
    """
    path = much(tmp_path / f"big.{kind}", kind)
    program = (
        "import sys; from pathlib import Path; from plm_embed.io import sorting\n"
        "from plm_embed.sequences.deduplicate import *\n"
        "sorting._MOST_RANGES = int(sys.argv[4])\n"
        "s = deduplicate([Path(sys.argv[1])], Path(sys.argv[2]), buckets=5, "
        "memory_mb=int(sys.argv[3]),\n"
        "    table=Table('protein_id', 'sequence', ('assembly_id', 'protein_name')), "
        "policy=ResiduePolicy())\n"
        "peak = next(line for line in open('/proc/self/status') if "
        "line.startswith('VmHWM')).split()[1]\n"
        # ru_maxrss would be the parent's where that is larger
        "print(s.records, s.unique, int(peak) * 1.024e-3)"
    )
    command = [
        sys.executable,
        "-c",
        program,
        str(path),
        str(tmp_path / "out"),
        str(memory_mb),
        str(ranges),
    ]
    done = subprocess.run(
        command, check=True, capture_output=True, env=os.environ | KEEP_MEMORY | NO_HUGE_PAGES
    )
    records, unique, peak = map(float, done.stdout.split())
    assert (records, unique) == (120_000, 80_001)
    assert peak < memory_mb - 20  # for the process that hashes
