"""ESM-2, ESM-1b and ESM-1v as families: one alphabet of tokens, two architectures, three names.

The arithmetic is fair-esm 2.0.0's (`esm/model/esm2.py`, `esm/model/esm1.py`, `esm/modules.py`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from plm_embed.models.encoder.description import Encoder, Learned, Rotary
from plm_embed.models.families.esm import layouts
from plm_embed.models.families.esm.tokens import MASK, PAD, ROWS, VOCABULARY
from plm_embed.models.family import Family
from plm_embed.sequences.alphabet import PROTEIN

if TYPE_CHECKING:
    import torch

    from plm_embed.models.manifest import Manifest


def _reference(
    manifest: "Manifest",
    tensors: Mapping[str, "torch.Tensor"],
    sequences: Sequence[str],
    layers: Sequence[int],
) -> list[dict[int, "torch.Tensor"]]:
    from plm_embed.models.families.esm.reference import all_states

    return all_states(manifest, tensors, sequences, layers)


def _clear_mask(tensors: dict[str, "torch.Tensor"]) -> dict[str, "torch.Tensor"]:
    """Clear the learned row of <mask>, as fair-esm does on loading.

    It was never seen in training, where token dropout blanks it.
    """
    embedding = tensors["embed_tokens.weight"].clone()
    embedding[MASK] = 0
    return tensors | {"embed_tokens.weight": embedding}


_ESM2 = Encoder(ROWS, Rotary())
_ESM1B = Encoder(
    ROWS,
    Learned(1026, offset=PAD + 1),  # 1,024 tokens after the padding index
    embedding_norm="if found",  # of ESM-1b and ESM-1v only some checkpoints have it
)

ESM2 = Family(
    name="esm2",
    architecture="esm2",
    alphabet=PROTEIN,
    leading=len(VOCABULARY.prefix),
    trailing=len(VOCABULARY.suffix),
    max_residues=None,
    fill=PAD,
    tokenizer=VOCABULARY.tokenize,
    encoder=_ESM2,
    file="fair-esm",
    describe=layouts.describe,
    common_names=layouts.common_names,
    mend=lambda tensors: tensors,
    reference=_reference,
    reference_name="fair-esm",
    papers=(
        "Lin Z. et al. Evolutionary-scale prediction of atomic-level protein structure with a "
        "language model. Science 379, 1123-1130 (2023). doi:10.1126/science.ade2574",
    ),
)
ESM1B = replace(
    ESM2,
    name="esm1b",
    architecture="esm1b",
    max_residues=1022,
    encoder=_ESM1B,
    mend=_clear_mask,
    papers=(
        "Rives A. et al. Biological structure and function emerge from scaling unsupervised "
        "learning to 250 million protein sequences. PNAS 118, e2016239118 (2021). "
        "doi:10.1073/pnas.2016239118",
    ),
)
ESM1V = replace(
    ESM1B,
    name="esm1v",
    papers=(
        "Meier J. et al. Language models enable zero-shot prediction of the effects of mutations "
        "on protein function. NeurIPS 34 (2021).",
    ),
)
