"""How the norms of a master's vectors are distributed, and which are far from the rest."""

import h5py
import numpy as np
from numpy.typing import NDArray

from plm_embed.master.findings import text
from plm_embed.master.validation_record import Norms, Outlier

_FAR = 6.0  # an outlier's distance from the median log norm, in units of 1.4826 x MAD
_LISTED = 100


def distribution(norms: NDArray[np.float32], keys: h5py.Dataset) -> Norms:
    """Of the vectors' norms (n,), whose keys are in the dataset `keys`; the farthest 100 outliers
    are listed.
    """
    valid = np.flatnonzero(np.isfinite(norms) & (norms > 0))
    if not len(valid):
        return Norms(rows=0, outliers=0, listed=())
    logs = np.log(norms[valid])
    median = np.median(logs)
    scale = 1.4826 * np.median(np.abs(logs - median)) or 1e-6
    z = (logs - median) / scale
    far = np.flatnonzero(np.abs(z) > _FAR)
    worst = far[np.argsort(-np.abs(z[far]), kind="stable")][:_LISTED]
    return Norms(
        rows=len(valid),
        zero=int((norms == 0).sum()),
        min=float(norms[valid].min()),
        median=float(np.exp(median)),
        max=float(norms[valid].max()),
        outliers=len(far),
        listed=tuple(
            Outlier(
                row=int(valid[at]),
                key=text(keys[int(valid[at])]),
                norm=float(norms[valid[at]]),
                z=round(float(z[at]), 1),
            )
            for at in worst
        ),
    )
