"""Spot checks: some sequences of a campaign, drawn at random, are computed by the reference path
and compared with the master.
"""

import logging
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Container, Iterator, Sequence
from functools import partial
from itertools import chain
from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from plm_embed.accuracy import STORED, allowed, bound
from plm_embed.errors import WeightsError
from plm_embed.fingerprint import SPANS, Fingerprint, has_matrix
from plm_embed.io.parquet import read_table, record_batches
from plm_embed.master.campaign import Campaign
from plm_embed.master.check import Problem, check
from plm_embed.master.validation_record import Spot
from plm_embed.models.registry import MODELS
from plm_embed.models.weights import read_manifest
from plm_embed.sequence_windows import spans
from plm_embed.sequences.summary import (
    bucket_names,
    check_keys,
    read_again,
    read_summary,
    verified,
)
from plm_embed.store.hdf5 import decode, read_bits

log = logging.getLogger(__name__)
Vectors = dict[str, NDArray[np.float32]]
"""Vectors by representation: (D,), or (L, D) where there is a matrix."""
Reference = Callable[[Path, list[str], Fingerprint], list[Vectors]]

SPOT_TOKENS = 2000
"""Most tokens of a piece of a sequence that is drawn: the reference holds heads x L x L numbers
several times, 2 GB at 40 heads.
"""
SPOT_MOST = 2500
"""Most tokens where letters do not tell the number of tokens, once these are counted."""
SPOT_PIECES = 10
"""Most pieces of a sequence, each as long as that."""
OWN = 2
"""A factor for what the rounding of the sequence itself allows: one sequence is less than the worst
of the probes. Of 12,000 comparisons with sharp weights, the worst came to 1.99.
"""
_ROWS = 1 << 10
"""Rows of a bucket in memory at a time."""


@check("spot checks", "Some vectors, drawn at random, agree with those of an independent program.")
def check_spots(  # noqa: PLR0917
    problem: Problem,
    file: h5py.File,
    campaign: Campaign,
    skipped: Container[bytes],
    weights: Path,
    count: int,
    reference: Reference | None = None,
) -> tuple[Spot, ...]:
    """Compare `count` rows of a master with what `reference` computes (default: that of the model's
    family, one sequence at a time); `skipped` keys have no row.

    The bound is that of the probes of the self-test of the prepared weights. Some sequences amplify
    rounding more than these: what lies beyond it is judged by the rounding of its own sequence.
    """
    fingerprint, dtype = campaign.fingerprint, campaign.fingerprint.compute_dtype
    drawn = draw(campaign.sequences, count, fingerprint.of_reference)
    if not drawn:
        return ()
    if not reference:
        from plm_embed.inference.reference import reference_vectors  # loads torch

        reference = partial(reference_vectors, most_tokens=SPOT_MOST)
    computed = reference(weights, list(drawn.values()), fingerprint.of_reference)
    spots: list[Spot] = []
    roundings = read_manifest(weights).roundings
    for (key, sequence), vectors in zip(drawn.items(), computed, strict=True):
        row = bisect_left(file["emb_keys"], key.encode())
        if row == campaign.vectors or file["emb_keys"][row] != key.encode():
            if key.encode() not in skipped:
                problem(f"key {key} has no row in the master")
            continue
        if not vectors:
            log.warning("spot checks: key %s has too many tokens for the reference", key)
        for name, vector in vectors.items():
            place = f"row {row:,} of {name} (key {key})"
            stored = _numbers(file, name, row, fingerprint)
            if stored.shape != vector.shape:
                problem(f"{place}: shape {stored.shape}, the reference gives {vector.shape}")
                continue
            if name == SPANS:
                if not np.array_equal(stored, vector):
                    problem(f"{place}: not the reference's tokens")
                continue
            norm, product = float(np.linalg.norm(vector)), float((stored * vector).sum())
            distance = float(np.linalg.norm(stored - vector)) / (norm or 1.0)
            cosine = product / (float(np.linalg.norm(stored)) * norm or 1.0)
            spot = Spot(row=row, key=key, representation=name, relative_l2=distance, cosine=cosine)
            spots.append(spot)
            limit = bound(dtype, roundings, tokens=not name.startswith("mean_"))
            limit += STORED[fingerprint.storage_dtype]
            if not distance <= limit:
                rounding = _rounding(weights, sequence, fingerprint, name)
                limit = max(limit, OWN * allowed(dtype, rounding))
            if not distance <= limit:
                problem(
                    f"{place}: relative distance {distance:.2g} to the reference, more than "
                    f"{limit:.2g} (cosine {cosine:.6f})"
                )
    return tuple(spots)


def draw(sequences: Path, count: int, fingerprint: Fingerprint) -> dict[str, str]:
    """Draw random sequences by key, the same on every repetition; buckets hold about as many each.

    Only such that the reference takes; fewer when there are not as many.
    """
    random = np.random.default_rng(int(fingerprint.id, 16))
    names = bucket_names(sequences)
    shares = Counter(random.integers(len(names), size=count).tolist())
    # where some of these hold too few that are short enough, the others are looked at, too
    rest = ((bucket, count) for bucket in random.permutation(len(names)).tolist())
    rows: dict[str, list[int]] = defaultdict(list)
    missing = count
    for bucket, share in chain(sorted(shares.items()), rest):
        if not missing:
            break
        name = names[bucket]
        short = np.setdiff1d(_short_rows(sequences, name, fingerprint), rows[name])
        chosen = random.permutation(short)[: min(share, missing)].tolist()
        rows[name] += chosen
        missing -= len(chosen)
    drawn = count - missing
    if drawn < min(count, read_summary(sequences).unique):
        log.warning("spot checks: only %d sequences are short enough for the reference", drawn)
    return {
        key: sequence
        for name in sorted(rows)
        for key, sequence in _sequences(sequences, name, sorted(rows[name]))
    }


def _short_rows(sequences: Path, name: str, fingerprint: Fingerprint) -> NDArray[np.int64]:
    """Return the rows of a bucket whose sequences have a vector and are not too long for the
    reference.
    """
    model, path = MODELS.get(fingerprint.model), sequences / "buckets" / f"{name}.parquet"
    most = SPOT_TOKENS * (model.family.letters_per_token if model else 1)
    lengths = read_table(path, ["length"], read_again(sequences))["length"].to_numpy()
    short = [
        length
        for length in np.unique(lengths).tolist()
        if length <= SPOT_PIECES * most
        and (pieces := spans(length, fingerprint.long_sequences))
        and max(stop - start for start, stop in pieces) <= most
    ]
    return np.flatnonzero(np.isin(lengths, short))


def _sequences(sequences: Path, name: str, rows: Sequence[int]) -> Iterator[tuple[str, str]]:
    """Read keys and sequences of rows of a bucket, of which few are in memory at a time."""
    if not rows:
        return
    path, first = verified(sequences, f"buckets/{name}.parquet"), 0
    for batch in record_batches(path, ["key", "sequence"], _ROWS, read_again(sequences)):
        inside = [row - first for row in rows if first <= row < first + batch.num_rows]
        chosen = pa.Table.from_batches([batch.take(pa.array(inside, pa.int64()))])
        check_keys(path, chosen)
        yield from zip(chosen["key"].to_pylist(), chosen["sequence"].to_pylist(), strict=True)
        first += batch.num_rows


def _numbers(file: h5py.File, name: str, row: int, fingerprint: Fingerprint) -> NDArray[np.float64]:
    """Return a stored vector (D,), or matrix (L, D) per residue."""
    start, stop = file["offset"][row : row + 2].tolist() if has_matrix(name) else (row, row + 1)
    bits = read_bits(file["representations"][name], start, stop)
    numbers: NDArray[np.float64] = decode(bits, fingerprint.storage_dtype).astype(np.float64)
    return numbers if has_matrix(name) else numbers[0]


def _rounding(weights: Path, sequence: str, fingerprint: Fingerprint, name: str) -> float:
    """Return how far rounding alone moves a representation of a sequence; without the weights 0, so
    that the probes' bound decides.
    """
    from plm_embed.inference.reference import rounding_distances  # loads torch

    try:
        return rounding_distances(weights, sequence, fingerprint)[name]
    except WeightsError:
        return 0.0
