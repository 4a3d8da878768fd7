"""What another program left: a master, its index, and the sequences behind it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import h5py

from plm_embed.errors import StoreError
from plm_embed.fingerprint import AlphabetName
from plm_embed.io.parquet import read_batches, read_schema
from plm_embed.keys import key
from plm_embed.sequences.formats import columns_named
from plm_embed.sequences.normalize import Normalized, normalize
from plm_embed.sequences.records import Reader
from plm_embed.sequences.settings import ResiduePolicy
from plm_embed.sequences.tables import Table


@dataclass(frozen=True)
class Files:
    """What is adopted: a master (emb, emb_keys), its index (cache_key, row and ids) and the
    sequences behind it.

    id_column: the column of the index that holds the ids of the records in `sequences`.
    """

    master: Path
    index: Path
    sequences: Sequence[Path]
    table: Table
    id_column: str


class KnownSequences:
    """The sequences of the input files, by record id and by key; ids of different sequences are
    left out.
    """

    def __init__(self, files: Files, alphabet: AlphabetName) -> None:
        self._files = files
        self._policy = ResiduePolicy(alphabet=alphabet)
        self.by_name: dict[str, bytes] = {}
        self.length: dict[bytes, int] = {}
        doubtful = set()
        for id, sequence in self._read():
            found = key(sequence).encode()
            if self.by_name.setdefault(id, found) != found:
                doubtful.add(id)
            self.length[found] = len(sequence)
        for id in doubtful:
            del self.by_name[id]
        self.by_name |= {found.decode(): found for found in self.length}

    def _read(self) -> Iterator[tuple[str, str]]:
        for path in self._files.sequences:
            with columns_named("name yours: --id-column and --sequence-column"):
                reader = Reader(path, self._files.table)
            for batch in reader:
                for id, raw in zip(batch.ids, batch.residues, strict=True):
                    found = normalize(raw, self._policy)
                    if isinstance(found, Normalized):
                        yield id, found.sequence

    def residues(self, keys: Sequence[bytes]) -> list[str]:
        """The sequences of some keys; the files are read again."""
        wanted = set(keys)
        found = {
            name: sequence
            for _, sequence in self._read()
            if (name := key(sequence).encode()) in wanted
        }
        return [found[name] for name in keys]


def row_names(file: h5py.File, files: Files, count: int) -> list[list[str]]:
    """Of each row its key in the master, and the ids that the index gives to it."""
    keys = (
        file["emb_keys"].asstr()[...]
        if h5py.check_string_dtype(file["emb_keys"].dtype)
        else file["emb_keys"][...]
    )
    names = [[str(name)] for name in keys]
    if len(names) != count:
        raise StoreError(
            f"{files.master}: {count:,} vectors for {len(names):,} keys", path=files.master
        )
    columns = read_schema(files.index).names
    if "row" not in columns:
        raise StoreError(
            f"{files.index}: no column `row`; it has {', '.join(columns)}", path=files.index
        )
    ids = [name for name in (files.id_column, "cache_key") if name in columns]
    for table in read_batches(files.index):
        for name in ids:
            for row, id in zip(table["row"].to_pylist(), table[name].to_pylist(), strict=True):
                if not 0 <= row < count:
                    raise StoreError(
                        f"{files.index}: row {row} of {count:,} in {files.master}", path=files.index
                    )
                names[row].append(str(id))
    return names
