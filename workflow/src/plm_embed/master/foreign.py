"""Vectors that another program left: what they are, what their rows are called, and the sequences
behind them.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from plm_embed.errors import StoreError
from plm_embed.fingerprint import AlphabetName
from plm_embed.io.parquet import read_batches, read_schema
from plm_embed.keys import key
from plm_embed.sequences.normalize import Normalized, normalize
from plm_embed.sequences.records import Reader
from plm_embed.sequences.settings import ResiduePolicy, Table
from plm_embed.sequences.tables import columns_named
from plm_embed.store.hdf5 import open_hdf5


@dataclass(frozen=True)
class Files:
    """Files to adopt: a master (emb, emb_keys), its index (cache_key, row and ids) and the
    sequences behind it.

    id_column: the column of the index that holds the ids of the records in `sequences`; empty: `id`
    if there is one.
    """

    master: Path
    index: Path
    sequences: Sequence[Path]
    table: Table
    id_column: str


@dataclass(frozen=True)
class Names:
    """Names of a row: its keys in the master and in the index, and the ids of its records."""

    keys: set[str]
    ids: set[str]


@dataclass(frozen=True)
class Foreign:
    """Vectors (n, D), which are read piece by piece, the names of each row, and what the program
    stated about them, in its own words.
    """

    vectors: h5py.Dataset
    names: Sequence[Names]
    stated: Mapping[str, Any]


@contextmanager
def hdf5_master(files: Files) -> Iterator[Foreign]:
    """Open a master HDF5 with its index. StoreError where they do not fit together."""
    with open_hdf5(files.master) as file:
        if not {"emb", "emb_keys"} <= set(file) or file["emb"].ndim != 2:
            raise StoreError(
                f"{files.master}: no emb (n, D) and emb_keys in it: not a master that can be "
                "adopted",
                path=files.master,
            )
        column = file["emb_keys"]
        keys = column.asstr()[...] if h5py.check_string_dtype(column.dtype) else column[...]
        if len(keys) != len(file["emb"]):
            message = f"{len(file['emb']):,} vectors for {len(keys):,} keys"
            raise StoreError(f"{files.master}: {message}", path=files.master)
        names = [Names({str(name)}, set()) for name in keys]
        _add_index(names, files)
        stated = {
            name: value.item() if isinstance(value, np.generic) else value
            for name, value in file.attrs.items()
        }
        yield Foreign(file["emb"], names, stated)


READERS: dict[str, Callable[[Files], AbstractContextManager[Foreign]]] = {
    ".h5": hdf5_master,
    ".hdf5": hdf5_master,
}
"""Functions by the ending of a file's name."""


def read_foreign(files: Files) -> AbstractContextManager[Foreign]:
    """Open what another program left. StoreError for a kind of file that is not known."""
    if (suffix := files.master.suffix) not in READERS:
        message = f"{files.master}: cannot be imported, which takes {', '.join(READERS)}"
        raise StoreError(message, path=files.master)
    return READERS[suffix](files)


def _add_index(names: list[Names], files: Files) -> None:
    """Add the keys and ids that the index has for each row."""
    columns = read_schema(files.index).names
    for needed in filter(None, ("row", files.id_column)):
        if needed not in columns:
            raise StoreError(
                f"{files.index}: no column `{needed}`; it has {', '.join(columns)}",
                path=files.index,
                remedy="name the one with the ids: --index-id" if needed != "row" else "",
            )
    kinds = {"cache_key": "keys", files.id_column or "id": "ids"}
    kinds = {column: kind for column, kind in kinds.items() if column in columns}
    for table in read_batches(files.index, ["row", *kinds]):
        rows = table["row"].to_pylist()
        for row in rows:
            if not 0 <= row < len(names):
                message = f"{files.index}: row {row} of {len(names):,} in {files.master}"
                raise StoreError(message, path=files.index)
        for column, kind in kinds.items():
            for row, name in zip(rows, table[column].to_pylist(), strict=True):
                if name is not None:
                    getattr(names[row], kind).add(str(name))


class KnownSequences:
    """The sequences of the input files: the key of each by record id, and the length by key; ids of
    different sequences are left out.
    """

    def __init__(self, files: Files, alphabet: AlphabetName) -> None:
        self._files = files
        self._policy = ResiduePolicy(alphabet=alphabet)
        self.by_id: dict[str, bytes] = {}
        self.length: dict[bytes, int] = {}
        doubtful = set()
        for id, sequence in self._read():
            name = key(sequence).encode()
            if self.by_id.setdefault(id, name) != name:
                doubtful.add(id)
            self.length[name] = len(sequence)
        for id in doubtful:
            del self.by_id[id]

    def _read(self) -> Iterator[tuple[str, str]]:
        for path in self._files.sequences:
            with columns_named("name yours: --id-column and --sequence-column"):
                reader = Reader(path, self._files.table)
            for batch in reader:
                for id, raw in zip(batch.ids.to_pylist(), batch.residues.to_pylist(), strict=True):
                    normalized = normalize(raw, self._policy)
                    if isinstance(normalized, Normalized):
                        yield id, normalized.sequence

    def residues(self, keys: Sequence[bytes]) -> list[str]:
        """Return the sequences of some keys; the files are read again."""
        chosen = set(keys)
        sequences = {
            name: sequence
            for _, sequence in self._read()
            if (name := key(sequence).encode()) in chosen
        }
        return [sequences[name] for name in keys]


UNKNOWN, AMBIGUOUS = "no sequence for its key or id", "names of several rows or sequences"


def named_by_key(names: Sequence[Names], sequences: KnownSequences) -> bool:
    """Tell whether the keys of the rows are those of sequences, as some that are known show."""
    return any(name.encode() in sequences.length for row in names for name in row.keys)


def sequence_of_each(names: Sequence[Names], sequences: KnownSequences) -> Iterator[bytes | str]:
    """Yield for each row the key of its sequence, or why it has none.

    Where keys are those of sequences they alone count: the sequence of an id may have changed
    since. Elsewhere rows go by ids, but for those that stand for several rows.
    """
    by_key = named_by_key(names, sequences)
    rows_of = Counter(name for row in names for name in row.keys | row.ids)
    for row in names:
        if by_key:
            keys = {name.encode() for name in row.keys} & sequences.length.keys()
            shared = False
        else:
            called = (row.keys | row.ids) & sequences.by_id.keys()
            keys = {sequences.by_id[name] for name in called}
            shared = any(rows_of[name] > 1 for name in called)
        if not keys:
            yield UNKNOWN
        elif shared or len(keys) > 1:
            yield AMBIGUOUS
        else:
            yield keys.pop()
