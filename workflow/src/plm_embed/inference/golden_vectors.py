"""Golden vectors of the very weights in use, with which every job compares its own device, kernel
and dtype before it computes anything that is kept (`loading.self_test`).

The published formulas in float64 give them once when the weights are prepared, and how far the
rounding of each compute dtype alone moves them.
"""

import hashlib
import io
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from plm_embed.accuracy import FLOOR, Rounding
from plm_embed.errors import WeightsError
from plm_embed.fingerprint import ComputeDtype
from plm_embed.io.files import atomic_path
from plm_embed.io.json_files import write_sealed
from plm_embed.models.reference import all_states, token_scores
from plm_embed.models.weights import HEAD, MANIFEST, SELF_TEST, TENSORS, Manifest, Tensors

# human insulin B chain, ubiquitin (3Di: a helix, a fold of strands), and every letter of the
# alphabet that may reach a model
PROBES: dict[str, tuple[str, ...]] = {
    "protein": (
        "FVNQHLCGSHLVEALYLVCGERGFFYTPKT",
        "MQIFVKTLTGKTITLEVEPSDTIENVKAKIQDKEGIPPDQQRLIFAGKQLEDGRTLSDYNIQKESTLHLVLRLRGG",
        "MLAGVSERTIDPKQNFYMHWCXBUZO",
    ),
    "3di": (
        "DDPVVLCVLPVLLVQLLVVCVVVVHHSVVVVPD",
        "DKWWWAFPVGDIDIDDDAQADFQLVVLQVVCVVVVHHSVQKWKDAAPHTDDRPDGPVVVPPDDRGYIYIHGHPPDD",
        "ACDEFGHIKLMNPQRSTVWY",
    ),
    "dna": (
        "TTTGTGAACCAACACCTGTGCGGCTCACACCTGGTGGAAGCTCTCTACCTAGTGTGCGGGGAACGAGGCTTCTTCTACACACCCAAGACC",
        "ATGCAGATCTTCGTGAAGACTCTGACTGGTAAGACCATCACTCTCGAAGTGGAGCCGAGTGACACCATTGAGAATGTCAAGGCAAAGATC"
        "CAAGACAAGGAAGGCATCCCTCCTGACCAGCAGAGGTTGATCTTTGCTGGGAAACAGCTGGAAGATGGACGCACCCTGTCTGACTACAAC"
        "ATCCAGAAAGAGTCCACTCTGCACTTGGTCCTGCGCTTGAGGGGGGGT",
        "ACGTACGTACGTRYSWKMBDHVNACGTACGGCTCTAG",
    ),
}
PROBES["protein_3di"] = tuple(
    "".join(map("".join, zip(f"{residues}#", cycle(f"{states.lower()}#"), strict=False)))
    for residues, states in zip(PROBES["protein"], PROBES["3di"], strict=True)
)
USELESS = Rounding(mean=1.0, tokens=1.0, cosine=0.0)
"""Rounding to numbers of which none is finite."""


class Probe(NamedTuple):
    """Results of the formulas for a probe: representations of all tokens (T, D), the mean over its
    residues (D,), and the mean of its scores (2,), None without a head.
    """

    states: Tensor
    mean: Tensor
    scores: Tensor | None


def seal(folder: Path, manifest: Manifest) -> Manifest:
    """Complete a weights folder, which has its tensors. Embed the probes by the published formulas
    in float64; write their last-layer means, (probes, D) fp32, as golden vectors, and their scores,
    (probes, 2); measure how far the rounding of each compute dtype alone moves them; and write the
    manifest with both, last. WeightsError for golden vectors that are not finite.
    """
    model, tensors = manifest.as_model, Tensors(folder / TENSORS)
    head = Tensors(folder / HEAD) if manifest.head_sha256 else None
    family, layer = model.family, model.layers
    sequences = PROBES[family.alphabet.name]
    ids = [family.tokenizer.within(tensors).tokenize(sequence) for sequence in sequences]

    def probes(rounding: ComputeDtype | None) -> Iterator[Probe]:
        by_layer = all_states(model, tensors, sequences, [layer], rounding)
        for states, tokens in zip((states[layer] for states in by_layer), ids, strict=True):
            scores = token_scores(model, head, states, tokens).mean(dim=0) if head else None
            yield Probe(states, states[slice(*family.residues(len(states)))].mean(dim=0), scores)

    exact = list(probes(None))
    golden = {"mean": np.stack([probe.mean.numpy() for probe in exact])}
    if scores := [probe.scores.numpy() for probe in exact if probe.scores is not None]:
        golden["scores"] = np.stack(scores)
    finite = all(probe.states.isfinite().all() for probe in exact)
    if not (finite and all(np.isfinite(values).all() for values in golden.values())):
        origin = manifest.source.path or manifest.source.url
        raise WeightsError(
            f"weights: {origin} was not used: it gives NaN or infinite vectors in float64, so the "
            f"weights are wrong, or the family of {manifest.model}",
            path=folder,
        )
    memory = io.BytesIO()
    np.savez(memory, **golden)  # type: ignore[arg-type]
    with atomic_path(folder / SELF_TEST) as temporary:
        temporary.write_bytes(memory.getvalue())
    roundings: dict[str, Rounding] = {
        dtype: _rounding(list(zip(probes(dtype), exact, strict=True))) for dtype in FLOOR
    }
    largest = torch.finfo(torch.float16).max
    if roundings["float16"] == USELESS and all(
        tensor.abs().max() <= largest for tensor in tensors.values() if tensor.is_floating_point()
    ):
        # what it cannot hold is computed in float32 with its weights, which have as many bits as
        # tfloat32's
        roundings["float16"] = roundings["tfloat32"]
    digest = hashlib.sha256(memory.getvalue()).hexdigest()
    manifest = replace(manifest, self_test_sha256=digest, roundings=roundings)
    write_sealed(folder / MANIFEST, manifest)
    return replace(manifest, folder=str(folder))


def _rounding(pairs: Sequence[tuple[Probe, Probe]]) -> Rounding:
    """Measure how far rounded probes are from the exact ones. Those that are not finite count only
    where all are.
    """
    pairs = [(near, true) for near, true in pairs if near.states.isfinite().all()]
    if not pairs:
        return USELESS
    means, states, scores, cosines = [], [], [], []
    for near, true in pairs:
        means.append(float((near.mean - true.mean).norm() / true.mean.norm()))
        states.append(float((near.states - true.states).norm() / true.states.norm()))
        cosines.append(float(torch.cosine_similarity(near.mean, true.mean, dim=0)))
        if near.scores is not None and true.scores is not None:
            scores.append(float((near.scores - true.scores).abs().max()))
    mean, tokens = (float(f"{max(distances):.4g}") for distances in (means, states))
    score = float(f"{max(scores):.4g}") if scores else None
    return Rounding(mean, tokens, round(min(cosines), 7), score)
