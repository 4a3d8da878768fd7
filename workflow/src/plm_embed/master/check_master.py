"""Checks of a master against completion records and parts: every vector is there, once, in order,
and what its part holds.
"""

from bisect import bisect_left
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from plm_embed.errors import delete
from plm_embed.fingerprint import SPANS, has_matrix
from plm_embed.jobs.bucket import Bucket
from plm_embed.keys import SPACE, Keys, bucket_bounds
from plm_embed.master.attributes import attributes
from plm_embed.master.campaign import Campaign
from plm_embed.master.check import Findings, Problem, check, text
from plm_embed.master.validation_record import Norms, Outlier
from plm_embed.sequence_windows import stored_residues
from plm_embed.sequences.summary import bucket_names, read_summary
from plm_embed.store import checksums
from plm_embed.store.blocks import Located, blocks, locate
from plm_embed.store.hdf5 import Array, decode, read_bits, storage_dtype

_KEYS_AT_ONCE = 1 << 20
_FAR = 6.0  # an outlier's distance from the median log norm, in units of 1.4826 x MAD
_LEAST = 0.05  # of that unit
_OUTLIERS = 100


@check("attributes", "What that file says of itself (settings, inputs, versions) is true.")
def check_attributes(problem: Problem, file: h5py.File, campaign: Campaign) -> None:
    """Compare the attributes with completion records and inputs."""
    again = delete(Path(file.filename))
    try:
        checksums.check_attributes(file)
    except ValueError as error:
        problem(str(error), again)
    for name, expected in attributes(campaign, read_summary(campaign.sequences), {}).items():
        if name not in file.attrs:
            problem(f"{name} is missing", again)
            continue
        if name == "pooling_definition":  # words, which another version may have put otherwise
            continue
        value = file.attrs[name]
        plain = value.tolist() if isinstance(value, np.ndarray | np.generic) else value
        if plain != expected:
            message = f"{name} is {plain!r}, completion records and inputs say {expected!r}"
            problem(message, again)


@check(
    "shapes and types", "Each table in it has the rows, columns and number format that it should."
)
def check_layout(problem: Problem, file: h5py.File, campaign: Campaign) -> bool:
    """Look at the datasets; return whether vectors can be compared."""
    again, fingerprint = delete(Path(file.filename)), campaign.fingerprint
    count = file["emb_keys"].shape[0]
    if count != campaign.vectors:
        problem(f"{count:,} rows, but {campaign.vectors:,} sequences have a vector", again)
    if more := set(file["representations"]) - set(fingerprint.representations):
        for name in sorted(more):
            message = f"{name} is not among the representations of the fingerprint"
            problem(f"{message}: nothing vouches for it", again)
    wrong = []
    for name in ("length", "windows"):
        if file[name].shape != (count,):
            wrong.append(f"{name} has shape {file[name].shape} for {count:,} keys")
    for name in fingerprint.representations:
        dataset = file["representations"][name]
        rows = int(file["offset"][-1]) if has_matrix(name) else count
        if dataset.shape != (shape := (rows, campaign.dims.get(name, 0))):
            wrong.append(f"{name} has shape {dataset.shape}, expected {shape}")
        elif storage_dtype(dataset) != fingerprint.storage_dtype:
            dtype = fingerprint.storage_dtype
            wrong.append(f"{name} is stored as {dataset.dtype}, expected {dtype}")
    pooled = [name for name in fingerprint.representations if not has_matrix(name)]
    if pooled and file["emb"] != file["representations"][pooled[0]]:
        wrong.append(f"emb is not {pooled[0]}")
    for message in wrong:
        problem(message, again)
    return not wrong


@check("keys", "Each distinct sequence has one row and no other row is there; rows are in order.")
def check_order(problem: Problem, file: h5py.File) -> bool:
    """Return whether the keys are strictly increasing over the whole file."""
    again, before, increasing = delete(Path(file.filename)), b"", True
    for start in range(0, file["emb_keys"].shape[0], _KEYS_AT_ONCE):
        keys = file["emb_keys"][start : start + _KEYS_AT_ONCE]
        previous = np.concatenate([np.array([before], dtype="S64"), keys[:-1]])
        for place in np.flatnonzero(keys <= previous).tolist():
            increasing = False
            message = "a duplicate of" if keys[place] == previous[place] else "out of order after"
            row = f"row {start + place:,}: key {text(keys[place])}"
            problem(f"{row} is {message} {text(previous[place])}", again)
        before = keys[-1]
    return increasing


@check("keys", "Each distinct sequence has one row and no other row is there; rows are in order.")
def check_keys(problem: Problem, file: h5py.File, bucket: Bucket, buckets: int) -> int | None:
    """Return the first row of a bucket, None unless its rows are those of its keys."""
    column = file["emb_keys"]
    # 2**64 in hexadecimal would sort first: the end of the last bucket is the end of the file
    start, stop = (
        column.shape[0] if bound == SPACE else bisect_left(column, f"{bound:016x}".encode())
        for bound in bucket_bounds(buckets)[int(bucket.name) : int(bucket.name) + 2]
    )
    held = column[start:stop]
    if np.array_equal(held, bucket.keys):
        return start
    for key in np.setdiff1d(bucket.keys, held):
        message = f"bucket {bucket.name}: key {key.decode()} has no row"
        problem(message, delete(Path(file.filename)))
    for key in np.setdiff1d(held, bucket.keys):
        message = f"bucket {bucket.name}: key {text(key)} has a row, but is not in the input or"
        problem(f"{message} was skipped", delete(Path(file.filename)))
    return None


@check("finite", "No vector holds NaN or infinity.")
def check_finite(
    problem: Problem, name: str, numbers: Array, edges: NDArray[np.int64], keys: Keys, *, row: int
) -> None:
    """Look at the numbers of rows `row`, ...; those of a row lie between two of `edges`."""
    finite = np.logical_and.reduceat(np.isfinite(numbers).all(axis=1), edges[:-1])
    for place in np.flatnonzero(~finite).tolist():
        key = keys[place].decode()
        problem(f"row {row + place:,} of {name} (key {key}) holds NaN or infinity")


@check("rows equal their parts", "Each vector is, bit for bit, the one that its job wrote.")
def check_rows(
    problem: Problem, findings: Findings, file: h5py.File, campaign: Campaign
) -> dict[str, Norms]:
    """Compare all rows with the parts, bucket by bucket, and look whether their numbers are finite.

    Return how the vectors' norms are distributed, by representation.
    """
    again, fingerprint = delete(Path(file.filename)), campaign.fingerprint
    buckets, count = len(bucket_names(campaign.sequences)), file["emb_keys"].shape[0]
    norms = {
        name: np.full(count, np.nan, dtype=np.float32)
        for name in fingerprint.representations
        if name != SPANS
    }
    for bucket in map(campaign.bucket, campaign.rows):
        start = check_keys(findings, file, bucket, buckets)
        if start is None:
            continue
        located = locate(bucket, campaign.store)
        for row, message in _wrong_columns(file, bucket, located, start):
            problem(f"row {start + row:,}: {message}", again)
        for block in blocks(located):
            inside = slice(block.start, block.stop)
            first, keys = start + block.start, bucket.keys[inside]
            for name, expected in block.bits.items():
                edges, place = np.arange(len(keys) + 1), first
                sums = checksums.of_rows
                if has_matrix(name):
                    offset = file["offset"][first : first + len(keys) + 1]
                    edges, place = offset - offset[0], int(offset[0])
                    counts = np.diff(edges)
                    if not np.array_equal(counts, located.residues[inside]):
                        continue  # was told with the columns
                    sums = partial(checksums.of_sequences, counts=counts)
                dataset = file["representations"][name]
                stored = read_bits(dataset, place, place + len(expected))
                numbers = decode(stored, fingerprint.storage_dtype).astype(np.float32, copy=False)
                same = np.logical_and.reduceat((stored == expected).all(axis=1), edges[:-1])
                wrong = [(row, "differs from its part") for row in np.flatnonzero(~same).tolist()]
                wrong += _wrong_sums(file, name, first, sums(expected))
                if name == SPANS:
                    letters = stored_residues(bucket.length[inside], fingerprint.long_sequences)
                    bad = wrong_spans(numbers, edges, letters, located.windows[inside])
                    message = "its tokens are not all its letters, in their order"
                    wrong += [(row, message) for row in np.flatnonzero(bad).tolist()]
                else:
                    squares = np.add.reduceat(np.einsum("ij,ij->i", numbers, numbers), edges[:-1])
                    norms[name][first : first + len(keys)] = np.sqrt(squares / np.diff(edges))
                for row, message in wrong:
                    key = keys[row].decode()
                    problem(f"row {first + row:,} of {name} (key {key}): {message}", again)
                check_finite(findings, name, numbers, edges, keys, row=first)
    return {name: distribution(norms.pop(name), file["emb_keys"]) for name in list(norms)}


def _wrong_columns(
    file: h5py.File, bucket: Bucket, located: Located, start: int
) -> Iterator[tuple[int, str]]:
    """Rows of a bucket, counted from its first, where columns or their checksums are wrong."""
    stop = start + len(bucket.keys)
    columns = {"emb_keys": bucket.keys, "length": bucket.length, "windows": located.windows}
    for name, expected in columns.items():
        stored = file[name][start:stop]
        for row in np.flatnonzero(stored != expected).tolist():
            yield row, f"{name} is {stored[row]}, expected {expected[row]}"
        yield from _wrong_sums(file, name, start, checksums.of_rows(expected))
    if "offset" in file:
        counts = np.diff(file["offset"][start : stop + 1])
        for row in np.flatnonzero(counts != located.residues).tolist():
            yield row, f"offset leaves room for {counts[row]} residues, not {located.residues[row]}"


def _wrong_sums(
    file: h5py.File, name: str, start: int, expected: checksums.Sums
) -> list[tuple[int, str]]:
    """Rows from `start` on whose checksums in the master are not these (n,)."""
    sums = checksums.stored(file, name, np.arange(start, start + len(expected)))
    wrong = np.flatnonzero(sums != expected).tolist() if sums is not None else []
    return [(row, f"the checksum of {name} is not that of what its part holds") for row in wrong]


def wrong_spans(
    stored: NDArray[np.floating[Any]],
    edges: NDArray[np.int64],
    letters: NDArray[np.int64],
    windows: NDArray[np.int32],
) -> NDArray[np.bool_]:
    """Mark the sequences (n,) whose tokens are not all their letters, by what holds for every
    tokenizer.

    stored (r, 2) as `sequence_windows.stored_spans`; the rows of a sequence lie between two
    neighbors of edges (n + 1); letters (n,) that went through the model; windows (n,) as stored.
    Tokens begin with the first letter and end with the last. They follow each other without a gap;
    those of several windows may overlap or leave letters out, but go forward.
    """
    with np.errstate(invalid="ignore"):  # NaN becomes a number, and unlike itself below
        whole = stored.astype(np.int64)
    skipped, width = whole.T
    starts = edges[:-1]
    forward = skipped + np.concatenate(([1], width[:-1]))
    forward[starts] = 1 + skipped[starts]
    several = np.repeat(windows > 1, np.diff(edges))
    wrong = (whole != stored).any(axis=1) | (width < 1) | (forward < 1)
    wrong |= ~several & (skipped != 0)
    wrong[starts] |= skipped[starts] != 0
    wrong[starts] |= np.add.reduceat(skipped + width, starts) != letters
    marked: NDArray[np.bool_] = np.logical_or.reduceat(wrong, starts)
    return marked


def distribution(norms: NDArray[np.float32], keys: h5py.Dataset) -> Norms:
    """Describe the vectors' norms (n,), in little more memory than these; the farthest outliers
    are listed.
    """
    logs = norms[_valid(norms)]
    if not len(logs):
        return Norms(rows=0, outliers=0, listed=())
    rows, least, most = len(logs), float(logs.min()), float(logs.max())
    # in place, for there may be 10^9 of them
    median = np.median(np.log(logs, out=logs), overwrite_input=True)
    logs -= median
    # among near-equal sequences, norms that differ by less than 5 % are usual, too
    scale = max(_LEAST, 1.4826 * np.median(np.abs(logs, out=logs), overwrite_input=True))
    del logs
    outliers, worst, distances = 0, np.empty(0, np.int64), np.empty(0, np.float32)
    for start in range(0, len(norms), _KEYS_AT_ONCE):
        valid = start + np.flatnonzero(_valid(norms[start : start + _KEYS_AT_ONCE]))
        z = (np.log(norms[valid]) - median) / scale
        far = np.abs(z) > _FAR
        outliers += int(far.sum())
        worst, distances = np.append(worst, valid[far]), np.append(distances, z[far])
        order = np.argsort(-np.abs(distances), kind="stable")[:_OUTLIERS]
        worst, distances = worst[order], distances[order]
    return Norms(
        rows=rows,
        zero=int((norms == 0).sum()),
        min=least,
        median=float(np.exp(median)),
        max=most,
        outliers=outliers,
        listed=tuple(
            Outlier(row=row, key=text(keys[row]), norm=float(norms[row]), z=round(distance, 1))
            for row, distance in zip(worst.tolist(), distances.tolist(), strict=True)
        ),
    )


def _valid(norms: NDArray[np.float32]) -> NDArray[np.bool_]:
    return np.isfinite(norms) & (norms > 0)
