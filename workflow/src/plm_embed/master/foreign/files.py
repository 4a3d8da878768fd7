"""What another program left: a master, its index, and the sequences behind it."""

from collections import Counter
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
from plm_embed.sequences.settings import ResiduePolicy, Table


@dataclass(frozen=True)
class Files:
    """What is adopted: a master (emb, emb_keys), its index (cache_key, row and ids) and the
    sequences behind it.

    id_column: the column of the index that holds the ids of the records in `sequences`; empty: `id`
    if there is one.
    """

    master: Path
    index: Path
    sequences: Sequence[Path]
    table: Table
    id_column: str


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
            found = key(sequence).encode()
            if self.by_id.setdefault(id, found) != found:
                doubtful.add(id)
            self.length[found] = len(sequence)
        for id in doubtful:
            del self.by_id[id]

    def _read(self) -> Iterator[tuple[str, str]]:
        for path in self._files.sequences:
            with columns_named("name yours: --id-column and --sequence-column"):
                reader = Reader(path, self._files.table)
            for batch in reader:
                for id, raw in zip(batch.ids.to_pylist(), batch.residues.to_pylist(), strict=True):
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


@dataclass(frozen=True)
class Names:
    """What a row is called: its key in the master and in the index, and the ids of its records."""

    keys: set[str]
    ids: set[str]


def names_of_rows(file: h5py.File, files: Files, count: int) -> list[Names]:
    """The names of each row. StoreError for an index that does not fit the master."""
    keys = (
        file["emb_keys"].asstr()[...]
        if h5py.check_string_dtype(file["emb_keys"].dtype)
        else file["emb_keys"][...]
    )
    names = [Names({str(name)}, set()) for name in keys]
    if len(names) != count:
        raise StoreError(
            f"{files.master}: {count:,} vectors for {len(names):,} keys", path=files.master
        )
    columns = read_schema(files.index).names
    for needed in filter(None, ("row", files.id_column)):
        if needed not in columns:
            raise StoreError(
                f"{files.index}: no column `{needed}`; it has {', '.join(columns)}",
                path=files.index,
                remedy="name the one with the ids: --index-id" if needed != "row" else "",
            )
    id_column = files.id_column or "id"
    read = ("row", "cache_key", id_column)
    for table in read_batches(files.index):
        given = {name: table[name].to_pylist() for name in columns if name in read}
        for place, row in enumerate(given["row"]):
            if not 0 <= row < count:
                raise StoreError(
                    f"{files.index}: row {row} of {count:,} in {files.master}", path=files.index
                )
            for column, into in (("cache_key", names[row].keys), (id_column, names[row].ids)):
                if column in given and given[column][place] is not None:
                    into.add(str(given[column][place]))
    return names


UNKNOWN, AMBIGUOUS = "no sequence for its key or id", "names of several rows or sequences"


def told_by_key(names: Sequence[Names], known: KnownSequences) -> bool:
    """Whether the keys of the rows are those of sequences, as some that are known show."""
    return any(name.encode() in known.length for row in names for name in row.keys)


def sequence_of_each(names: Sequence[Names], known: KnownSequences) -> Iterator[bytes | str]:
    """Of each row the key of its sequence, or why it has none.

    Where keys are those of sequences they alone count: the sequence of an id may have changed
    since. Elsewhere rows go by ids, but for those that stand for several rows.
    """
    by_key = told_by_key(names, known)
    rows_of = Counter(name for row in names for name in row.keys | row.ids)
    for row in names:
        if by_key:
            found = {name.encode() for name in row.keys} & known.length.keys()
            shared = False
        else:
            called = (row.keys | row.ids) & known.by_id.keys()
            found = {known.by_id[name] for name in called}
            shared = any(rows_of[name] > 1 for name in called)
        if not found:
            yield UNKNOWN
        elif shared or len(found) > 1:
            yield AMBIGUOUS
        else:
            yield found.pop()
