"""How the norms of a master's vectors are distributed, and which are far from the rest."""

import h5py
import numpy as np
from numpy.typing import NDArray

from plm_embed.master.findings import text
from plm_embed.master.validation_record import Norms, Outlier

_FAR = 6.0  # an outlier's distance from the median log norm, in units of 1.4826 x MAD
_LISTED = 100
_AT_ONCE = 1 << 20


def distribution(norms: NDArray[np.float32], keys: h5py.Dataset) -> Norms:
    """Of the vectors' norms (n,), whose keys are in the dataset `keys`; the farthest 100 outliers
    are listed.
    """
    logs = norms[_valid(norms)]
    if not len(logs):
        return Norms(rows=0, outliers=0, listed=())
    rows, least, most = len(logs), float(logs.min()), float(logs.max())
    # in place, for there may be 10^9 of them
    median = np.median(np.log(logs, out=logs), overwrite_input=True)
    logs -= median
    scale = 1.4826 * np.median(np.abs(logs, out=logs), overwrite_input=True) or 1e-6
    del logs
    outliers, worst, distances = 0, np.empty(0, np.int64), np.empty(0, np.float32)
    for start in range(0, len(norms), _AT_ONCE):
        found = start + np.flatnonzero(_valid(norms[start : start + _AT_ONCE]))
        z = (np.log(norms[found]) - median) / scale
        far = np.abs(z) > _FAR
        outliers += int(far.sum())
        worst, distances = np.append(worst, found[far]), np.append(distances, z[far])
        order = np.argsort(-np.abs(distances), kind="stable")[:_LISTED]
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
