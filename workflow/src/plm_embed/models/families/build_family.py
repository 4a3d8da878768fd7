"""Families from their data."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from plm_embed.models.encoder.description import Encoder
from plm_embed.models.encoder.layouts import Published
from plm_embed.models.encoder.vocabulary import Vocabulary
from plm_embed.models.family import Family
from plm_embed.models.tokenizer_file import TokenizerFile
from plm_embed.sequences.alphabet import DNA, PROTEIN

if TYPE_CHECKING:
    import torch

    from plm_embed.models.manifest import Manifest


def _reference(
    manifest: "Manifest",
    tensors: Mapping[str, "torch.Tensor"],
    sequences: Sequence[str],
    layers: Sequence[int],
) -> list[dict[int, "torch.Tensor"]]:
    from plm_embed.models.encoder.reference import all_states

    return all_states(manifest, tensors, sequences, layers)


_BY_FORMULAS = partial(
    Family,
    file="tensors",
    mend=lambda tensors: tensors,
    reference=_reference,
    reference_name="the published formulas in float64",
)


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
    return _BY_FORMULAS(
        name=name,
        architecture=published.architecture,
        alphabet=PROTEIN,
        leading=len(vocabulary.prefix),
        trailing=len(vocabulary.suffix),
        max_residues=max_residues,
        fill=vocabulary.first,
        tokenizer=vocabulary.tokenize,
        encoder=encoder,
        describe=published.describe,
        common_names=published.common_names,
        papers=papers,
        license=license,
        bos=bos,
    )


def dna_family(
    name: str,
    tokenizer: TokenizerFile,
    letters_per_token: int,
    encoder: Encoder,
    published: Published,
    *,
    trailing: int,
    papers: tuple[str, ...],
    license: str,
    max_tokens: int | None = None,
) -> Family:
    """A family of DNA models, whose tokens are of several bases, after one that stands for the
    whole sequence.
    """
    return _BY_FORMULAS(
        name=name,
        architecture=published.architecture,
        alphabet=DNA,
        leading=1,
        trailing=trailing,
        max_residues=None
        if max_tokens is None
        else (max_tokens - 1 - trailing) * letters_per_token,
        fill=0,
        tokenizer=tokenizer,
        encoder=encoder,
        describe=published.describe,
        common_names=published.common_names,
        papers=papers,
        license=license,
        letters_per_token=letters_per_token,
        max_tokens=max_tokens,
    )
