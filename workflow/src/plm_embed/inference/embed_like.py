"""Sequences embedded as a master or a store holds its vectors, to be compared with them."""

from pathlib import Path
from typing import cast, get_args

import numpy as np
import torch

from plm_embed.errors import WeightsError
from plm_embed.fingerprint import Fingerprint, Pooling, has_matrix, pooling_and_layer
from plm_embed.inference.inputs import Given, named_sequences
from plm_embed.inference.language_model import Array, LanguageModel
from plm_embed.inference.settings import known
from plm_embed.inference.weights import prepared_weights, with_sha256
from plm_embed.models.manifest import read_manifest
from plm_embed.models.registry import find_model
from plm_embed.sequences.settings import OnError
from plm_embed.store.hdf5 import decode, encode


def embed_like(
    fingerprint: Fingerprint,
    name: str,
    sequences: Given,
    weights: str | Path | None,
    on_error: OnError = "raise",
) -> tuple[list[str], Array]:
    """Names (q) and vectors (q, D) of sequences as a master or store of this fingerprint holds them
    as `name`, rounded as there. A name is an id, or else the sequence's number, from 1.

    `weights` as in `prepared_weights`; None: these very weights in the cache, else a download.
    `on_error` as in `plm_embed.embed`; what is skipped has no row and no name.
    WeightsError unless they are the very weights of the fingerprint.
    """
    known("on_error", on_error, get_args(OnError))
    weights = weights or with_sha256(fingerprint.model, fingerprint.weights_sha256)
    folder = prepared_weights(find_model(fingerprint.model), weights)
    if (found := read_manifest(folder).weights_sha256) != fingerprint.weights_sha256:
        raise WeightsError(
            f"{folder} holds other weights of {fingerprint.model} ({found[:12]}) than those that "
            f"made these vectors ({fingerprint.weights_sha256[:12]})",
            path=folder,
            remedy="name theirs (weights=..., or --weights)",
        )
    pooled = next(each for each in fingerprint.representations if not has_matrix(each))
    pooling, layer = pooling_and_layer(pooled if name == "emb" else name)
    dtype = fingerprint.compute_dtype
    if dtype == "tfloat32" and not torch.cuda.is_available():
        dtype = "float32"
    with LanguageModel(folder, "auto", dtype, strand=fingerprint.strand) as model:
        named = list(named_sequences(sequences, model.policy))
        like = model.fingerprint(cast(Pooling, pooling), layer, fingerprint.long_sequences)
        computed = model.vectors(named, like, on_error)
    vectors = [next(iter(each.values())) for each in computed if each]
    matrix = np.array(vectors, np.float32).reshape(len(vectors), model.manifest.dim)
    bits = encode(matrix, fingerprint.storage_dtype)
    labels = [
        one.id or str(one.number) for one, found in zip(named, computed, strict=True) if found
    ]
    return labels, decode(bits, fingerprint.storage_dtype).astype(np.float32)
