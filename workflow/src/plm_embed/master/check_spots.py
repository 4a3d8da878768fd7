"""Rows of the master against what the reference path computed for their sequences."""

import logging
from bisect import bisect_left
from collections.abc import Callable, Container, Mapping

import h5py
import numpy as np
from numpy.typing import NDArray

from plm_embed.accuracy import STORED, Roundings, allowed, bound
from plm_embed.errors import EMBED_AGAIN
from plm_embed.fingerprint import SPANS, Fingerprint, StorageDtype, has_matrix
from plm_embed.master.expected_vectors import Expected
from plm_embed.master.findings import Findings
from plm_embed.master.validation_record import Spot
from plm_embed.store.hdf5 import decode, read_bits

log = logging.getLogger(__name__)
OWN = 2
"""Of what the rounding of the sequence itself allows: one sequence is less than the worst of the
probes. Of 12,000 comparisons with sharp weights, the worst came to 1.99.
"""


def check_spots(  # noqa: PLR0917
    findings: Findings,
    fingerprint: Fingerprint,
    skipped: Container[bytes],
    file: h5py.File,
    expected: Expected,
    roundings: Roundings | None,
    rounding_of: Callable[[str], Mapping[str, float]],
) -> tuple[Spot, ...]:
    """Compare rows of a master with what the reference path computed for them. Keys that were
    `skipped` have none.

    The bound is that of the probes of the weights' self-test. Some sequences amplify rounding more
    than these: what lies beyond it is judged by the rounding of its own sequence, by
    representation, which `rounding_of` computes for a key.
    """
    spots: list[Spot] = []
    with findings.check("spot checks") as problem:
        if expected.fingerprint != fingerprint.of_reference:
            differences = expected.fingerprint.differences(fingerprint.of_reference)
            said = f"the reference (here) computed other vectors ({'; '.join(differences)})"
            # which of the two has the settings of the configuration, nothing here can tell
            problem(f"{said}; {expected.again}, or if the master has old settings, {EMBED_AGAIN}")
            return ()
        for key, wanted in expected.vectors.items():
            row = _row(file["emb_keys"], key.encode())
            if row is None and key.encode() not in skipped:
                problem(f"key {key} has no row in the master")
            if row is None:
                continue
            if not wanted:
                log.warning("spot checks: key %s has too many tokens for the reference", key)
                continue
            for name in fingerprint.representations:
                found = _numbers(file, name, row, fingerprint.storage_dtype)
                if found.shape != wanted[name].shape:
                    problem(
                        f"row {row:,} of {name}: shape {found.shape}, the reference gives "
                        f"{wanted[name].shape}"
                    )
                    continue
                if name == SPANS:
                    if not np.array_equal(found, wanted[name]):
                        problem(f"row {row:,} of {name} (key {key}): not the reference's tokens")
                    continue
                relative_l2, cosine = _distance(found, wanted[name])
                spot = Spot(
                    row=row, key=key, representation=name, relative_l2=relative_l2, cosine=cosine
                )
                spots.append(spot)
                limit = STORED[fingerprint.storage_dtype] + bound(
                    fingerprint.compute_dtype, roundings, tokens=not name.startswith("mean_")
                )
                if not relative_l2 <= limit:
                    rounding = rounding_of(key)[name]
                    limit = max(limit, OWN * allowed(fingerprint.compute_dtype, rounding))
                if not relative_l2 <= limit:
                    problem(
                        f"row {row:,} of {name} (key {key}): relative distance {relative_l2:.2g} "
                        f"to the reference, more than {limit:.2g} (cosine {cosine:.6f})"
                    )
    return tuple(spots)


def _numbers(file: h5py.File, name: str, row: int, dtype: StorageDtype) -> NDArray[np.float64]:
    """One stored vector (D,), or matrix (L, D) per residue."""
    dataset = file["representations"][name]
    if has_matrix(name):
        start, stop = file["offset"][row : row + 2].tolist()
        return decode(read_bits(dataset, start, stop), dtype).astype(np.float64)
    vector: NDArray[np.float64] = decode(read_bits(dataset, row, row + 1), dtype)[0].astype(
        np.float64
    )
    return vector


def _distance(found: NDArray[np.float64], expected: NDArray[np.float32]) -> tuple[float, float]:
    """Relative L2 distance and cosine."""
    wanted = expected.astype(np.float64)
    lengths = float(np.linalg.norm(found)), float(np.linalg.norm(wanted))
    difference = float(np.linalg.norm(found - wanted))
    cosine = float((found * wanted).sum()) / (lengths[0] * lengths[1] or 1.0)
    return difference / (lengths[1] or 1.0), cosine


def _row(keys: h5py.Dataset, key: bytes) -> int | None:
    row = bisect_left(keys, key)
    return row if row < len(keys) and keys[row] == key else None
