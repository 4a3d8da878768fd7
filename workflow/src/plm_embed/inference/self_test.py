"""Golden vectors of the very weights in use, and the check against them at the start of each job.

The reference path writes them once when the weights are prepared; every job compares its own
device, kernel and dtype with them before it computes anything that is kept.
"""

import hashlib
import io
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch

from plm_embed.accuracy import SelfTest
from plm_embed.errors import DeviceError, WeightsError
from plm_embed.inference.pooling import pool_batch
from plm_embed.inference.reference import last_means
from plm_embed.io.files import atomic_path
from plm_embed.kernels.devices import device_name
from plm_embed.models.encoder.engine import Engine
from plm_embed.models.manifest import SELF_TEST, Manifest
from plm_embed.models.tokenizer_file import Ids
from plm_embed.models.weights import remedy

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
"""Of two long sequences of one length: a kernel that shares out its work by what else is in the
call shows it with these.
"""
PAIR_LAYERS = 2
"""How far the pair is taken: every layer runs the same kernels, and on a CPU 600 tokens take
their time.
"""


def write_golden(folder: Path, manifest: Manifest, tensors: Mapping[str, torch.Tensor]) -> str:
    """Embed the probes by the reference path; write their last-layer means, (probes, D) fp32,
    beside the weights.

    Returns the SHA-256 of the file, which is left alone when it is right already.
    """
    memory = io.BytesIO()
    np.savez(memory, mean=last_means(manifest, tensors, _probes(manifest)))
    content, path = memory.getvalue(), folder / SELF_TEST
    if not path.is_file() or path.read_bytes() != content:
        with atomic_path(path) as temporary:
            temporary.write_bytes(content)
    return hashlib.sha256(content).hexdigest()


def _probes(manifest: Manifest) -> tuple[str, ...]:
    return PROBES[manifest.family.alphabet.name]


def _golden(folder: Path, manifest: Manifest) -> torch.Tensor:
    path = folder / SELF_TEST
    content = path.read_bytes() if path.is_file() else b""
    if hashlib.sha256(content).hexdigest() != manifest.self_test_sha256:
        raise WeightsError(
            f"{path} is missing, damaged or of other weights",
            remedy=remedy(manifest, folder),
            path=path,
        )
    with np.load(io.BytesIO(content)) as stored:
        return torch.from_numpy(stored["mean"])


def self_test(engine: Engine, folder: Path) -> SelfTest:
    """Compare the engine with the golden vectors; raise DeviceError when they disagree."""
    golden = _golden(folder, engine.manifest)
    last = engine.manifest.layers
    probes = [engine.tokenize(probe) for probe in _probes(engine.manifest)]
    together = _run(engine, probes, last)[1].cpu()
    alone = torch.cat([_run(engine, [probe], last)[1] for probe in probes]).cpu()
    relative = float(((together - golden).norm(dim=1) / golden.norm(dim=1)).max())
    cosine = float(torch.cosine_similarity(together, golden, dim=1).min())
    family = engine.manifest.family
    good = (
        relative <= family.relative_error
        if engine.precision == "float32"
        else cosine >= family.cosine
    )
    if not good:
        raise DeviceError(
            f"self-test failed on {device_name(engine.device)}: vectors of {engine.manifest.model} "
            f"in {engine.precision} differ from the reference (relative error {relative:.1e}, "
            f"cosine {cosine:.6f})\n"
            "nothing was computed; exclude this node or device, or report it with this line"
        )
    invariant = torch.equal(together, alone) and _pair_is_invariant(engine, probes)
    if not invariant:
        log.warning("%s: a vector's last bits depend on its batch here", device_name(engine.device))
    return SelfTest(
        relative_error=relative,
        cosine=cosine,
        batch_invariant=invariant,
        attention=engine.attention.name,
        elementwise=engine.elementwise.name,
    )


def _pair_is_invariant(engine: Engine, probes: Sequence[Ids]) -> bool:
    layer = min(PAIR_LAYERS, engine.manifest.layers)
    long = np.resize(np.concatenate(probes[:2]), PAIR_TOKENS)
    pair = long, long[::-1]
    states, means = _run(engine, [probes[0], *pair, probes[2]], layer)
    alone = (_run(engine, [one], layer) for one in pair)
    return all(
        torch.equal(states[1 + i], ours[0]) and torch.equal(means[1 + i], mean[0])
        for i, (ours, mean) in enumerate(alone)
    )


def _run(
    engine: Engine, pieces: Sequence[Ids], layer: int
) -> tuple[tuple[torch.Tensor, ...], torch.Tensor]:
    """States (tokens, D) of each sequence, and their means (n, D), pooled as an embed job does
    it.
    """
    batch = engine.pack(pieces).to(engine.device)
    hidden = engine.forward(batch, [layer])[layer]
    return batch.split(hidden), pool_batch("mean", hidden, batch)
