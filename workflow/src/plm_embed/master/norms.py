"""The norms of a master's vectors: their distribution, and the rows that are far from the rest."""

import h5py
import numpy as np
from numpy.typing import NDArray

from plm_embed.master.validation_record import Norms, Outlier

_ROWS = 1 << 20
_FAR = 6.0  # an outlier's distance from the median log norm, in units of 1.4826 x MAD
_LEAST = 0.05  # of that unit: among near-equal sequences, norms that differ by 5 % are usual
_LISTED = 100


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
    scale = max(_LEAST, 1.4826 * np.median(np.abs(logs, out=logs), overwrite_input=True))
    del logs
    outliers, worst, distances = 0, np.empty(0, np.int64), np.empty(0, np.float32)
    for start in range(0, len(norms), _ROWS):
        valid = start + np.flatnonzero(_valid(norms[start : start + _ROWS]))
        z = (np.log(norms[valid]) - median) / scale
        far = np.abs(z) > _FAR
        outliers += int(far.sum())
        worst, distances = np.append(worst, valid[far]), np.append(distances, z[far])
        order = np.argsort(-np.abs(distances), kind="stable")[:_LISTED]
        worst, distances = worst[order], distances[order]
    listed = (
        Outlier(
            row=row,
            key=keys[row].decode("ascii", "backslashreplace"),
            norm=float(norms[row]),
            z=round(distance, 1),
        )
        for row, distance in zip(worst.tolist(), distances.tolist(), strict=True)
    )
    return Norms(
        rows=rows,
        zero=int((norms == 0).sum()),
        min=least,
        median=float(np.exp(median)),
        max=most,
        outliers=outliers,
        listed=tuple(listed),
    )


def _valid(norms: NDArray[np.float32]) -> NDArray[np.bool_]:
    return np.isfinite(norms) & (norms > 0)
