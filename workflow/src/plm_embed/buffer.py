"""Finished vectors that no part holds yet."""

import numpy as np
from numpy.typing import NDArray

from plm_embed.campaign import stored_residues
from plm_embed.errors import UserError
from plm_embed.fingerprint import Fingerprint
from plm_embed.parts import PartRows, is_per_residue


class Buffer:
    """Collects rows for one part; `bytes` is what they take as fp32."""

    def __init__(self, fingerprint: Fingerprint) -> None:
        self.keys: list[bytes] = []
        self.bytes = 0
        self._fingerprint = fingerprint
        self._largest = np.finfo(np.float16 if fingerprint.storage_dtype == "float16" else np.float32).max
        self._lengths: list[int] = []
        self._windows: list[int] = []
        self._vectors: dict[str, list[NDArray[np.float32]]] = {name: [] for name in fingerprint.representations}

    def add(self, key: bytes, length: int, windows: int, vectors: dict[str, NDArray[np.float32]]) -> None:
        """Take the vectors of one sequence; raise UserError when a number is not finite in the storage type."""
        for name, vector in vectors.items():
            if is_per_residue(name) and len(vector) != stored_residues(np.array([length]), self._fingerprint)[0]:
                raise RuntimeError(f"{name} of sequence {key.decode()}: {len(vector)} rows for {length} residues")
            largest = np.abs(vector).max()
            if not largest <= self._largest:  # NaN compares false
                raise UserError(
                    f"{name} of sequence {key.decode()} ({length} residues) is not finite or too large to store "
                    f"({largest:.3g})\nset embedding.compute_dtype and storage_dtype to float32; if they are, "
                    "suspect the device"
                )
            self._vectors[name].append(vector)
            self.bytes += vector.nbytes
        self.keys.append(key)
        self._lengths.append(length)
        self._windows.append(windows)

    def part(self) -> PartRows:
        return PartRows(
            keys=np.array(self.keys, dtype="S64"),
            length=np.array(self._lengths, dtype=np.int32),
            windows=np.array(self._windows, dtype=np.int32),
            representations={
                name: vectors if is_per_residue(name) else np.stack(vectors) for name, vectors in self._vectors.items()
            },
        )
