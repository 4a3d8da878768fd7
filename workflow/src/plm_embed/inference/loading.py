"""A language model loaded and tested on a device, with the room that batches have there; before
that, the fingerprint of its vectors.
"""

import logging
from collections.abc import Sequence
from itertools import cycle
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from plm_embed.accuracy import SelfTest, bound, remark
from plm_embed.errors import DeviceError, out_of_memory
from plm_embed.fingerprint import ComputeDtype, Fingerprint
from plm_embed.inference.golden_vectors import PROBES
from plm_embed.inference.pooling import pool_batch
from plm_embed.inference.settings import Settings
from plm_embed.kernels import devices
from plm_embed.models import engine, weights
from plm_embed.models.engine import LEAST_ROWS, TOKENS, Engine, pack
from plm_embed.models.family import Ids
from plm_embed.models.weights import SELF_TEST, Manifest

log = logging.getLogger(__name__)
BATCHES_TO_FORGET = 32
"""Batches in a row that fit before larger ones are tried again; after a shortage that has not
passed, twice as many.
"""
SHARE_OF_FREE_MEMORY = 0.8
"""The share of free memory for batches; the rest is for fragments, and for sequences longer than
those that were measured.
"""
PAIR_TOKENS = 600
"""Tokens of each of two long sequences: a kernel that shares out its work by what else is in the
call shows it with these.
"""
PAIR_LAYERS = 2
"""Layers that the pair is taken through: every layer runs the same kernels, and on a CPU 600 tokens
take their time.
"""


def fingerprint_of(manifest: Manifest, settings: Settings, device: torch.device) -> Fingerprint:
    """Return the fingerprint of vectors that are made with settings, as `resolved` returns them, on
    a device. ConfigError when the device cannot do what they ask for, or too coarsely.
    """
    dtype = devices.choose_dtype(settings.compute_dtype, device, manifest.roundings, manifest.model)
    label = engine.kernel(manifest.as_model, device, dtype).label
    return Fingerprint(
        model=manifest.model,
        weights_sha256=manifest.weights_sha256,
        engine="-".join(filter(None, (engine.ARITHMETIC[device.type], label))),
        head_sha256=(manifest.head_sha256 or "") if settings.scores else "",
        **settings.recipe | {"compute_dtype": dtype},
    )


class Room:
    """Size of batches by what memory was seen to hold: `budget` tokens, in products of the engine's
    number of rows.

    Batches are padded to whole products, so once they are no larger than one, products shrink.
    """

    def __init__(self, engine: Engine, budget: int) -> None:
        self.engine = engine
        self.budget = self._full_budget = budget
        self._full_rows = engine.rows
        self._successes, self._patience = 0, BATCHES_TO_FORGET
        self._grown = False

    def shrink(self, costs: Sequence[int]) -> bool:
        """Make batches smaller after one of sequences of so many tokens did not fit; return False
        where it was one sequence, which needs more than a product. DeviceError where even the
        smallest batch did not: no sequence is to blame.
        """
        engine = self.engine
        if engine.device.type == "cuda":
            torch.cuda.empty_cache()
        self._successes = 0
        self._patience *= 1 + self._grown
        self._grown = False
        if sum(costs) > engine.rows:
            if len(costs) == 1:
                return False
            self.budget = max(self.budget // 2, engine.rows)
            log.warning("out of memory: token budget lowered to %d", self.budget)
        elif engine.rows > LEAST_ROWS[engine.device.type]:
            engine.rows //= 2
            self.budget = min(self.budget, engine.rows)
            log.warning(
                "out of memory: products of %d rows; the last bits of vectors may differ from "
                "those of other batches",
                engine.rows,
            )
        else:
            raise devices.too_small(engine.device)
        return True

    def grow(self) -> None:
        """Count a batch that fit; make batches larger again after enough of them."""
        if self.budget == self._full_budget and self.engine.rows == self._full_rows:
            return
        self._successes += 1
        if self._successes == self._patience:
            self._successes, self._grown = 0, True
            self.engine.rows = min(2 * self.engine.rows, self._full_rows)
            self.budget = min(2 * self.budget, self._full_budget)


def load(
    folder: Path,
    device: torch.device,
    dtype: ComputeDtype,
    layers: Sequence[int] | None = None,
    budget: int = 0,
    *,
    scores: bool = False,
) -> tuple[Room, SelfTest]:
    """Load the model of a weights folder, with the head of the language model if it has to give
    `scores`; measure the room for batches (`layers`: those to compute, default the last; `budget`:
    tokens per batch), and compare it with its golden vectors.

    DeviceError when the device lacks the memory, fails, or computes wrongly.
    """
    try:
        manifest, tensors, head = weights.load(folder, self_test=True)
        model = Engine(manifest.as_model, tensors, device, dtype, head if scores else None)
        largest = TOKENS["cpu"]
        if device.type == "cuda":
            largest = largest_budget(model, layers or [manifest.layers])
        room = Room(model, budget or largest)
        return room, self_test(model, manifest, room.budget)
    except RuntimeError as error:
        devices.raise_others(error, device)
        raise devices.too_small(device) from error


def largest_budget(engine: Engine, layers: Sequence[int]) -> int:
    """Return the tokens of the largest batches of a model that was just loaded on CUDA, by the
    memory that a batch of one product takes, and by what is then free.

    Where even one product does not fit, the engine's products get fewer rows.
    """
    device = engine.device
    while True:
        try:
            zeros = np.zeros(engine.rows // 32, np.uint16)
            batch = pack([zeros] * 32, engine.model.family, engine.rows)
            torch.cuda.synchronize(device)
            torch.cuda.reset_peak_memory_stats(device)
            before = torch.cuda.memory_allocated(device)
            engine.forward(batch, layers)
            torch.cuda.synchronize(device)
            used = max(torch.cuda.max_memory_allocated(device) - before, 1)
            torch.cuda.empty_cache()
            products = int(SHARE_OF_FREE_MEMORY * torch.cuda.mem_get_info(device)[0] / used)
            return max(engine.rows, min(TOKENS["cuda"], products * engine.rows))
        except RuntimeError as error:
            if not out_of_memory(error) or engine.rows <= LEAST_ROWS["cuda"]:
                raise
        torch.cuda.empty_cache()
        engine.rows //= 2
        log.warning(
            "%s has little free memory: products of %d rows; the last bits of vectors may differ "
            "from those of larger products",
            devices.device_name(device),
            engine.rows,
        )


def self_test(engine: Engine, manifest: Manifest, budget: int = 0) -> SelfTest:
    """Compare the engine with the golden vectors, in many places of a batch, and the bits of
    sequences in company with those of the same alone.

    A batch has two slices, or one where a `budget` of tokens allows no more.
    Raises DeviceError where the engine is farther off than the rounding of its dtype explains.
    """
    model, dtype = engine.model, engine.precision
    with np.load(manifest.path / SELF_TEST) as stored:
        golden = {name: torch.from_numpy(stored[name]) for name in stored.files}
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
                f"self-test failed on {devices.device_name(engine.device)}: {kind} of "
                f"{model.name} in {dtype} differ from the reference by {distance:.1e}{unit}; "
                f"rounding alone would explain {limit:.1e}\n"
                "nothing was computed; exclude this node or device, or report this line; if the "
                f"code of this model was changed, delete {manifest.path}"
            )
    long = np.resize(np.concatenate(probes[:2]), PAIR_TOKENS)
    shifted = [probes[-1], long, long[::-1]]
    slices = max(slices, -(-sum(map(len, shifted)) // engine.rows))
    layers = min(PAIR_LAYERS, model.layers)
    invariant = invariant and _in_company(engine, shifted, slices, layers, [1, 2])[2]
    if not invariant:
        device = devices.device_name(engine.device)
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
