import os
import signal
import subprocess
import sys
import time
from hashlib import sha256
from itertools import accumulate
from pathlib import Path

import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plm_embed.errors import PassingError, PlmEmbedError
from plm_embed.sequences import key_process
from plm_embed.sequences.deduplicate import deduplicate
from plm_embed.sequences.key_process import AHEAD, WORTH_IT, Hasher, digests
from plm_embed.sequences.settings import ResiduePolicy
from plm_embed.sequences.tables import Table

BATCHES = st.lists(st.lists(st.binary(max_size=40), max_size=30), min_size=1, max_size=8)


needs_memfd = pytest.mark.skipif(
    not hasattr(os, "memfd_create"), reason="keys are computed in one process here"
)


def process_of(hasher: Hasher) -> psutil.Process:
    assert hasher._process is not None
    return psutil.Process(hasher._process.pid)


def expected(sequences: list[bytes]) -> bytes:
    return b"".join(sha256(sequence).digest() for sequence in sequences)


def batch(sequences: list[bytes]) -> tuple[bytes, list[int]]:
    return b"".join(sequences), list(accumulate(map(len, sequences)))


@given(st.lists(st.binary(max_size=40)))
def test_digests_are_those_of_the_pieces(sequences: list[bytes]) -> None:
    assert digests(*batch(sequences)) == expected(sequences)


def test_the_process_starts_without_large_libraries() -> None:
    code = f"import sys, {key_process.__name__}; print({{'numpy', 'pyarrow'}} & set(sys.modules))"
    started = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert started.stdout == b"set()\n"


@settings(max_examples=20)
@given(BATCHES, BATCHES)
def test_another_process_gives_the_same_in_the_same_order(
    first: list[list[bytes]], then: list[list[bytes]]
) -> None:
    too_large = [b"A" * (1 << 23), b"C"]
    batches = [*first, too_large, *then]
    with Hasher(WORTH_IT) as hasher:
        found = []
        for number, sequences in enumerate(batches):
            hasher.put(*batch(sequences))
            if number >= AHEAD:
                found.append(hasher.get())
        found += [hasher.get() for _ in batches[len(found) :]]
    assert found == list(map(expected, batches))


@needs_memfd
def test_a_killed_process_is_an_error_that_says_so() -> None:
    with Hasher(WORTH_IT) as hasher:
        hasher.put(b"MKT", [3])
        hasher.get()
        other = process_of(hasher)
        os.kill(other.pid, signal.SIGKILL)
        while other.status() != psutil.STATUS_ZOMBIE:
            time.sleep(0.01)
        # a process is a zombie before the last of its threads lets go of the pipe
        with pytest.raises(PassingError, match=r"ended early \(exit code -9; .*; run again"):
            hasher.put(b"MKT", [3])
            hasher.get()
    with Hasher(WORTH_IT) as hasher:
        other = process_of(hasher)
        other.suspend()
        hasher.put(b"MKT", [3])
        other.kill()
        with pytest.raises(PlmEmbedError, match="ended early"):
            hasher.get()


@needs_memfd
def test_the_process_ends_with_the_block() -> None:
    with Hasher(WORTH_IT) as hasher:
        hasher.put(b"MKT", [3])
        other = process_of(hasher)
        assert other.is_running()
    assert not other.is_running()


def test_little_is_hashed_without_a_process() -> None:
    with Hasher(WORTH_IT - 1) as hasher, pytest.raises(AssertionError):
        process_of(hasher)


def test_deduplicate_gives_the_same_bytes_with_and_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "in.fasta"
    source.write_text(
        "".join(f">r{number} x\nMKT{'ACDE' * (number % 700)}\n" for number in range(3000))
    )
    results = []
    for place, worth in enumerate((WORTH_IT, 0)):
        monkeypatch.setattr(key_process, "WORTH_IT", worth)
        output = tmp_path / str(place)
        deduplicate(
            [source],
            output,
            buckets=4,
            table=Table("id", "sequence"),
            policy=ResiduePolicy(),
            memory_mb=1000,
        )
        files = sorted(path for path in output.rglob("*") if path.is_file())
        results.append([(path.relative_to(output), path.read_bytes()) for path in files])
    assert results[0] == results[1]
    assert len(results[0]) == 1 + 4 + 4 + 1
