"""Vectors as they should be stored, computed by the reference path of their family."""

from collections.abc import Sequence
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from plm_embed.fingerprint import SPANS, TOKEN_SCORES, Fingerprint, representation
from plm_embed.inference.pooling import pool
from plm_embed.models import weights
from plm_embed.models.family import ReferenceStates
from plm_embed.models.reference import all_states, token_scores
from plm_embed.sequence_windows import spans, whole


def hidden_states(
    folder: Path, sequences: Sequence[str], layers: Sequence[int]
) -> list[dict[int, Tensor]]:
    """Return representations (tokens, D) of each sequence after each of `layers`, fp32."""
    manifest, tensors, _ = weights.load(folder)
    model = manifest.as_model
    return model.family.reference.states(model, tensors, sequences, layers)


def reference_vectors(
    folder: Path,
    sequences: Sequence[str],
    fingerprint: Fingerprint,
    *,
    most_tokens: int | None = None,
    states_of: ReferenceStates | None = None,
    masked_tokens: int = 0,
) -> list[dict[str, NDArray[np.float32]]]:
    """Compute the vectors that should be stored for each sequence, before they are rounded to the
    storage dtype. The long-sequence policy must give each of them a vector.

    Keys are `fingerprint.representations`; values (D,), or (L, D) for per_residue. Nothing for a
    sequence with a piece of more than `most_tokens` (memory grows with their square) or than the
    model has positions for: letters do not tell their number where unknown ones are a token each.
    `states_of` computes in place of the family's reference. Scores have one number each; the
    pseudo-perplexity only of the shortest sequences, whose masked passes have at most
    `masked_tokens` together, those of the first one at most ten times as many.
    """
    manifest, tensors, head = weights.load(folder)
    model = manifest.as_model
    family, linker, last = model.family, fingerprint.linker, model.layers
    tokenizer = family.tokenizer.within(tensors)
    head = head if fingerprint.scores else None
    cuts = [spans(family.alphabet.length(text), fingerprint.long_sequences) for text in sequences]
    texts = [family.texts(text, cut, linker) for text, cut in zip(sequences, cuts, strict=True)]
    ids = [[tokenizer.tokenize(piece) for piece in pieces] for pieces in texts]
    fitting = [*range(len(texts))]
    if most_tokens is not None and not family.token_per_letter:
        limit = min(most_tokens, family.max_tokens or most_tokens)
        fitting = [i for i in fitting if max(map(len, ids[i])) <= limit]
    pieces = [piece for i in fitting for piece in texts[i]]
    layers = sorted({*fingerprint.layers} | ({last} if head else set()))
    compute = states_of or family.reference.states
    states = iter(compute(model, tensors, pieces, layers) if pieces else [])
    computed: list[dict[str, NDArray[np.float32]]] = [{} for _ in sequences]
    for i in fitting:
        place = family.linker_tokens(sequences[i], linker) if linker else None
        windows = []
        for tokens, by_layer in zip(ids[i], states, strict=False):
            rows = family.residues(len(tokens) - len(linker))
            values = {
                representation(pooling, layer): pool(pooling, by_layer[layer], rows, place).numpy()
                for pooling, layer in product(fingerprint.pooling, fingerprint.layers)
            }
            if head:
                scores = token_scores(model, head, by_layer[last], tokens)
                values[TOKEN_SCORES] = scores.numpy()
            if "per_token" in fingerprint.pooling:
                values[SPANS] = family.spans(tokenizer.letters, tokens)
            windows.append(values)
        computed[i] = whole(fingerprint, windows, cuts[i])
    if head and "pseudo_perplexity" in fingerprint.scores:
        order = sorted(range(len(texts)), key=lambda i: len(sequences[i]))
        for i in order:
            tokens = ids[i][0]
            first, stop = family.residues(len(tokens))
            passed = (stop - first) * len(tokens)
            if len(cuts[i]) > 1 or passed > masked_tokens * (10 if i == order[0] else 1):
                break
            masked_tokens -= passed
            copies, places = texts[i] * (stop - first), range(stop - first)
            masked = all_states(model, tensors, copies, [last], masked=places)
            logs = [
                token_scores(model, head, by_layer[last], tokens)[row, 0]
                for row, by_layer in enumerate(masked)
            ]
            computed[i]["pseudo_perplexity"] = np.exp([-np.mean(logs)]).astype(np.float32)
    return computed


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
