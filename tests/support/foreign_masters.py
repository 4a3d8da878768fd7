"""Masters as another program leaves them, and their adoption."""

from functools import cache
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from plm_embed.inference.reference import hidden_states
from plm_embed.inference.settings import Settings
from plm_embed.master.adopt import Adopted, adopt
from plm_embed.master.foreign import Files
from plm_embed.sequences.settings import Table

RANDOM = np.random.default_rng(3)
SEQUENCES = [
    "".join(RANDOM.choice(list("LAGVSERTIDPKQNFYMHWC"), size=size))
    for size in RANDOM.integers(20, 90, 48)
]
SETTINGS = Settings(compute_dtype="float32", scratch="")
IDS = [f"fig|{number}.peg" for number in range(len(SEQUENCES))]


@cache
def _states(prepared: Path, layer: int) -> list[np.ndarray]:
    """The representations (L + 2, D) of `SEQUENCES`."""
    return [states[layer].numpy() for states in hidden_states(prepared, SEQUENCES, [layer])]


def mean_vectors(prepared: Path, sequences: list[str], layer: int = 3) -> np.ndarray:
    """The means (n, D) over the residues of sequences, float32."""
    states = hidden_states(prepared, sequences, [layer])
    return np.stack([tokens[layer].numpy()[1:-1].mean(axis=0) for tokens in states])


def foreign_master(
    folder: Path,
    prepared: Path,
    *,
    defect: bool = False,
    layer: int = 3,
    by: str = "id",
    **attrs: Any,
) -> Files:
    """A master as the users' script writes it: rows in input order, one large compressed chunk.

    defect: in batches of 8 the end token of every sequence but the longest is pooled in.
    """
    folder.mkdir(exist_ok=True)
    vectors = []
    for number, states in enumerate(_states(prepared, layer)):
        batch = SEQUENCES[number - number % 8 :][:8]
        padded = defect and len(SEQUENCES[number]) < max(map(len, batch))
        vectors.append(states[1 : None if padded else -1].mean(axis=0))
    path, sequences = folder / "master_esm2_embeddings.h5", folder / "proteins.csv"
    keys = [f"{number:064x}" for number in range(len(SEQUENCES))]  # of another hash
    stated = {"model_name": "ESM2_t3_untrained", "max_length": 1024, "pooling": "mean"}
    stated |= {"layer": "last", "precision": "float16", "version": 1, **attrs}
    with h5py.File(path, "w") as file:
        means = np.stack(vectors).astype("f2")
        file.create_dataset("emb", data=means, chunks=(48, 32), compression="lzf")
        file["emb_keys"] = np.array(IDS if by == "id" else keys, dtype=h5py.string_dtype())
        file.attrs.update(stated)
    index = {"cache_key": keys, "row": range(len(keys)), "brc_fea_id": IDS, "assembly_id": IDS}
    pq.write_table(pa.table(index), path.with_suffix(".parquet"))
    lines = [f"{id},{sequence.lower()}*" for id, sequence in zip(IDS, SEQUENCES, strict=True)]
    sequences.write_text("\n".join(["brc_fea_id,seq", *lines]) + "\n")
    table = Table("brc_fea_id", "seq")
    return Files(path, path.with_suffix(".parquet"), (sequences,), table, "brc_fea_id")


def adopted(files: Files, prepared: Path, settings: Settings = SETTINGS) -> Adopted:
    return adopt(files, files.vectors.parent / "store", prepared, settings, sample=24)
