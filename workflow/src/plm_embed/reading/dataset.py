"""A master as a dataset of PyTorch: its records in shuffled blocks, shared among the workers of a
DataLoader.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from plm_embed.errors import extra, some_path, whole_number
from plm_embed.fingerprint import has_matrix
from plm_embed.io.parquet import open_parquet
from plm_embed.reading.exports import Records
from plm_embed.reading.open import Embeddings

with extra():
    import torch
    from torch.utils.data import IterableDataset, get_worker_info


class Dataset(IterableDataset[dict[str, Any]]):
    """Stream the records of a master as dictionaries: `id`, `vector`, and the columns asked for.

    Args:
        path: As for `plm_embed.open`, but no store.
        name: A representation. `vector` is float32: (D,), or (L, D) per residue, which only
            `batch_size=None` or a `collate_fn` of your own can take.
        columns: Columns of the index, such as those that were kept. A missing value is empty text,
            since the default `collate_fn` takes no None.
        ids: Only these records.
        where: Only records whose columns have these values, as text.
        shuffle: Whether blocks come in random order, and the records within them. Rows are sorted
            by SHA-256, so neighbors have nothing in common, and this is as good as shuffling all.
        block: Neighbors in a block.

    The order changes with each epoch, and `torch.manual_seed` repeats it. Each worker of a
    DataLoader opens the files for itself and takes its share of the blocks: every record comes once
    per epoch. PlmEmbedError for a name or a column that is not there.
    """

    def __init__(
        self,
        path: str | Path,
        name: str = "emb",
        *,
        columns: Sequence[str] = (),
        ids: Iterable[str] | None = None,
        where: Mapping[str, str] | None = None,
        shuffle: bool = True,
        block: int = 1024,
    ) -> None:
        self._ids, self._where = None if ids is None else frozenset(ids), where or {}
        self._columns, self._shuffle, self._epoch = list(columns), shuffle, 0
        self._block = whole_number("block", block, above_zero=True)
        with Embeddings(some_path("path", path)) as embeddings:
            self._path = embeddings.path.absolute()
            records = Records(embeddings, name, self._ids, self._where, self._columns)
            self._name = records.name
            records.schema({"vector": pa.float32()} if "vector" in self._columns else {})
            _ = records.count  # reads the index, and checks that it is this master's

    def __iter__(self) -> Iterator[dict[str, Any]]:
        worker = get_worker_info()
        if worker is None:
            share, seed = (0, 1), int(torch.empty((), dtype=torch.int64).random_().item())
        else:  # what the workers' seeds have in common is another one in each epoch ...
            share, seed = (worker.id, worker.num_workers), worker.seed - worker.id
        self._epoch += 1  # ... unless they are kept
        with Embeddings(self._path) as embeddings:
            records = Records(embeddings, self._name, self._ids, self._where)
            for block, random in self._blocks(embeddings, share, [seed, self._epoch]):
                lines = records.of(block)
                rows = lines["row"].to_pylist()
                columns = {column: _filled(lines[column]) for column in ("id", *self._columns)}
                vectors = None if has_matrix(self._name) else records.vectors(lines)
                for place in self._order(len(rows), random):
                    if vectors is None:
                        vector = embeddings.matrix(rows[place], self._name)
                    else:
                        vector = vectors[place]
                    record = {"vector": torch.from_numpy(vector.astype(np.float32))}
                    yield record | {column: values[place] for column, values in columns.items()}

    def _blocks(
        self, embeddings: Embeddings, share: tuple[int, int], seed: list[int]
    ) -> Iterator[tuple[pa.RecordBatch, np.random.Generator]]:
        """Yield a worker's share of the blocks: lines of the index, and a generator to order
        them.
        """
        worker, workers = share
        names = list(dict.fromkeys(["id", "row", *self._columns, *self._where]))
        random, number = np.random.default_rng(seed), 0
        with open_parquet(embeddings.records.path) as index:
            for group in self._order(index.num_row_groups, random).tolist():
                rows = index.metadata.row_group(group).num_rows
                blocks = self._order(-(-rows // self._block), random)
                mine = blocks[(worker - number) % workers :: workers].tolist()
                number += len(blocks)
                if not mine:
                    continue
                lines = index.read_row_group(group, columns=names)
                for block in mine:
                    piece = lines.slice(block * self._block, self._block).combine_chunks()
                    for batch in piece.to_batches():
                        yield batch, np.random.default_rng([*seed, group, block])

    def _order(self, count: int, random: np.random.Generator) -> NDArray[np.int64]:
        return random.permutation(count) if self._shuffle else np.arange(count)


def _filled(column: pa.Array) -> list[Any]:
    """Return the values of a column, with empty text in place of missing text."""
    filled = column.fill_null("") if pa.types.is_string(column.type) else column
    values: list[Any] = filled.to_pylist()
    return values
