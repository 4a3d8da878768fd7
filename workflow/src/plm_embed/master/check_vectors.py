"""Checks of completion records and master: every vector is there, once, in order, and what its part
holds.
"""

from bisect import bisect_left
from pathlib import Path

import h5py
import numpy as np

from plm_embed.errors import StoreError
from plm_embed.fingerprint import SPANS, has_matrix
from plm_embed.jobs.bucket import Bucket, load_bucket
from plm_embed.keys import SPACE, bucket_bounds
from plm_embed.master.check_spans import wrong_spans
from plm_embed.master.findings import Findings, Problem, text
from plm_embed.master.norms import distribution
from plm_embed.master.planned import Plan
from plm_embed.master.validation_record import Norms
from plm_embed.sequence_windows import stored_residues
from plm_embed.sequences.summary import bucket_names
from plm_embed.store import checksums
from plm_embed.store.blocks import Block, Located, blocks, locate
from plm_embed.store.hdf5 import decode, read_bits, storage_dtype
from plm_embed.store.replaced import despite_compact

_KEYS_AT_ONCE = 1 << 20


def check_completion(
    findings: Findings, sequences: Path, embedded: Path
) -> tuple[Plan, dict[bytes, str]]:
    """Look at every completion record. Returns what they say together, and the reason for each
    skipped key.

    The plan names the buckets whose record is sound; StoreError when there is none.
    """
    names = bucket_names(sequences)
    plan: Plan | None = None
    sound: list[str] = []
    skipped: dict[bytes, str] = {}
    for name in names:
        with findings.check("completion records") as problem:
            bucket = load_bucket(sequences, embedded, name)
            plan = plan or Plan(bucket.completion.fingerprint, sound)
            if bucket.completion.fingerprint != plan.fingerprint:
                differences = "; ".join(bucket.completion.fingerprint.differences(plan.fingerprint))
                problem(
                    f"{bucket.record}: another fingerprint than that of bucket "
                    f"{sound[0]} ({differences})"
                )
                continue
            sound.append(name)
            plan.count(bucket)
            skipped |= bucket.completion.reasons
    if plan is None:
        raise StoreError(f"{embedded}: no bucket has a sound completion record", path=embedded)
    return plan, skipped


class MasterCheck:
    """The master, of `count` rows, against the parts, bucket by bucket."""

    def __init__(self, findings: Findings, file: h5py.File, plan: Plan) -> None:
        self._findings = findings
        self._file = file
        self._plan = plan
        self.count: int = file["emb_keys"].shape[0]
        names = plan.fingerprint.representations
        self._norms = {
            name: np.full(self.count, np.nan, dtype=np.float32) for name in names if name != SPANS
        }

    def layout(self) -> bool:
        """Datasets, shapes and types; whether the vectors can be compared at all."""
        file, plan = self._file, self._plan
        sound = True
        with self._findings.check("shapes and types") as problem:

            def wrong(text: str) -> None:
                nonlocal sound
                sound = False
                problem(text)

            if self.count != plan.vectors:
                problem(f"{self.count:,} rows, but {plan.vectors:,} sequences have a vector")
            for name in ("length", "windows"):
                if file[name].shape != (self.count,):
                    wrong(f"{name} has shape {file[name].shape} for {self.count:,} keys")
            for name in plan.fingerprint.representations:
                dataset = file["representations"][name]
                flat = has_matrix(name)
                shape = (int(file["offset"][-1]) if flat else self.count, plan.dims.get(name, 0))
                if dataset.shape != shape:
                    wrong(f"{name} has shape {dataset.shape}, expected {shape}")
                elif storage_dtype(dataset) != plan.fingerprint.storage_dtype:
                    wrong(
                        f"{name} is stored as {dataset.dtype}, expected "
                        f"{plan.fingerprint.storage_dtype}"
                    )
            for name in sorted(
                set(file["representations"]) - set(plan.fingerprint.representations)
            ):
                problem(
                    f"{name} is not among the representations of the fingerprint: nothing vouches "
                    "for it"
                )
            pooled = [name for name in plan.fingerprint.representations if not has_matrix(name)]
            if pooled and file["emb"] != file["representations"][pooled[0]]:
                wrong(f"emb is not {pooled[0]}")
            return sound
        return False

    def keys(self) -> bool:
        """Whether the keys are strictly increasing over the whole file."""
        before, increasing = b"", True
        with self._findings.check("keys") as problem:
            for start in range(0, self.count, _KEYS_AT_ONCE):
                keys = self._file["emb_keys"][start : start + _KEYS_AT_ONCE]
                previous = np.concatenate([np.array([before], dtype="S64"), keys[:-1]])
                for at in np.flatnonzero(keys <= previous).tolist():
                    increasing = False
                    what = "a duplicate of" if keys[at] == previous[at] else "out of order after"
                    problem(
                        f"row {start + at:,}: key {text(keys[at])} is {what} {text(previous[at])}"
                    )
                before = keys[-1]
        return increasing

    def bucket(self, sequences: Path, embedded: Path, store: Path, name: str) -> None:
        """The keys of one bucket and, when all are there, its lengths and vectors, bit for bit."""
        with self._findings.check("keys") as problem:
            bucket = load_bucket(sequences, embedded, name)
            start, stop = self._range(name, len(bucket_names(sequences)))
            held = self._file["emb_keys"][start:stop]
            if not np.array_equal(held, bucket.keys):
                for key in np.setdiff1d(bucket.keys, held):
                    problem(f"bucket {name}: key {key.decode()} has no row")
                for key in np.setdiff1d(held, bucket.keys):
                    problem(
                        f"bucket {name}: key {text(key)} has a row, but is not in the input or "
                        "was skipped"
                    )
                return
            with self._findings.check("rows equal their parts") as differs:

                def compare() -> None:
                    located = locate(bucket, store)
                    self._columns(bucket, located, start, differs)
                    for block in blocks(located):
                        self._block(bucket, located, block, start, differs)

                despite_compact(compare)

    def _range(self, name: str, buckets: int) -> tuple[int, int]:
        """The rows whose keys fall into a bucket's range."""
        bounds = bucket_bounds(buckets)[int(name) : int(name) + 2]
        # 2**64 in hexadecimal would sort first: the end of the last bucket is the end of the file
        low, high = (
            self.count
            if bound == SPACE
            else bisect_left(self._file["emb_keys"], f"{bound:016x}".encode())
            for bound in bounds
        )
        return low, high

    def _columns(self, bucket: Bucket, located: Located, start: int, problem: Problem) -> None:
        stop = start + len(bucket.keys)
        self._checksums("emb_keys", start, checksums.of_rows(bucket.keys), problem)
        for name, expected in (("length", bucket.length), ("windows", located.windows)):
            self._checksums(name, start, checksums.of_rows(expected), problem)
            found = self._file[name][start:stop]
            for at in np.flatnonzero(found != expected).tolist():
                problem(f"row {start + at:,}: {name} is {found[at]}, expected {expected[at]}")
        if "offset" in self._file:
            counts = np.diff(self._file["offset"][start : stop + 1])
            for at in np.flatnonzero(counts != located.residues).tolist():
                problem(
                    f"row {start + at:,}: offset leaves room for {counts[at]} residues, not "
                    f"{located.residues[at]}"
                )

    def _checksums(self, name: str, start: int, expected: checksums.Sums, problem: Problem) -> None:
        kept = checksums.kept(self._file, name, np.arange(start, start + len(expected)))
        if kept is not None:
            for at in np.flatnonzero(kept != expected).tolist():
                problem(
                    f"row {start + at:,}: the checksum of {name} is not that of what its part holds"
                )

    def _block(
        self, bucket: Bucket, located: Located, block: Block, start: int, problem: Problem
    ) -> None:
        first, stop = start + block.start, start + block.stop
        for name, expected in block.bits.items():
            dataset = self._file["representations"][name]
            edges = np.arange(block.stop - block.start + 1)
            at = first
            if has_matrix(name):
                offset = self._file["offset"][first : stop + 1]
                if not np.array_equal(np.diff(offset), located.residues[block.start : block.stop]):
                    continue  # said by _columns
                edges, at = offset - offset[0], int(offset[0])
            sums = (
                checksums.of_sequences(expected, np.diff(edges))
                if has_matrix(name)
                else checksums.of_rows(expected)
            )
            self._checksums(name, first, sums, problem)
            found = read_bits(dataset, at, at + len(expected))
            same = np.logical_and.reduceat((found == expected).all(axis=1), edges[:-1])
            for row in np.flatnonzero(~same).tolist():
                part = located.parts[located.part[block.start + row]].name
                key = bucket.keys[block.start + row].decode()
                problem(f"row {first + row:,} of {name} (key {key}) differs from its part {part}")
            numbers = decode(found, self._plan.fingerprint.storage_dtype).astype(
                np.float32, copy=False
            )
            if name == SPANS:
                kept = stored_residues(
                    bucket.length[block.start : block.stop],
                    self._plan.fingerprint.long_sequences,
                )
                windows = located.windows[block.start : block.stop]
                for row in np.flatnonzero(wrong_spans(numbers, edges, kept, windows)).tolist():
                    key = bucket.keys[block.start + row].decode()
                    problem(
                        f"row {first + row:,} of {name} (key {key}): its tokens are not all its "
                        "letters, in their order"
                    )
            if name in self._norms:
                squares = np.add.reduceat(np.einsum("ij,ij->i", numbers, numbers), edges[:-1])
                self._norms[name][first:stop] = np.sqrt(squares / np.diff(edges))
            finite = np.logical_and.reduceat(np.isfinite(numbers).all(axis=1), edges[:-1])
            with self._findings.check("finite") as infinite:
                for row in np.flatnonzero(~finite).tolist():
                    key = bucket.keys[block.start + row].decode()
                    infinite(f"row {first + row:,} of {name} (key {key}) holds NaN or infinity")

    def norm_statistics(self) -> dict[str, Norms]:
        """How the vectors' norms are distributed, by representation; the farthest 100 are listed.
        Lets go of the norms.
        """
        keys = self._file["emb_keys"]
        return {name: distribution(self._norms.pop(name), keys) for name in list(self._norms)}
