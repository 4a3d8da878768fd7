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
        self._columns = list(dict.fromkeys(["id", *columns]))
        self._shuffle, self._epoch = shuffle, 0
        self._block = whole_number("block", block, above_zero=True)
        with Embeddings(some_path("path", path)) as embeddings:
            self._path = embeddings.path.absolute()
            records = Records(embeddings, name, self._ids, self._where, self._columns)
            self._name = records.name
            records.schema({"vector": pa.float32()} if "vector" in self._columns else {})
            _ = records.count  # reads the index, and checks that it is this master's

    def __iter__(self) -> Iterator[dict[str, Any]]:
        worker = get_worker_info()
        number, workers = (worker.id, worker.num_workers) if worker else (0, 1)
        # what the workers' seeds have in common is another one in each epoch ...
        seed = worker.seed - number if worker else int(torch.empty((), dtype=torch.int64).random_())
        self._epoch += 1  # ... unless they are kept
        shared = np.random.default_rng([seed, self._epoch])  # draws the same in all workers
        own = np.random.default_rng([seed, self._epoch, number])
        with Embeddings(self._path) as embeddings:
            records = Records(embeddings, self._name, self._ids, self._where)
            for block in self._blocks(embeddings.records.path, number, workers, shared):
                lines = records.of(block)
                lines = lines.take(self._order(lines.num_rows, own))
                columns = lines.select(self._columns).to_pylist()
                for values, vector in zip(columns, records.arrays(lines), strict=True):
                    record = {"vector": torch.from_numpy(vector.astype(np.float32))}
                    yield record | {name: "" if v is None else v for name, v in values.items()}

    def _blocks(
        self, path: Path, worker: int, workers: int, random: np.random.Generator
    ) -> Iterator[pa.Table]:
        """Yield a worker's share of the blocks: lines of the index."""
        names, number = list({"row", *self._columns, *self._where}), 0
        with open_parquet(path) as index:
            for group in self._order(index.num_row_groups, random).tolist():
                rows = index.metadata.row_group(group).num_rows
                blocks = self._order(-(-rows // self._block), random)
                mine = blocks[(worker - number) % workers :: workers].tolist()
                number += len(blocks)
                lines = index.read_row_group(group, names) if mine else pa.table({})
                for block in mine:
                    yield lines.slice(block * self._block, self._block)

    def _order(self, count: int, random: np.random.Generator) -> NDArray[np.int64]:
        return random.permutation(count) if self._shuffle else np.arange(count)
