"""The reference path: fair-esm's own modules in fp32, one sequence at a time.

The layers are loaded one after another, so that the memory needed is that of one layer, and even
the 15B model can be checked on an ordinary machine. What is computed is `esm.ESM2.forward` /
`esm.ProteinBertModel.forward`; a test compares with those on whole models.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from esm.modules import ESM1bLayerNorm, LearnedPositionalEmbedding, TransformerLayer
from torch import Tensor

from plm_embed.models.families.esm.tokens import PAD, VOCABULARY
from plm_embed.models.manifest import Manifest


@torch.inference_mode()
def all_states(
    manifest: Manifest,
    tensors: Mapping[str, Tensor],
    sequences: Sequence[str],
    layers: Sequence[int],
) -> list[dict[int, Tensor]]:
    """Representations (L + 2, D) of each sequence after each of `layers`, fp32."""
    found: list[dict[int, Tensor]] = [{} for _ in sequences]
    ids = [VOCABULARY.tokenize(sequence).astype(np.int64) for sequence in sequences]
    tokens = [torch.from_numpy(row)[None] for row in ids]
    states = [_embed(manifest, tensors, row) for row in tokens]  # each (1, T, D)
    _keep(found, states, 0, layers)
    block = TransformerLayer(
        manifest.dim,
        4 * manifest.dim,
        manifest.heads,
        add_bias_kv=False,
        use_esm1b_layer_norm=True,
        use_rotary_embeddings=manifest.architecture == "esm2",
    ).eval()
    after = ESM1bLayerNorm(manifest.dim)
    after.load_state_dict(_part(tensors, "emb_layer_norm_after."))
    for number in range(1, max(layers) + 1):
        # strict=False: the inverse frequencies of the rotary embedding are a constant buffer, not a
        # weight
        block.load_state_dict(_part(tensors, f"layers.{number - 1}."), strict=False)
        states = [block(state.transpose(0, 1))[0].transpose(0, 1) for state in states]
        _keep(
            found,
            [after(state) for state in states] if number == manifest.layers else states,
            number,
            layers,
        )
    return found


def _keep(
    found: list[dict[int, Tensor]], states: list[Tensor], number: int, layers: Sequence[int]
) -> None:
    if number in layers:
        for kept, state in zip(found, states, strict=True):
            kept[number] = state[0].clone()


def _embed(manifest: Manifest, tensors: Mapping[str, Tensor], tokens: Tensor) -> Tensor:
    x = torch.nn.functional.embedding(
        tokens, tensors["embed_tokens.weight"].float(), padding_idx=PAD
    )
    if manifest.token_dropout:
        x = x * (1 - 0.15 * 0.8)
    if manifest.architecture == "esm1b":
        table = tensors["embed_positions.weight"].float()
        positions = LearnedPositionalEmbedding(len(table) - PAD - 1, manifest.dim, PAD)
        positions.load_state_dict({"weight": table})
        x = x + positions(tokens)
    if "emb_layer_norm_before.weight" in tensors:
        before = ESM1bLayerNorm(manifest.dim)
        before.load_state_dict(_part(tensors, "emb_layer_norm_before."))
        x = before(x)
    return x


def _part(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {
        name.removeprefix(prefix): tensors[name].float()
        for name in tensors
        if name.startswith(prefix)
    }
