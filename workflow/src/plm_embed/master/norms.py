"""The norms of a master's vectors: their distribution, and the rows that are far from the rest."""

import h5py
import numpy as np
from numpy.typing import NDArray

from plm_embed.master.validation_record import Norms, Outlier

_FAR = 6.0  # an outlier's distance from the median log norm, in units of 1.4826 x MAD
_LEAST = 0.05  # of that unit: among near-equal sequences, norms that differ by 5 % are usual
_LISTED = 100


def distribution(norms: NDArray[np.float32], keys: h5py.Dataset) -> Norms:
    """Describe the vectors' norms (n,), in little more memory than these, for there may be 10^9 of
    them; the farthest outliers are listed.
    """
    logs = norms[np.isfinite(norms) & (norms > 0)]
    if not (rows := len(logs)):
        return Norms(rows=0, outliers=0, listed=())
    least, most = float(logs.min()), float(logs.max())
    median = np.median(np.log(logs, out=logs), overwrite_input=True)
    logs -= median
    scale = max(_LEAST, 1.4826 * np.median(np.abs(logs, out=logs), overwrite_input=True))
    del logs
    low, high = np.exp(median - _FAR * scale), np.exp(median + _FAR * scale)
    far = np.flatnonzero((norms > 0) & (norms < low) | (norms > high) & (norms < np.inf))
    z = (np.log(norms[far]) - median) / scale
    order = np.argsort(-np.abs(z), kind="stable")[:_LISTED]
    listed = (
        Outlier(
            row=row,
            key=keys[row].decode("ascii", "backslashreplace"),
            norm=float(norms[row]),
            z=round(distance, 1),
        )
        for row, distance in zip(far[order].tolist(), z[order].tolist(), strict=True)
    )
    return Norms(
        rows=rows,
        zero=int((norms == 0).sum()),
        min=least,
        median=float(np.exp(median)),
        max=most,
        outliers=len(far),
        listed=tuple(listed),
    )
