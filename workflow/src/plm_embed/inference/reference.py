"""Vectors as they should be stored, computed by the reference path of their family."""

from collections.abc import Sequence
from functools import partial
from itertools import repeat
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from plm_embed.fingerprint import SPANS, TOKEN_SCORES, Fingerprint, representation
from plm_embed.inference.pooling import pool
from plm_embed.models import weights
from plm_embed.models.family import Reference
from plm_embed.models.reference import all_states, token_scores
from plm_embed.sequence_windows import spans, whole


def hidden_states(
    folder: Path, sequences: Sequence[str], layers: Sequence[int]
) -> list[dict[int, Tensor]]:
    """Return representations (tokens, D) of each sequence after each of `layers`, fp32."""
    manifest, tensors = weights.load(folder)
    return manifest.family.reference(manifest, tensors, sequences, layers)


def reference_vectors(
    folder: Path,
    sequences: Sequence[str],
    fingerprint: Fingerprint,
    *,
    most_tokens: int | None = None,
    states_of: Reference | None = None,
    masked_tokens: int = 0,
) -> list[dict[str, NDArray[np.float32]]]:
    """Compute the vectors that should be stored for each sequence, before they are rounded to the
    storage dtype.

    Keys are `fingerprint.representations`; values (D,), or (L, D) for per_residue. Nothing for a
    sequence with a piece of more than `most_tokens` (memory grows with their square) or than the
    model has positions for: letters do not tell their number where unknown ones are a token each.
    `states_of` computes in place of the family's reference. Scores have one number each; the
    pseudo-perplexity only of the shortest sequences, whose masked passes have at most
    `masked_tokens` together. Raises ValueError for a sequence that the long-sequence policy gives
    no vector.
    """
    manifest, tensors = weights.load(folder)
    family, linker = manifest.family, fingerprint.linker
    lengths = map(family.alphabet.length, sequences)
    cuts = [spans(length, fingerprint.long_sequences) for length in lengths]
    if not all(cuts):
        raise ValueError("the long-sequence policy gives one of these sequences no vector")
    texts = [
        family.texts(sequence, cut, linker) for sequence, cut in zip(sequences, cuts, strict=True)
    ]
    fits = [True] * len(texts)
    if most_tokens is not None and not family.token_per_letter:
        tokenize = family.tokenizer.within(tensors).tokenize
        limit = min(most_tokens, family.max_tokens or most_tokens)
        fits = [all(len(tokenize(piece)) <= limit for piece in pieces) for pieces in texts]
    pieces = [piece for cut, fit in zip(texts, fits, strict=True) if fit for piece in cut]
    compute = states_of or family.reference
    head = weights.load_head(folder) if fingerprint.scores else None
    layers = [*fingerprint.layers]
    if head and manifest.layers not in layers:
        layers.append(manifest.layers)
    hidden = compute(manifest, tensors, pieces, layers) if pieces else []
    # a pair of chains is one piece
    places = [family.linker_tokens(pair, linker) for pair in sequences] if linker else repeat(None)
    vectors = [
        {
            representation(pooling, layer): pool(
                pooling, state, family.residues(len(state) - len(linker)), place
            ).numpy()
            for pooling in fingerprint.pooling
            for layer, state in states.items()
            if layer in fingerprint.layers
        }
        for states, place in zip(hidden, places, strict=False)
    ]
    if head:
        tokenize = family.tokenizer.within(tensors).tokenize
        for values, states, piece in zip(vectors, hidden, pieces, strict=True):
            scores = token_scores(manifest, head, states[manifest.layers], tokenize(piece))
            values[TOKEN_SCORES] = scores.numpy()
    if "per_token" in fingerprint.pooling:
        tokens = family.tokenizer.within(tensors)
        for values, piece in zip(vectors, pieces, strict=True):
            values[SPANS] = family.spans(tokens.letters, tokens.tokenize(piece))
    computed = iter(vectors)
    complete = [
        whole(fingerprint, [next(computed) for _ in cut], cut) if fit else {}
        for cut, fit in zip(cuts, fits, strict=True)
    ]
    if head and "pseudo_perplexity" in fingerprint.scores:
        for i in sorted(range(len(texts)), key=lambda i: len(sequences[i])):
            text, *windows = texts[i]
            length = len(text)
            masked_tokens -= length * family.tokens(length)
            if windows or masked_tokens < 0:
                break
            last, copies = manifest.layers, [text] * length
            hidden = all_states(manifest, tensors, copies, [last], masked=range(length))
            logs = [
                token_scores(manifest, head, states[last], tokenize(text))[place, 0]
                for place, states in enumerate(hidden)
            ]
            complete[i]["pseudo_perplexity"] = np.exp([-np.mean(logs)]).astype(np.float32)
    return complete


def rounding_distances(folder: Path, sequence: str, fingerprint: Fingerprint) -> dict[str, float]:
    """Return how far the rounding of the compute dtype alone moves the vectors of a sequence:
    relative L2 distances by representation, of scores too.
    """
    exact, rounded = (
        reference_vectors(
            folder, [sequence], fingerprint, states_of=partial(all_states, rounding=rounding)
        )[0]
        for rounding in (None, fingerprint.compute_dtype)
    )
    return {
        name: float(np.linalg.norm(rounded[name] - exact[name]) / np.linalg.norm(exact[name]))
        for name in exact
    }
