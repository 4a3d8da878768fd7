"""A family from its data."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from plm_embed.models.encoder.description import Encoder
from plm_embed.models.encoder.layouts import Published
from plm_embed.models.encoder.vocabulary import Vocabulary
from plm_embed.models.family import Family
from plm_embed.sequences.alphabet import PROTEIN

if TYPE_CHECKING:
    import torch

    from plm_embed.models.manifest import Manifest


def protein_family(
    name: str,
    vocabulary: Vocabulary,
    encoder: Encoder,
    published: Published,
    *,
    papers: tuple[str, ...],
    license: str,
    max_residues: int | None = None,
    bos: bool = True,
) -> Family:
    """A family whose tokens are residues between fixed special tokens."""
    return Family(
        name=name,
        architecture=published.architecture,
        alphabet=PROTEIN,
        leading=len(vocabulary.prefix),
        trailing=len(vocabulary.suffix),
        max_residues=max_residues,
        fill=vocabulary.first,
        tokenize=vocabulary.tokenize,
        encoder=encoder,
        file="tensors",
        describe=published.describe,
        common_names=published.common_names,
        mend=lambda tensors: tensors,
        reference=_reference,
        reference_name="the published formulas in float64",
        papers=papers,
        license=license,
        bos=bos,
    )


def _reference(
    manifest: "Manifest",
    tensors: Mapping[str, "torch.Tensor"],
    sequences: Sequence[str],
    layers: Sequence[int],
) -> list[dict[int, "torch.Tensor"]]:
    from plm_embed.models.encoder.reference import all_states

    return all_states(manifest, tensors, sequences, layers)
