"""Golden vectors of the very weights in use, which every job compares its own device with.

The published formulas in float64 give them once when the weights are prepared, and how far the
rounding of each compute dtype alone moves them.
"""

import hashlib
import io
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import cycle
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from plm_embed.accuracy import FLOOR, Rounding
from plm_embed.fingerprint import ComputeDtype
from plm_embed.io.files import atomic_path, write_sealed
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


def seal(folder: Path, manifest: Manifest) -> Manifest:
    """Complete a weights folder, which has its tensors. Embed the probes by the published formulas
    in float64; write their last-layer means, (probes, D) fp32, as golden vectors, and their scores,
    (probes, 2); measure how far the rounding of each compute dtype alone moves them; and write the
    manifest with both, last.
    """
    tensors, family = Tensors(folder / TENSORS), manifest.family
    head = Tensors(folder / HEAD) if manifest.head_sha256 else None
    sequences, layer = PROBES[family.alphabet.name], manifest.layers
    ids = [family.tokenizer.within(tensors).tokenize(sequence) for sequence in sequences]

    def probes(rounding: ComputeDtype | None) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Yield all tokens' representations (T, D) of each probe, and the means over its residues:
        of these (D,), and of its scores (2,), which are 0 without a head.
        """
        by_layer = all_states(manifest, tensors, sequences, [layer], rounding)
        for states, tokens in zip((states[layer] for states in by_layer), ids, strict=True):
            scores = torch.zeros(2, dtype=torch.float64)
            if head:
                scores = token_scores(manifest, head, states, tokens).mean(dim=0)
            yield states, states[slice(*family.residues(len(states)))].mean(dim=0), scores

    def distance(pairs: Sequence[tuple[Tensor, Tensor]]) -> float:
        worst = max(float((near - true).norm() / true.norm()) for near, true in pairs)
        return float(f"{worst:.4g}")

    exact = list(probes(None))
    golden = {"mean": np.stack([means.numpy() for _, means, _ in exact])}
    golden |= {"scores": np.stack([scores.numpy() for *_, scores in exact])} if head else {}
    memory = io.BytesIO()
    np.savez(memory, **golden)  # type: ignore[arg-type]
    with atomic_path(folder / SELF_TEST) as temporary:
        temporary.write_bytes(memory.getvalue())
    useless = Rounding(mean=1.0, tokens=1.0, cosine=0.0)
    roundings: dict[str, Rounding] = {}
    for dtype in FLOOR:
        rounded = zip(probes(dtype), exact, strict=True)
        pairs = [(near, true) for near, true in rounded if near[0].isfinite().all()]
        states, means, scores = ([(near[k], true[k]) for near, true in pairs] for k in range(3))
        worst = max((float((near - true).abs().max()) for near, true in scores), default=0.0)
        cosines = [float(torch.cosine_similarity(near, true, dim=0)) for near, true in means]
        roundings[dtype] = (
            useless
            if not pairs
            else Rounding(
                mean=distance(means),
                tokens=distance(states),
                cosine=round(min(cosines), 7),
                score=float(f"{worst:.4g}") if head else None,
            )
        )
    largest = torch.finfo(torch.float16).max
    if roundings["float16"] == useless and all(
        tensor.abs().max() <= largest for tensor in tensors.values() if tensor.is_floating_point()
    ):
        # what it cannot hold is computed in float32 with its weights, which have as many bits as
        # tfloat32's
        roundings["float16"] = roundings["tfloat32"]
    digest = hashlib.sha256(memory.getvalue()).hexdigest()
    manifest = replace(manifest, self_test_sha256=digest, roundings=roundings)
    write_sealed(folder / MANIFEST, manifest)
    return replace(manifest, folder=str(folder))
