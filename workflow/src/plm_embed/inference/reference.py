"""What should be stored for a sequence, computed by the reference path of its family."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from plm_embed.fingerprint import Fingerprint, representation
from plm_embed.inference.pooling import pool
from plm_embed.models import weights
from plm_embed.models.manifest import Manifest
from plm_embed.windows import combine, spans


def hidden_states(
    folder: Path, sequences: Sequence[str], layers: Sequence[int]
) -> list[dict[int, Tensor]]:
    """Representations (tokens, D) of each sequence after each of `layers`, fp32."""
    manifest, tensors = weights.load(folder)
    return manifest.family.reference(manifest, tensors, sequences, layers)


def reference_vectors(
    folder: Path, sequences: Sequence[str], fingerprint: Fingerprint
) -> list[dict[str, NDArray[np.float32]]]:
    """What should be stored for each sequence, before it is rounded to the storage dtype.

    Keys are `fingerprint.representations`; values (D,), or (L, D) for per_residue. Raises
    ValueError for a sequence that the long-sequence policy gives no vector.
    """
    where = [spans(len(sequence), fingerprint.long_sequences) for sequence in sequences]
    if not all(where):
        raise ValueError("the long-sequence policy gives one of these sequences no vector")
    pieces = [
        sequence[low:high]
        for sequence, cut in zip(sequences, where, strict=True)
        for low, high in cut
    ]
    manifest, tensors = weights.load(folder)
    family = manifest.family
    hidden = iter(family.reference(manifest, tensors, pieces, fingerprint.layers))
    found = []
    for cut in where:
        states = [next(hidden) for _ in cut]
        found.append(
            {
                representation(pooling, layer): combine(
                    pooling,
                    [
                        pool(pooling, state[layer], family.residues(len(state[layer]))).numpy()
                        for state in states
                    ],
                    cut,
                )
                for pooling in fingerprint.pooling
                for layer in fingerprint.layers
            }
        )
    return found


def last_means(
    manifest: Manifest, tensors: Mapping[str, Tensor], sequences: Sequence[str]
) -> NDArray[np.float32]:
    """Means over the residues after the last layer, (sequences, D)."""
    family = manifest.family
    states = [
        found[manifest.layers]
        for found in family.reference(manifest, tensors, sequences, [manifest.layers])
    ]
    return np.stack([pool("mean", state, family.residues(len(state))).numpy() for state in states])
