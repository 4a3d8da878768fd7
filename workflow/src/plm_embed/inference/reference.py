"""What should be stored for a sequence, computed by the reference path of its family."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from plm_embed.fingerprint import Fingerprint
from plm_embed.inference.pooling import pool
from plm_embed.models.esm.reference import all_states, hidden_states
from plm_embed.models.manifest import Manifest
from plm_embed.windows import combine, spans


def reference_vectors(
    folder: Path, sequences: Sequence[str], fingerprint: Fingerprint
) -> list[dict[str, NDArray[np.float32]]]:
    """What should be stored for each sequence, before it is rounded to the storage dtype.

    Keys are `fingerprint.representations`; values (D,), or (L, D) for per_residue. Raises ValueError for a sequence
    that the long-sequence policy gives no vector.
    """
    where = [spans(len(sequence), fingerprint.long_sequences) for sequence in sequences]
    if not all(where):
        raise ValueError("the long-sequence policy gives one of these sequences no vector")
    pieces = [sequence[low:high] for sequence, cut in zip(sequences, where, strict=True) for low, high in cut]
    hidden = iter(hidden_states(folder, pieces, fingerprint.layers))
    found = []
    for cut in where:
        states = [next(hidden) for _ in cut]
        found.append(
            {
                f"{pooling}_l{layer}": combine(pooling, [pool(pooling, state[layer]).numpy() for state in states], cut)
                for pooling in fingerprint.pooling
                for layer in fingerprint.layers
            }
        )
    return found


def last_means(manifest: Manifest, tensors: Mapping[str, Tensor], sequences: Sequence[str]) -> NDArray[np.float32]:
    """Means over the residues after the last layer, (sequences, D)."""
    states = all_states(manifest, tensors, sequences, [manifest.layers])
    return np.stack([pool("mean", state[manifest.layers]).numpy() for state in states])
