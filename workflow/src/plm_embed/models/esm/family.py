"""ESM-2, ESM-1b and ESM-1v as families: one alphabet of tokens, two architectures, three names."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from plm_embed.fingerprint import ComputeDtype
from plm_embed.models.esm import layouts
from plm_embed.models.esm.tensors import tensor_shapes
from plm_embed.models.esm.tokens import LEADING, MASK, TRAILING, tokenize
from plm_embed.models.family import Family
from plm_embed.sequences.alphabet import PROTEIN

if TYPE_CHECKING:
    import torch

    from plm_embed.models.esm.engine import Engine
    from plm_embed.models.manifest import Manifest


def _engine(
    manifest: "Manifest",
    tensors: Mapping[str, "torch.Tensor"],
    device: "torch.device",
    dtype: ComputeDtype,
) -> "Engine":
    from plm_embed.models.esm.engine import Engine

    return Engine(manifest, tensors, device, dtype)


def _engine_name(manifest: "Manifest", device: "torch.device", dtype: ComputeDtype) -> str:
    from plm_embed.models.esm import engine

    return engine.name(manifest, device, dtype)


def _reference(
    manifest: "Manifest",
    tensors: Mapping[str, "torch.Tensor"],
    sequences: Sequence[str],
    layers: Sequence[int],
) -> list[dict[int, "torch.Tensor"]]:
    from plm_embed.models.esm.reference import all_states

    return all_states(manifest, tensors, sequences, layers)


def _clear_mask(tensors: dict[str, "torch.Tensor"]) -> dict[str, "torch.Tensor"]:
    """Clear the learned row of <mask>, as fair-esm does on loading.

    It was never seen in training, where token dropout blanks it.
    """
    embedding = tensors["embed_tokens.weight"].clone()
    embedding[MASK] = 0
    return tensors | {"embed_tokens.weight": embedding}


ESM2 = Family(
    name="esm2",
    architecture="esm2",
    alphabet=PROTEIN,
    leading=LEADING,
    trailing=TRAILING,
    max_residues=None,
    tokenize=tokenize,
    describe=layouts.describe,
    common_name=layouts.common_name,
    tensor_shapes=tensor_shapes,
    mend=lambda tensors: tensors,
    engine=_engine,
    engine_name=_engine_name,
    reference=_reference,
)
ESM1B = replace(ESM2, name="esm1b", architecture="esm1b", max_residues=1022, mend=_clear_mask)
ESM1V = replace(ESM1B, name="esm1v")
