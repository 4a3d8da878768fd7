"""Golden vectors of the very weights in use, and the check against them at the start of each job.

The published formulas in float64 give them once when the weights are prepared, and how far the
rounding of each compute dtype alone moves them. Every job compares its own device, kernel and dtype
with them before it computes anything that is kept.
"""

import hashlib
import io
import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from plm_embed.accuracy import FLOOR, Rounding, SelfTest, bound, remark
from plm_embed.errors import DeviceError, WeightsError
from plm_embed.fingerprint import ComputeDtype
from plm_embed.inference.pooling import pool_batch
from plm_embed.io.files import atomic_path
from plm_embed.io.json_files import write_sealed
from plm_embed.kernels.devices import device_name
from plm_embed.models.engine import Engine
from plm_embed.models.packed_batch import pack
from plm_embed.models.reference import all_states, token_scores
from plm_embed.models.tokens import Ids
from plm_embed.models.weights import (
    HEAD,
    MANIFEST,
    SELF_TEST,
    TENSORS,
    WEIGHTS_AGAIN,
    Manifest,
    Tensors,
)

log = logging.getLogger(__name__)
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
PAIR_TOKENS = 600
"""Tokens of each of two long sequences: a kernel that shares out its work by what else is in the
call shows it with these.
"""
PAIR_LAYERS = 2
"""Layers that the pair is taken through: every layer runs the same kernels, and on a CPU 600 tokens
take their time.
"""


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


def self_test(engine: Engine, manifest: Manifest, budget: int = 0) -> SelfTest:
    """Compare the engine with the golden vectors, in many places of a batch, and the bits of
    sequences in company with those of the same alone.

    A batch has two slices, or one where a `budget` of tokens allows no more.
    Raises DeviceError where the engine is farther off than the rounding of its dtype explains.
    """
    model, dtype, golden = engine.model, engine.precision, _golden(manifest)
    probes = [engine.tokenize(probe) for probe in PROBES[model.family.alphabet.name]]
    slices = 2 if not budget or budget >= 2 * engine.rows else 1
    longest = max(range(len(probes)), key=lambda number: len(probes[number]))
    numbers, means, invariant = _in_company(engine, probes, slices, model.layers, [longest])
    means, scores = means[:, : model.dim], means[:, model.dim :].double()
    expected = golden["mean"][numbers]
    cosine = float(torch.cosine_similarity(means, expected, dim=1).min())
    error = float(((means - expected).norm(dim=1) / expected.norm(dim=1)).max())
    score_error = None
    if "scores" in golden and engine.head:
        score_error = float((scores - golden["scores"][numbers]).abs().max())
    for kind, distance, unit, limit in (
        ("vectors", error, "", bound(dtype, manifest.roundings)),
        ("scores", score_error or 0.0, " nats", bound(dtype, manifest.roundings, "score")),
    ):
        if not distance <= limit:  # NaN compares false
            raise DeviceError(
                f"self-test failed on {device_name(engine.device)}: {kind} of {model.name} in "
                f"{dtype} differ from the reference by {distance:.1e}{unit}; rounding alone would "
                f"explain {limit:.1e}\n"
                "nothing was computed; exclude this node or device, or report this line; if the "
                f"code of this model was changed, delete {manifest.path}"
            )
    long = np.resize(np.concatenate(probes[:2]), PAIR_TOKENS)
    shifted = [probes[-1], long, long[::-1]]
    slices = max(slices, -(-sum(map(len, shifted)) // engine.rows))
    layers = min(PAIR_LAYERS, model.layers)
    invariant = invariant and _in_company(engine, shifted, slices, layers, [1, 2])[2]
    if not invariant:
        device = device_name(engine.device)
        log.warning("%s: the last bits of a vector depend on its batch here", device)
    if note := remark(dtype, manifest.roundings):
        log.warning("%s: %s", model.name, note)
    return SelfTest(
        relative_error=error,
        cosine=cosine,
        batch_invariant=invariant,
        attention=engine.attention.name,
        elementwise=engine.elementwise.name,
        rounding=note,
        score_error=score_error,
    )


def _golden(manifest: Manifest) -> dict[str, Tensor]:
    """Return the golden vectors of a weights folder. WeightsError when they are damaged."""
    path = manifest.path / SELF_TEST
    content = path.read_bytes() if path.is_file() else b""
    if hashlib.sha256(content).hexdigest() != manifest.self_test_sha256:
        remedy = WEIGHTS_AGAIN.format(manifest.path)
        words = f"{path} is missing, damaged or of other weights"
        raise WeightsError(words, remedy=remedy, path=path)
    with np.load(io.BytesIO(content)) as stored:
        return {name: torch.from_numpy(stored[name]) for name in stored.files}


def _in_company(
    engine: Engine, sequences: Sequence[Ids], slices: int, layer: int, alone: Sequence[int]
) -> tuple[list[int], Tensor, bool]:
    """Compute a batch of slices full of copies of sequences, in turn: some lie in the first rows,
    across the edge of two slices, or in the last rows. Some are computed `alone`, too.

    Returns the number of the sequence in each place, the means there (places, D), and whether all
    states and means of a sequence have equal bits.
    """
    free, numbers = slices * engine.rows, list[int]()
    turn, shortest = cycle(range(len(sequences))), min(map(len, sequences))
    while free >= shortest:
        number = next(turn)
        if len(sequences[number]) <= free:
            numbers.append(number)
            free -= len(sequences[number])
    states, means = _run(engine, [sequences[number] for number in numbers], layer)
    computed = [*zip(numbers, states, means, strict=True)]
    for number in alone:
        computed += zip([number], *_run(engine, [sequences[number]], layer), strict=True)
    first = {number: (state, mean) for number, state, mean in reversed(computed)}
    equal = all(
        torch.equal(state, first[number][0]) and torch.equal(mean, first[number][1])
        for number, state, mean in computed
    )
    return numbers, means.cpu(), equal


def _run(
    engine: Engine, pieces: Sequence[Ids], layer: int, exact: bool = False
) -> tuple[tuple[Tensor, ...], Tensor]:
    """Return the states (tokens, D) of each sequence, and the means (n, D), pooled as a job does
    it; as there, what float16 cannot hold is computed in float32. With a head, what comes out of
    the last layer is followed by TOKEN_SCORES: (tokens, D + 2), (n, D + 2).
    """
    batch = pack(pieces, engine.model.family, engine.rows).to(engine.device)
    hidden = engine.forward(batch, [layer], exact)[layer]
    if engine.head and layer == engine.model.layers:
        hidden = torch.cat([hidden, engine.token_scores(hidden, batch.tokens)], dim=1)
    states, means = batch.split(hidden), pool_batch("mean", hidden, batch)
    finite = means.isfinite().all(dim=1)
    if engine.precision == "float16" and not exact and not finite.all():
        singles, single_means = _run(engine, pieces, layer, exact=True)
        pairs = zip(finite.tolist(), states, singles, strict=True)
        states = tuple(half if good else single for good, half, single in pairs)
        means = torch.where(finite[:, None], means, single_means)
    return states, means
