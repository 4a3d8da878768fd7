"""Golden vectors of the very weights in use, and the check against them at the start of each job.

The published formulas in float64 give them once when the weights are prepared, and how far the
rounding of each compute dtype alone moves them. Every job compares its own device, kernel and dtype
with them before it computes anything that is kept.
"""

import hashlib
import io
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from plm_embed.accuracy import FLOOR, Rounding, SelfTest, bound, remark
from plm_embed.errors import DeviceError, WeightsError
from plm_embed.fingerprint import ComputeDtype
from plm_embed.inference.pooling import pool, pool_batch
from plm_embed.io.files import atomic_path
from plm_embed.kernels.devices import device_name
from plm_embed.models import reference
from plm_embed.models.engine import Engine
from plm_embed.models.manifest import SELF_TEST, Manifest, weights_again
from plm_embed.models.tokens import Ids

log = logging.getLogger(__name__)
# human insulin B chain, ubiquitin (3Di: a helix, a fold of strands), and every letter of the
# alphabet that may reach a model
PROBES = {
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
PAIR_TOKENS = 600
"""Tokens of each of two long sequences: a kernel that shares out its work by what else is in the
call shows it with these.
"""
PAIR_LAYERS = 2
"""Layers that the pair is taken through: every layer runs the same kernels, and on a CPU 600 tokens
take their time.
"""


def measure(folder: Path, manifest: Manifest, tensors: Mapping[str, torch.Tensor]) -> Manifest:
    """Embed the probes by the published formulas in float64; write their last-layer means,
    (probes, D) fp32, beside the weights, and measure how far each compute dtype moves them.

    Returns the manifest with both. The file is left alone when it is right already.
    """
    exact = formulas(manifest, tensors)
    memory = io.BytesIO()
    np.savez(memory, mean=np.stack([mean.numpy() for _, mean in exact]))
    content, path = memory.getvalue(), folder / SELF_TEST
    if not path.is_file() or path.read_bytes() != content:
        with atomic_path(path) as temporary:
            temporary.write_bytes(content)
    return replace(
        manifest,
        self_test_sha256=hashlib.sha256(content).hexdigest(),
        roundings=measure_roundings(manifest, tensors, exact),
    )


def measure_roundings(
    manifest: Manifest, tensors: Mapping[str, torch.Tensor], exact: "States"
) -> dict[str, Rounding]:
    """Measure on the probes how far the rounding of each compute dtype alone moves their vectors:
    the published formulas with rounded products beside the same formulas in float64.
    """
    measured = {dtype: _apart(formulas(manifest, tensors, dtype), exact) for dtype in FLOOR}
    useless = Rounding(mean=1.0, tokens=1.0, cosine=0.0)
    roundings: dict[str, Rounding] = {
        dtype: rounding or useless for dtype, rounding in measured.items()
    }
    largest = torch.finfo(torch.float16).max
    if not measured["float16"] and all(
        tensor.abs().max() <= largest for tensor in tensors.values() if tensor.is_floating_point()
    ):
        # what it cannot hold is computed in float32 with its weights, which have as many bits as
        # tfloat32's
        roundings["float16"] = roundings["tfloat32"]
    return roundings


Copy = tuple[int, int]
"""The number of a sequence in a batch, and that of the sequence that it is a copy of."""
States = list[tuple[torch.Tensor, torch.Tensor]]
"""All tokens' representations (T, D) of each sequence, and the mean over the residues (D,)."""


def formulas(
    manifest: Manifest,
    tensors: Mapping[str, torch.Tensor],
    rounding: ComputeDtype | None = None,
) -> States:
    """Embed the probes by the published formulas, in float64 or rounded as a compute dtype does."""
    layer, residues = manifest.layers, manifest.family.residues
    states = [
        state[layer]
        for state in reference.all_states(manifest, tensors, _probes(manifest), [layer], rounding)
    ]
    return [(state, pool("mean", state, residues(len(state)))) for state in states]


def _apart(rounded: States, exact: States) -> Rounding | None:
    """Return the largest distances of the sequences whose numbers are finite; None without any."""
    pairs = [
        (ours, theirs)
        for ours, theirs in zip(rounded, exact, strict=True)
        if ours[0].isfinite().all()
    ]
    if not pairs:
        return None
    tokens, means = (
        float(f"{max(_relative(ours[kind], theirs[kind]) for ours, theirs in pairs):.4g}")
        for kind in range(2)
    )
    cosine = min(
        float(torch.cosine_similarity(ours[1], theirs[1], dim=0)) for ours, theirs in pairs
    )
    return Rounding(mean=means, tokens=tokens, cosine=round(cosine, 7))


def _relative(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    return float((ours - theirs).norm() / theirs.norm())


def _probes(manifest: Manifest) -> tuple[str, ...]:
    return PROBES[manifest.family.alphabet.name]


def _golden(folder: Path, manifest: Manifest) -> torch.Tensor:
    path = folder / SELF_TEST
    content = path.read_bytes() if path.is_file() else b""
    if hashlib.sha256(content).hexdigest() != manifest.self_test_sha256:
        raise WeightsError(
            f"{path} is missing, damaged or of other weights",
            remedy=weights_again(folder),
            path=path,
        )
    with np.load(io.BytesIO(content)) as stored:
        return torch.from_numpy(stored["mean"])


def self_test(engine: Engine, folder: Path, budget: int = 0) -> SelfTest:
    """Compare the engine with the golden vectors, in several places of a batch, and the bits of
    sequences in company with those of the same alone.

    A batch has two slices, or one where a `budget` of tokens allows no more.
    Raises DeviceError where the engine is farther off than the rounding of its dtype explains.
    """
    manifest, dtype = engine.manifest, engine.precision
    golden = _golden(folder, manifest)
    probes = [engine.tokenize(probe) for probe in _probes(manifest)]
    slices = 2 if not budget or budget >= 2 * engine.rows else 1
    pieces, copies = _lay(probes, slices * engine.rows, engine.rows)
    states, means = _run(engine, pieces, manifest.layers)
    ours = torch.stack([means[place] for place, _ in copies]).cpu()
    theirs = torch.stack([golden[number] for _, number in copies])
    errors = (ours - theirs).norm(dim=1) / theirs.norm(dim=1)
    cosine = float(torch.cosine_similarity(ours, theirs, dim=1).min())
    limit = bound(dtype, manifest.roundings)
    if not (errors <= limit).all():
        raise DeviceError(
            f"self-test failed on {device_name(engine.device)}: vectors of {manifest.model} in "
            f"{dtype} differ from the reference by {float(errors.max()):.1e} (cosine "
            f"{cosine:.6f}); rounding explains {limit:.1e}\n"
            "nothing was computed; exclude this node or device, or report this line"
        )
    longest = max(range(len(probes)), key=lambda number: len(probes[number]))
    alone = {longest: _run(engine, [probes[longest]], manifest.layers)}
    invariant = _equal_bits(states, means, copies, alone) and _pair_is_invariant(
        engine, probes, slices
    )
    if not invariant:
        log.warning("%s: a vector's last bits depend on its batch here", device_name(engine.device))
    if note := remark(dtype, manifest.roundings):
        log.warning("%s: %s", manifest.model, note)
    return SelfTest(
        relative_error=float(errors.max()),
        cosine=cosine,
        batch_invariant=invariant,
        attention=engine.attention.name,
        elementwise=engine.elementwise.name,
        rounding=note,
    )


def _lay(sequences: Sequence[Ids], total: int, rows: int) -> tuple[list[Ids], list[Copy]]:
    """Lay sequences at the first rows of a batch and again at its last, and the shortest across
    the edge of the first two slices; other tokens lie between them.

    Returns the sequences of the batch, and which of them are copies of these.
    """
    tokens = np.concatenate(sequences)
    shortest = min(range(len(sequences)), key=lambda number: len(sequences[number]))
    copied = list(range(len(sequences)))
    last = total - len(tokens)
    pieces: list[Ids] = []
    copies: list[Copy] = []
    at = 0
    for start, numbers in (
        (0, copied),
        (rows - len(sequences[shortest]) // 2, [shortest]),
        (last, copied),
    ):
        end = start + sum(len(sequences[number]) for number in numbers)
        if start != last and not at <= start <= end <= last:  # no room for this one
            continue
        parts = -(-(start - at) // PAIR_TOKENS)
        pieces += np.array_split(np.resize(tokens, start - at), parts) if parts else []
        copies += [(len(pieces) + i, number) for i, number in enumerate(numbers)]
        pieces += [sequences[number] for number in numbers]
        at = end
    return pieces, copies


def _pair_is_invariant(engine: Engine, probes: Sequence[Ids], slices: int) -> bool:
    layer = min(PAIR_LAYERS, engine.manifest.layers)
    long = np.resize(np.concatenate(probes[:2]), PAIR_TOKENS)
    pair = long, long[::-1]
    total = max(slices, -(-2 * PAIR_TOKENS // engine.rows)) * engine.rows
    pieces, copies = _lay(pair, total, engine.rows)
    alone = {number: _run(engine, [sequence], layer) for number, sequence in enumerate(pair)}
    return _equal_bits(*_run(engine, pieces, layer), copies, alone)


def _equal_bits(
    states: Sequence[torch.Tensor],
    means: torch.Tensor,
    copies: Sequence[Copy],
    alone: Mapping[int, tuple[tuple[torch.Tensor, ...], torch.Tensor]],
) -> bool:
    """Return whether all copies of a sequence have the same bits, and those that it has alone."""
    first = {number: (states[place], means[place]) for place, number in reversed(copies)}
    first |= {number: (state[0], mean[0]) for number, (state, mean) in alone.items()}
    return all(
        torch.equal(states[place], first[number][0]) and torch.equal(means[place], first[number][1])
        for place, number in copies
    )


def _run(
    engine: Engine, pieces: Sequence[Ids], layer: int
) -> tuple[tuple[torch.Tensor, ...], torch.Tensor]:
    """States (tokens, D) of each sequence, and their means (n, D), pooled as an embed job does it;
    as there, what float16 cannot hold is computed in float32.
    """
    batch = engine.pack(pieces).to(engine.device)

    def run(exact: bool) -> tuple[tuple[torch.Tensor, ...], torch.Tensor]:
        hidden = engine.forward(batch, [layer], exact)[layer]
        return batch.split(hidden), pool_batch("mean", hidden, batch)

    states, means = run(False)
    finite = means.isfinite().all(dim=1)
    if engine.precision == "float16" and not finite.all():
        exact_states, exact_means = run(True)
        kept = zip(finite.tolist(), states, exact_states, strict=True)
        states = tuple(ours if good else exact for good, ours, exact in kept)
        means = torch.where(finite[:, None], means, exact_means)
    return states, means
