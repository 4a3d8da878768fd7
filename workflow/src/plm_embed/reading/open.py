"""Read a master or a store: vectors by id, by key, by row, or whole."""

import json
import re
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from plm_embed.errors import PlmEmbedError, StoreError, UnknownIdError, delete, extra, whole_number
from plm_embed.fingerprint import SPANS, has_matrix, master_name
from plm_embed.keys import Keys
from plm_embed.reading.index import RecordIndex, Rows
from plm_embed.reading.search import Metric, nearest_rows, neighbor_table
from plm_embed.sequence_windows import span_ends
from plm_embed.sequences.settings import OnError
from plm_embed.store.hdf5 import Array, decode, flat_rows
from plm_embed.store.parts import DamagedPartError, Part
from plm_embed.store.store import fingerprint_folders, part_names, read_fingerprint
from plm_embed.wording import some

if TYPE_CHECKING:
    import anndata
    import pandas as pd
    import torch

_MANY_ROWS, _FEW_KEYS = 1 << 24, 1 << 8
"""Keys of so many rows take 1 GB of memory: too much to look up a few."""
KEY = re.compile("[0-9a-f]{64}")
MASTERS = f"{master_name('*')}.h5"
"""The names of masters: each family of models has its own."""


def masters(folder: Path) -> list[Path]:
    """Return the masters in a folder, of whatever family, by name."""
    return sorted(folder.glob(MASTERS))


def find_embeddings(path: Path) -> Path:
    """Return the master .h5, or the folder of a store, that a path means: itself, the master beside
    an index, in a folder, or in its one folder that has one. StoreError for none, or several.
    """
    choices, kind = [path.with_suffix(".h5") if path.suffix == ".parquet" else path], "masters"
    if path.is_dir():
        if choices := fingerprint_folders(path):
            kind = "stores of different settings"
        else:
            choices = masters(path) or sorted(path.glob(f"*/{MASTERS}"))
    if len(choices) > 1:
        remedy = f"open one of them: {', '.join(map(str, choices))}"
        raise StoreError(f"{path}: holds {len(choices)} {kind}", path=path, remedy=remedy)
    place = choices[0] if choices else path
    if not choices or not place.exists():
        words = f"{place}: there is no such file, or no master in it"
        remedy = "give a master .h5, its .parquet, the folder that holds them, or a store"
        raise StoreError(words, path=place, remedy=remedy)
    return place


class Embeddings:
    """Vectors of a master or a store, open for reading; a context manager. Nothing is written, and
    vectors stay on disk until they are read.

    Row i belongs to key i of n sorted keys. Names are the ids of a master's records, of which
    several may share a row, and the keys of a store. `name` chooses a representation, such as
    "mean_l33"; "emb" is the first pooled one. Numbers come as stored (float16 or float32; bfloat16
    as float32).

    path: the master, or the folder of the store. index: the Parquet file with a line per record;
    None for a store. fingerprint: what the vectors depend on. names: the representations. dim: D,
    the number of values per vector.
    """

    def __init__(self, path: str | Path) -> None:
        """Open what `find_embeddings` finds. StoreError for a damaged file, and for one whose data
        lie in other files.
        """
        self.path = find_embeddings(Path(path))
        self.index: Path | None = None
        self._open_master: Part | None = None
        if self.path.is_dir():
            self._merge_parts()
        else:
            self.index = self.path.with_suffix(".parquet")
            # a file of another name may be none of ours
            remedy = delete(self.path) if self.path.match(MASTERS) else ""
            try:
                self._open_master = Part(self.path, remedy)
            except DamagedPartError as error:
                if isinstance(error.__cause__, KeyError):  # it has no fingerprint
                    error.remedy = "adopt vectors of another program with `plm-embed import`"
                raise
            self.fingerprint, self._count = self._master.fingerprint, self._master.count
            self.dim = next(iter(self._master.dims.values()))
        self._ordered = self.fingerprint.representations
        self.names, self._matrices = sorted(self._ordered), {*filter(has_matrix, self._ordered)}
        self._first = min(self._ordered, key=self._matrices.__contains__)

    def _merge_parts(self) -> None:
        """Find where each key of a store is: 76 bytes of memory per key. The first part by name
        serves for a key that several hold, as in a master.
        """
        self.fingerprint, folder = read_fingerprint(self.path), self.path / "parts"
        self._parts, keys = [folder / name for name in part_names(folder)], []
        if not self._parts:
            remedy = "wait until the first job has finished, or run the campaign again"
            raise StoreError(f"{self.path}: holds no vectors yet", path=self.path, remedy=remedy)
        for path in self._parts:
            with Part(path) as part:
                part.check(self.fingerprint)
                self.dim = next(iter(part.dims.values()))
                keys.append(part.keys)
        counts = np.array([len(part_keys) for part_keys in keys])
        self.keys, first = np.unique(np.concatenate(keys), return_index=True)
        self._owner = np.repeat(np.arange(len(counts)), counts)[first].astype(np.int32)
        self._row = first - (np.cumsum(counts) - counts)[self._owner]
        self._count = len(self.keys)

    @property
    def _master(self) -> Part:
        """The file of a master. PlmEmbedError after `close`."""
        if self._open_master is None:
            again = "open it again: plm_embed.open"
            raise PlmEmbedError(f"{self.path}: was closed", path=self.path, remedy=again)
        return self._open_master

    def _read(
        self, rows: Rows, read: Callable[[Part, Rows], Array], counts: Rows | None = None
    ) -> Array:
        """Return the values that a function of a part and its rows reads for rows (increasing):
        (k, ...), or flat (R, ...) if `counts` says how many belong to each row.
        """
        if self.index:
            return read(self._master, rows)
        counts = np.ones(len(rows), np.int64) if counts is None else counts
        starts, owners = np.cumsum(counts) - counts, self._owner[rows]
        values: Array = np.empty(0)
        for number in np.unique(owners).tolist() or [0]:
            places = np.flatnonzero(owners == number)
            with Part(self._parts[number]) as part:
                block = read(part, self._row[rows[places]])
            if not len(values):
                values = np.empty((int(counts.sum()), *block.shape[1:]), block.dtype)
            values[flat_rows(starts[places], counts[places])] = block
        return values

    def __enter__(self) -> Self:
        return self

    def close(self, *_: object) -> None:
        if self._open_master:
            self._open_master.__exit__()
            self._open_master = None

    __exit__ = close

    def __reduce__(self) -> tuple[type[Self], tuple[Path]]:
        """Let another process, such as a worker of a DataLoader, open the file again."""
        return type(self), (self.path.absolute(),)

    def __len__(self) -> int:
        """Return the number of rows: distinct sequences."""
        return self._count

    @property
    def shape(self) -> tuple[int, int]:
        """(n, D) of a pooled representation."""
        return len(self), self.dim

    def __repr__(self) -> str:
        return f"<Embeddings {self.path}: {len(self):,} x {self.dim}, {', '.join(self.names)}>"

    @cached_property
    def metadata(self) -> dict[str, Any]:
        """Attributes of a master, with `fingerprint`, `inputs` and `library_versions` as
        dictionaries; none of a store.
        """
        attributes = self._master.attributes if self.index else {}
        return {name: _plain(value) for name, value in attributes.items()}

    @cached_property
    def keys(self) -> Keys:
        """SHA-256 of each row's sequence: S64 (n,), sorted."""
        return self._master.keys

    @cached_property
    def lengths(self) -> NDArray[np.int32]:
        """Residues of each row's sequence (n,)."""
        return self.lengths_of(np.arange(len(self)))

    def lengths_of(self, rows: Rows) -> NDArray[np.int32]:
        """Return the residues of the sequences of these rows (increasing)."""
        return self._read(rows, lambda part, rows: part.column_at("length", rows))

    def scores(self, name: str, rows: Rows | None = None) -> NDArray[np.float32]:
        """Return a score of each row (n,), such as "log_likelihood", or of some rows (increasing).
        PlmEmbedError where it was not asked for.
        """
        if name not in (known := self.fingerprint.scores):
            words = f"{self.path}: has no score {name}; it has {', '.join(known) or 'none'}"
            remedy = f"for the next run: `embedding.scores: [{name}]`"
            raise PlmEmbedError(words, path=self.path, remedy=remedy)
        rows = np.arange(len(self)) if rows is None else rows
        return self._read(rows, lambda part, rows: part.column_at(name, rows))

    @cached_property
    def records(self) -> RecordIndex:
        """The index of a master. PlmEmbedError for a store."""
        if self.index:
            return RecordIndex(self.index, lambda: self._master)
        raise PlmEmbedError(f"{self.path}: a store has keys, no records: open a master")

    def __iter__(self) -> Iterator[str]:
        """Iterate over the ids of all records that have a vector, in the order of the index; of a
        store over its keys.
        """
        return iter(self.records) if self.index else map(bytes.decode, self.keys.tolist())

    @cached_property
    def ids(self) -> list[str]:
        """Return the names as a list; several records may have one id."""
        return list(self)

    def __contains__(self, name: object) -> bool:
        """Return whether a record of this id (in a store: a sequence of this key) has a vector."""
        if self.index:
            return name in self.records.row_of
        return isinstance(name, str) and bool(self._locate([name])[0] >= 0)

    def __getitem__(self, rows: str | int | slice | NDArray[Any] | list[int]) -> Array:
        """Return of "emb" a vector (D,) for an id (of a store: a key) or the number of a row, and
        vectors (k, D) for a slice, a mask or a list of numbers.
        """
        if isinstance(rows, str):
            return self.get([rows]).reshape(-1)
        if isinstance(rows, slice):
            return self.rows(range(len(self))[rows])
        numbers = np.asarray(rows)
        if numbers.dtype == bool:
            numbers = np.arange(len(self))[numbers]  # IndexError for a mask of another length
        vectors = self.rows(np.atleast_1d(numbers))
        return vectors if numbers.ndim else vectors.reshape(-1)

    def get(self, ids: Iterable[str], name: str = "emb") -> Array:
        """Return the vectors (k, D) of these ids, in their order.

        UnknownIdError for ids that are not there; PlmEmbedError for one that records with different
        sequences share.
        """
        return self.rows(self._rows_of_ids(ids), name)

    def by_key(self, keys: Iterable[str] | Keys, name: str = "emb") -> Array:
        """Return the vectors (k, D) of these keys, in their order. UnknownIdError for keys that are
        not there.
        """
        return self.rows(self._rows_of_keys(keys), name)

    def rows(self, rows: Iterable[int], name: str = "emb") -> Array:
        """Return the vectors (k, D) of these rows, in their order; negative ones count from the
        end. IndexError for others than whole numbers from -n to n - 1.
        """
        name, numbers, count = self.resolved(name, pooled=True), np.asarray(rows), self._count
        if numbers.ndim != 1 or (numbers.size and numbers.dtype.kind not in "iu"):
            raise IndexError("rows are a list of whole numbers; for ids, get([...])")
        if len(numbers) and not (-count <= numbers.min() and numbers.max() < count):
            raise IndexError(f"rows {numbers.min()} to {numbers.max()} of {count}")
        numbers = numbers.astype(np.int64) % max(count, 1)
        if (numbers[1:] > numbers[:-1]).all():
            return self.flat(name, numbers)
        unique, back = np.unique(numbers, return_inverse=True)
        return self.flat(name, unique)[back]

    def iter_batches(self, rows: int = 4096, name: str = "emb") -> Iterator[tuple[Keys, Array]]:
        """Yield all rows in order, as (keys (k,), vectors (k, D)) of at most `rows` rows."""
        for start in range(0, len(self), whole_number("rows", rows, above_zero=True)):
            stop = min(start + rows, len(self))
            yield self.keys[start:stop], self.rows(range(start, stop), name)

    def to_numpy(self, name: str = "emb") -> Array:
        """Return all vectors of a representation: (n, D), or flat (R, D) when per residue or token,
        the spans of tokens as they are stored.
        """
        return self.flat(self.resolved(name), np.arange(len(self)))

    def to_torch(self, name: str = "emb") -> "torch.Tensor":
        """Return all vectors of a representation as a tensor."""
        with extra():
            import torch
        return torch.from_numpy(self.to_numpy(name))

    def to_pandas(self) -> "pd.DataFrame":
        """Return the index, a line per record."""
        lines = pa.Table.from_batches(self.records.lines(), self.records.schema)
        with extra():
            frame: pd.DataFrame = lines.to_pandas()
        return frame

    def to_anndata(self, name: str = "emb") -> "anndata.AnnData":
        """Return an observation for every record, with the columns of the index, or for every key
        of a store; X (records, D). Its name is its id; where ids repeat, names become x, x-1, x-2,
        and the column id keeps the ids.
        """
        from plm_embed.reading.exports import make_anndata

        if self.index:
            lines = pa.Table.from_batches(self.records.lines(), self.records.schema)
            return make_anndata(self.rows(lines["row"].to_numpy(), name), lines)
        lines = pa.table({"id": pa.array(self.ids), "length": self.lengths})
        return make_anndata(self.rows(range(len(self)), name), lines)

    def matrix(self, row: int, name: str) -> Array:
        """Return the matrix (L, D) of a row in a representation with a row per residue or token; of
        `per_token_spans` integers (T, 2).
        """
        if (name := self.resolved(name)) not in self._matrices:
            raise PlmEmbedError(f"{name} has one vector per record: use rows([{row}])")
        values = self.flat(name, np.array([range(len(self))[row]]))
        return span_ends(values) if name == SPANS else values

    def per_residue(self, id: str, name: str | None = None) -> Array:
        """Return the matrix (L, D) of one id; `name` defaults to the first per-residue
        representation.
        """
        return self.matrix(int(self._rows_of_ids([id])[0]), name or "per_residue")

    def per_residue_by_key(self, key: str, name: str | None = None) -> Array:
        """Return the same as `per_residue`, of one key."""
        return self.matrix(int(self._rows_of_keys([key])[0]), name or "per_residue")

    def per_token(self, id: str, name: str | None = None) -> tuple[Array, NDArray[np.int64]]:
        """Return the matrix (T, D) of one id, and the letters (T, 2) of each token in its
        normalized sequence: the first, and one past the last.
        """
        row = int(self._rows_of_ids([id])[0])
        return self.matrix(row, name or "per_token"), self.matrix(row, SPANS)

    def nearest(
        self,
        ids: Iterable[str] | None = None,
        *,
        vectors: Array | None = None,
        sequences: Any = None,
        k: int = 10,
        metric: Metric = "cosine",
        name: str = "emb",
        weights: str | Path | None = None,
        on_error: OnError = "raise",
        threads: int = 1,
    ) -> pa.Table:
        """Return the k nearest rows of each query, by comparison with every row, in bounded memory.

        Queries are records of these ids (each finds itself first, but by dot), vectors (q, D), or
        sequences, given as to `plm_embed.embed`: they are embedded by the model and the settings of
        these embeddings, whose `weights` may have to be named. `on_error` as in `plm_embed.embed`:
        raise an InputError for a sequence that has no vector, or skip it with a warning.

        The table has, for each query (its id, or else its place among them: of vectors from 0, of
        sequences from 1), a line for each record of each neighbor: rank from 1, similarity
        (cosine), dot_product or distance (euclidean), row, and what the index says of the record.
        PlmEmbedError for an unknown metric, for queries of another width, or with numbers that are
        not finite.
        """
        if sum(queries is not None for queries in (ids, vectors, sequences)) != 1:
            raise PlmEmbedError("nearest: give one of ids, vectors and sequences")
        name = self.resolved(name, pooled=True)
        if ids is not None:
            labels = [ids] if isinstance(ids, str) else list(ids)
            vectors = self.get(labels, name)
        elif sequences is not None:
            with extra():
                from plm_embed.inference.language_model import embed_like
            labels, vectors = embed_like(self.fingerprint, name, sequences, weights, on_error)
        else:
            vectors = np.atleast_2d(np.asarray(vectors))
            labels = [str(place) for place in range(len(vectors))]
        neighbors = nearest_rows(self, vectors, k, metric, name, threads)
        rows = np.unique(neighbors[0])
        if self.index:
            lines = self.records.lines_of(rows)
        else:
            keys = pa.array(self.keys[rows].astype(str))
            lines = pa.table({"row": rows, "key": keys, "length": self.lengths_of(rows)})
        return neighbor_table(neighbors, labels, metric, lines)

    def flat(self, name: str, rows: Rows) -> Array:
        """Return the vectors of rows (increasing): (k, D), or flat (R, D) where each row has a
        matrix.
        """
        counts = None
        if name in self._matrices and not self.index:
            counts = self._read(rows, lambda part, rows: part.matrix_rows(rows)[1])
        bits = self._read(rows, lambda part, rows: part.bits(name, rows), counts)
        return decode(bits, self.fingerprint.storage_dtype)

    def _rows_of_ids(self, ids: Iterable[str]) -> Rows:
        """Return the row of each id of a master, or key of a store."""
        if isinstance(ids, str):
            raise PlmEmbedError(f'ids are a list: get(["{ids}"])')
        return self.records.rows(list(ids)) if self.index else self._rows_of_keys(ids)

    def _rows_of_keys(self, keys: Iterable[str] | Keys) -> Rows:
        """Return the row of each key. UnknownIdError for one that is not there, or no key."""
        if isinstance(keys, str | bytes):
            raise PlmEmbedError("keys are a list: by_key([key])")
        texts = [key.decode("latin-1") if isinstance(key, bytes) else str(key) for key in keys]
        rows = self._locate(texts)
        if absent := [text for text, row in zip(texts, rows, strict=True) if row < 0]:
            words = f"{self.path}: no vector for {some(absent)}"
            whole = all(map(KEY.fullmatch, absent))
            remedy = "" if whole else "a key is the SHA-256 of a sequence: 64 digits 0-9 a-f"
            raise UnknownIdError(words, path=self.path, remedy=remedy)
        return rows

    def _locate(self, texts: list[str]) -> Rows:
        """Return the row of each key, -1 for those that are not there, and for other texts."""
        keys = np.array([text if KEY.fullmatch(text) else "" for text in texts], "S64")
        if not len(self) or not len(keys):
            return np.full(len(keys), -1)
        if self.index and len(keys) < _FEW_KEYS and len(self) > _MANY_ROWS:
            return np.concatenate([*map(self._master.locate, np.split(keys, len(keys)))])
        # not by `keys.find`, which looks at all keys first
        rows = np.minimum(np.searchsorted(self.keys, keys), len(self) - 1)
        return np.where(self.keys[rows] == keys, rows, -1)

    def resolved(self, name: str, *, pooled: bool = False) -> str:
        """Return the name of a representation: "emb" is the first pooled one, or else the first,
        and a pooling is its first one. PlmEmbedError for one that is not there, or has a matrix per
        row where vectors are needed.
        """
        first = (known for known in self._ordered if known.startswith(f"{name}_l"))
        resolved = next(first, name) if name != "emb" else self._first
        if resolved not in self.names:
            words = f"{self.path}: has no representation {name}; it has {', '.join(self.names)}"
            remedy = "embedding.pooling and embedding.layers choose those of the next run"
            raise PlmEmbedError(words, path=self.path, remedy=remedy)
        if pooled and resolved in self._matrices:
            kind = resolved.rpartition("_")[0]
            raise PlmEmbedError(f"{self.path}: {resolved} has a matrix per record: use {kind}(id)")
        return resolved


def _plain(value: Any) -> Any:
    """Return an HDF5 attribute as Python's numbers, text and lists; JSON as a dictionary."""
    value = value.tolist() if isinstance(value, np.ndarray | np.generic) else value
    return json.loads(value) if isinstance(value, str) and value.startswith("{") else value
