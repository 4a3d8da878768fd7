"""Vectors recorded before the families got their seam: ESM-2, ESM-1b and ESM-1v still give them.

On the kind of machine that recorded them (the same version of torch, CPU capability and processor)
they must be equal bit by bit, with torch's attention. Another kind may sum in another order, as
attention in C does: there they must agree within 1e-6 of the vector's length, which a change of the
arithmetic in the last bits can pass. So only a machine of the recorded kind proves that no bit
changed.
`python tests/unit/inference/test_recorded_vectors.py` records again
(PYTHONPATH=workflow/src:tests).
"""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from plm_embed.inference.settings import Settings
from plm_embed.inference.weights import prepare
from plm_embed.kernels import attention
from plm_embed.kernels.devices import device_name
from plm_embed.keys import key
from plm_embed.models.registry import MODELS, Model
from plm_embed.store.parts import Part
from support import checkpoints
from support.embedded import Embedder

RECORDED = Path(__file__).parents[2] / "data" / "recorded_vectors.npz"
DEMO = MODELS["esm2_t3_untrained"]
SEEDS = {checkpoints.TINY_ESM2: 11, checkpoints.TINY_ESM1B: 12, checkpoints.TINY_ESM1V: 13, DEMO: 0}
LETTERS = "MLAGVSERTIDPKQNFYMHWCXBUZO"  # each letter that may reach a model
LENGTHS = (1, 2, 5, 31, 64, 99, 177, 254, 300, 511, 703)
MIXED = (LETTERS + LETTERS[::-3] + LETTERS[::5]) * 20
SEQUENCES = [
    LETTERS,
    *(MIXED[7 * length : 8 * length] for length in LENGTHS[:6]),
    *(MIXED[:n] for n in LENGTHS[6:]),
]


def kind() -> list[str]:
    """Facts that decide the order of sums on a CPU."""
    return [
        torch.__version__,
        torch.backends.cpu.get_cpu_capability(),
        device_name(torch.device("cpu")),
    ]


def vectors(folder: Path, model: Model, seed: int) -> Iterator[tuple[str, np.ndarray]]:
    """Names and values (12, D), or (L, D) of LETTERS per residue, through the pipeline in float32
    with one thread.
    """
    source = checkpoints.DEMO
    if model != DEMO:
        source = checkpoints.write_fair_esm(
            folder / f"{model.name}.pt", model, checkpoints.random_state(model, seed)
        )
    prepare(model, source, folder / "weights")
    layers = tuple(range(model.layers + 1))
    settings = Settings(
        layers=layers,
        pooling=("mean", "max", "bos", "per_residue"),
        compute_dtype="float32",
        storage_dtype="float32",
        device="cpu",
        scratch="",
        threads=1,
    )
    rows = sorted((key(sequence), sequence) for sequence in SEQUENCES)
    columns = {"key": [row[0] for row in rows], "sequence": [row[1] for row in rows]}
    pq.write_table(
        pa.table(columns | {"length": [len(row[1]) for row in rows]}), folder / "0000.parquet"
    )
    embedder = Embedder(folder / "weights", folder / "store", settings)
    (part,) = embedder.embed(folder / "0000.parquet", folder / "0000.json").parts
    with Part(embedder.store.parts_folder / part.name) as held:
        at = {name.decode(): row for row, name in enumerate(held.keys)}
        for name in held.names:
            found = list(held.rows(name, np.arange(held.count)))
            if name.startswith("per_residue"):
                yield f"{model.name}/{name}", found[at[key(LETTERS)]]
            else:
                yield (
                    f"{model.name}/{name}",
                    np.stack([found[at[key(sequence)]] for sequence in SEQUENCES]),
                )


@pytest.mark.parametrize("in_c", [False, True], ids=["torch", "in C"])
@pytest.mark.parametrize("model", SEEDS, ids=lambda model: model.name)
def test_vectors_are_those_recorded_before_the_move(
    tmp_path: Path, model: Model, in_c: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    attention.choose.cache_clear()
    if not in_c:
        monkeypatch.setattr(attention, "IN_C", ("no such processor",))
    width = model.dim // model.heads
    chosen = attention.choose(torch.device("cpu"), torch.float32, model.heads, width)
    if chosen.rotates != in_c:
        pytest.skip("no AVX-512 or no C compiler here")
    threads = torch.get_num_threads()
    try:
        found = dict(vectors(tmp_path, model, SEEDS[model]))
    finally:
        torch.set_num_threads(threads)
        attention.choose.cache_clear()
    with np.load(RECORDED) as recorded:
        expected = {
            name: recorded[name] for name in recorded.files if name.startswith(f"{model.name}/")
        }
        same_kind = recorded["kind"].tolist() == kind() and not in_c
    assert found.keys() == expected.keys()
    for name, wanted in expected.items():
        assert found[name].dtype == np.float32
        if same_kind:
            assert np.array_equal(found[name], wanted), name
        else:
            errors = np.linalg.norm(found[name] - wanted, axis=1) / np.linalg.norm(wanted, axis=1)
            assert errors.max() <= 1e-6, name


if __name__ == "__main__":
    RECORDED.parent.mkdir(exist_ok=True)
    made: dict[str, np.ndarray] = {}
    for each, number in SEEDS.items():
        with tempfile.TemporaryDirectory() as temporary:
            made |= dict(vectors(Path(temporary), each, number))
    np.savez_compressed(RECORDED, kind=np.array(kind()), **made)
