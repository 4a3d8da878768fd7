"""The check of all rows of a master: their keys, numbers, tokens and checksums against the parts,
and the distribution of their norms.
"""

from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from plm_embed.errors import delete
from plm_embed.fingerprint import SPANS
from plm_embed.master.campaign import Campaign, Piece, pieces
from plm_embed.master.validation_record import Norms, Outlier, Problem, Validation
from plm_embed.sequence_windows import stored_residues
from plm_embed.store import checksums
from plm_embed.store.hdf5 import decode, read_bits

Marks = NDArray[np.bool_]
_FAR = 6.0  # an outlier's distance from the median log norm, in units of 1.4826 x MAD
_LEAST = 0.05  # of that unit: among near-equal sequences, norms that differ by 5 % are usual
_LISTED = 20
_TINY = np.finfo(np.float32).tiny  # whose logarithm stands for that of 0


def check_rows(validation: Validation, file: h5py.File, campaign: Campaign) -> None:
    """Compare all rows with the parts, look whether their numbers are finite, and note the
    distribution of the vectors' norms.
    """
    again, fingerprint = delete(file.filename), campaign.fingerprint
    norms = {
        name: np.full(campaign.vectors, np.nan, dtype=np.float32)
        for name in fingerprint.representations
        if name != SPANS
    }
    with (
        validation.check(
            "keys",
            "Each distinct sequence has one row and no other row is there; rows are in order.",
            again,
        ) as wrong_key,
        validation.check("finite", "No vector holds NaN or infinity.") as not_finite,
        validation.check(
            "rows equal their parts",
            "Each vector is, bit for bit, the one that its job wrote.",
            again,
        ) as problem,
    ):
        every = pieces(map(campaign.bucket, campaign.rows), campaign.parts_folder)
        for piece in (piece for piece in every if len(piece.values)):
            name = piece.path.removeprefix("representations/")
            if name.startswith(checksums.GROUP) and checksums.GROUP not in file:
                continue  # a file of version 0.1
            stored = read_bits(file[piece.path], piece.start, piece.start + len(piece.values))
            numbers = stored
            if stored.ndim == 2:
                numbers = decode(stored, fingerprint.storage_dtype).astype(np.float32, copy=False)
            rows = slice(piece.first, piece.first + len(piece.counts))
            report = wrong_key if name == "emb_keys" else problem
            _note(report, file, piece, stored != piece.values, "differs from its part")
            if numbers.dtype.kind == "f":
                _note(not_finite, file, piece, ~np.isfinite(numbers), "holds NaN or infinity")
            if name == SPANS:
                letters = stored_residues(file["length"][rows], fingerprint.long_sequences)
                wrong = wrong_spans(numbers, piece.counts, letters, file["windows"][rows])
                wrong = np.repeat(wrong, piece.counts)
                _note(problem, file, piece, wrong, "its tokens are not all its letters, in order")
            elif name in norms:
                starts = np.cumsum(piece.counts) - piece.counts
                squares = np.add.reduceat(np.einsum("ij,ij->i", numbers, numbers), starts)
                norms[name][rows] = np.sqrt(squares / piece.counts)
        for name in list(norms):
            validation.norms[name] = distribution(norms.pop(name), file["emb_keys"])


def _note(problem: Problem, file: h5py.File, piece: Piece, wrong: Marks, fault: str) -> None:
    """Note a fault of the sequences of a piece that have a wrong number in their rows, (r,) or
    (r, D).
    """
    rows = wrong.reshape(len(wrong), -1).any(axis=1)
    marked = np.logical_or.reduceat(rows, np.cumsum(piece.counts) - piece.counts)
    for row in (piece.first + np.flatnonzero(marked)).tolist():
        key = f" (key {_text(file['emb_keys'][row])})" if piece.values.ndim == 2 else ""
        problem(f"row {row:,} of {piece.path.removeprefix('representations/')}{key}: {fault}")


def _text(key: bytes) -> str:
    """Return a key as it can be printed, whatever a damaged file says it is."""
    return key.decode("ascii", "backslashreplace")


def wrong_spans(
    stored: NDArray[np.floating[Any]],
    counts: NDArray[np.int64],
    letters: NDArray[np.int64],
    windows: NDArray[np.int32],
) -> Marks:
    """Mark the sequences (m,) whose tokens are not all their letters, by what holds for every
    tokenizer.

    stored (r, 2) as `sequence_windows.stored_spans`, of which each sequence has `counts` (m,)
    rows; letters (m,) that went through the model; windows (m,) as stored. Tokens begin with the
    first letter and end with the last. They follow each other without a gap; those of several
    windows may overlap or leave letters out, but go forward.
    """
    with np.errstate(invalid="ignore"):  # NaN becomes a number, and unlike itself below
        whole = stored.astype(np.int64)
    skipped, width = whole.T
    starts = np.cumsum(counts) - counts
    forward = skipped + np.concatenate(([1], width[:-1]))
    forward[starts] = 1 + skipped[starts]
    wrong = (whole != stored).any(axis=1) | (width < 1) | (forward < 1)
    wrong |= ~np.repeat(windows > 1, counts) & (skipped != 0)
    wrong[starts] |= skipped[starts] != 0
    wrong[starts] |= np.add.reduceat(skipped + width, starts) != letters
    marked: Marks = np.logical_or.reduceat(wrong, starts)
    return marked


def distribution(norms: NDArray[np.float32], keys: h5py.Dataset) -> Norms:
    """Describe the vectors' norms (n,), in little more memory than these, for there may be 10^9 of
    them.
    """
    finite = norms[np.isfinite(norms)]
    if not (rows := len(finite)):
        return Norms(rows=0, outliers=0, listed=())
    least, most = float(finite.min()), float(finite.max())
    logs = np.log(np.maximum(finite, _TINY, out=finite), out=finite)
    median = np.median(logs, overwrite_input=True)
    logs -= median
    scale = max(_LEAST, 1.4826 * np.median(np.abs(logs, out=logs), overwrite_input=True))
    del finite, logs
    low, high = np.exp(median - _FAR * scale), np.exp(median + _FAR * scale)
    far = np.flatnonzero((norms < low) | (norms > high) & (norms < np.inf))
    z = (np.log(np.maximum(norms[far], _TINY)) - median) / scale
    farthest = np.argsort(-np.abs(z), kind="stable")[:_LISTED].tolist()
    listed = tuple(
        Outlier(row=row, key=_text(keys[row]), norm=float(norms[row]), z=round(float(z[place]), 1))
        for place, row in zip(farthest, far[farthest].tolist(), strict=True)
    )
    return Norms(
        rows=rows,
        min=least,
        median=float(np.exp(median)),
        max=most,
        outliers=len(far),
        listed=listed,
    )
