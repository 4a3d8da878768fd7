"""Vectors that another program left, or that `export` wrote: their rows, the names of the rows, and
the sequences behind them.
"""

import csv
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from plm_embed.errors import StoreError
from plm_embed.io.parquet import read_batches, read_schema
from plm_embed.keys import key
from plm_embed.models.family import Family
from plm_embed.sequences.normalize import Normalized, normalize
from plm_embed.sequences.records import Reader
from plm_embed.sequences.settings import ResiduePolicy, Table
from plm_embed.sequences.tables import columns_named
from plm_embed.store.hdf5 import DAMAGES, Array, contained, open_hdf5


@dataclass(frozen=True)
class Files:
    """Files to adopt: vectors, a table with the names of their rows, and the sequences behind them.

    index: None where the vectors' own file has the names, or for the usual table beside it;
    id_column: its column with the ids of the records in `sequences`; empty: `id` if there is one.
    """

    vectors: Path
    index: Path | None
    sequences: Sequence[Path]
    table: Table
    id_column: str


Names = list[tuple[int, str]]
"""Rows and their names; a row may have several."""


class Foreign(NamedTuple):
    """Vectors (n, D), which are read piece by piece; the keys and ids that name their rows; and the
    statements of the program about them, in its own words.
    """

    vectors: h5py.Dataset | Array
    keys: Names
    ids: Names
    stated: Mapping[str, Any]


@contextmanager
def read_foreign(files: Files) -> Iterator[Foreign]:
    """Open vectors. StoreError for a kind of file that is not known, or whose parts do not fit."""
    if not (reader := _READERS.get(files.vectors.suffix)):
        kinds = ", ".join(_READERS)
        raise _refusal(files.vectors, f"cannot be imported; the kinds of files are {kinds}")
    with reader(files) as foreign:
        shape = foreign.vectors.shape
        if len(shape) != 2 or foreign.vectors.dtype.kind != "f":
            words = f"has {foreign.vectors.dtype} of shape {shape}, not a vector per row"
            raise _refusal(files.vectors, words)
        if not foreign.keys and not foreign.ids:
            remedy = "name the column with the ids: --index-id"
            raise _refusal(files.vectors, "its rows have no names", remedy)
        yield foreign


def _refusal(path: Path, words: str, remedy: str = "") -> StoreError:
    return StoreError(f"{path}: {words}", path=path, remedy=remedy)


@contextmanager
def _hdf5(files: Files) -> Iterator[Foreign]:
    """Open a master, an .h5ad of AnnData, or a file with a dataset per sequence."""
    with open_hdf5(files.vectors) as file:
        try:
            stated = {
                name: value.item() if isinstance(value, np.generic) else value
                for name, value in file.attrs.items()
            }
            if {"emb", "emb_keys"} <= set(file):
                keys = list(enumerate(map(str, _texts(file["emb_keys"]))))
                if len(keys) != len(file["emb"]):
                    words = f"{len(file['emb']):,} vectors for {len(keys):,} keys"
                    raise _refusal(files.vectors, words)
                beside = files.index or files.vectors.with_suffix(".parquet").exists()
                more, ids = _index(files, ".parquet", len(keys)) if beside else (Names(), Names())
                foreign = Foreign(file["emb"], keys + more, ids, stated)
            elif {"X", "obs"} <= set(file):
                foreign = _anndata(files, file, stated)
            else:
                rows = _datasets(file)
                foreign = Foreign(*_spooled(files.vectors, rows), stated)
        except DAMAGES as error:
            raise _refusal(files.vectors, f"cannot be imported ({error})") from None
        yield foreign


def _anndata(files: Files, file: h5py.File, stated: Mapping[str, Any]) -> Foreign:
    """Read the names of observations: the column of ids where there is one, else their index."""
    obs = contained(file, "obs")
    column = files.id_column or ("id" if "id" in obs else str(obs.attrs["_index"]))
    ids = list(enumerate(map(str, _texts(contained(obs, column)))))
    keys = list(enumerate(_texts(contained(obs, "cache_key")))) if "cache_key" in obs else []
    return Foreign(contained(file, "X"), keys, ids, stated)


def _texts(item: h5py.Dataset | h5py.Group) -> Array:
    """Return the texts (n,) of a column; of a group the categories of its codes."""
    if isinstance(item, h5py.Group):
        categories = _texts(contained(item, "categories"))
        return np.asarray(categories[contained(item, "codes")[...]])
    return np.asarray(item.asstr()[...] if h5py.check_string_dtype(item.dtype) else item[...])


Texts = Sequence[str | None]
Rows = Iterable[tuple[Texts, Texts, Array]]
"""Keys, ids and vectors (k, D) of rows that follow each other."""


def _datasets(file: h5py.File) -> Rows:
    """Yield the datasets (D,) of a file: UniProt's per-protein.h5, ProtTrans', biotrainer's and
    bio_embeddings'. A name may be a hash; then an attribute has the id.
    """
    for name in file:
        vector = contained(file, name)
        if not isinstance(vector, h5py.Dataset) or vector.ndim != 1:
            kind = f"shape {vector.shape}" if isinstance(vector, h5py.Dataset) else "a group"
            raise ValueError(f"{name}: {kind}, not a vector; matrices per residue are not imported")
        yield [name], [str(vector.attrs.get("original_id", name))], vector[...][None]


@contextmanager
def _npy(files: Files) -> Iterator[Foreign]:
    try:
        vectors = np.load(files.vectors, mmap_mode="r", allow_pickle=False)
    except ValueError as error:
        raise _refusal(files.vectors, f"not an array of numbers ({error})") from None
    yield Foreign(vectors, *_index(files, ".npy.ids.tsv", len(vectors)), {})


@contextmanager
def _parquet(files: Files) -> Iterator[Foreign]:
    """Read a table with a column of lists of numbers."""
    path, schema = files.vectors, read_schema(files.vectors)
    lists = [
        field.name
        for field in schema
        if (pa.types.is_list(field.type) or pa.types.is_fixed_size_list(field.type))
        and pa.types.is_floating(field.type.value_type)
    ]
    if len(lists) != 1:
        words = f"{len(lists)} columns of vectors among {', '.join(schema.names)}, expected 1"
        raise _refusal(path, words)
    named = _name_columns(path, schema.names, files.id_column)

    def rows() -> Rows:
        for table in read_batches(path, [*named.values(), *lists]):
            vectors = table[lists[0]].combine_chunks()
            if vectors.null_count or len(pc.unique(pc.list_value_length(vectors))) != 1:
                raise _refusal(path, f"the vectors in {lists[0]} have different lengths")
            numbers = vectors.flatten().to_numpy(zero_copy_only=False).reshape(len(table), -1)
            yield *_texts_of(table, named), numbers

    stated = {name.decode(): value.decode() for name, value in (schema.metadata or {}).items()}
    yield Foreign(*_spooled(path, rows()), stated)


@contextmanager
def _text(files: Files) -> Iterator[Foreign]:
    """Read a table of text with the columns e0, e1 ..."""
    path, separator = files.vectors, "," if files.vectors.suffix == ".csv" else "\t"
    header = _header(path, separator)
    numbers = [name for name in header if re.fullmatch(r"e\d+", name)]
    if not numbers:
        raise _refusal(path, "no columns e0, e1 ... of numbers")
    named = _name_columns(path, header, files.id_column)
    types = dict.fromkeys(named.values(), pa.string()) | dict.fromkeys(numbers, pa.float32())

    def rows() -> Rows:
        options = pa.csv.ConvertOptions(column_types=types, include_columns=list(types))
        parse = pa.csv.ParseOptions(delimiter=separator, newlines_in_values=True)
        try:
            for batch in pa.csv.open_csv(path, parse_options=parse, convert_options=options):
                vectors = np.column_stack([batch[name].to_numpy() for name in numbers])
                yield *_texts_of(batch, named), vectors
        except (pa.ArrowException, ValueError) as error:
            raise _refusal(path, f"not a table of vectors ({error})") from None

    yield Foreign(*_spooled(path, rows()), {})


_READERS: dict[str, Callable[[Files], AbstractContextManager[Foreign]]] = {
    **dict.fromkeys((".h5", ".hdf5", ".h5ad"), _hdf5),
    ".npy": _npy,
    ".parquet": _parquet,
    **dict.fromkeys((".csv", ".tsv"), _text),
}
"""Readers by the ending of a file's name."""


def _spooled(path: Path, rows: Rows) -> tuple[Array, Names, Names]:
    """Write vectors to a temporary file without a name; return them, and their names."""
    keys, ids, count = Names(), Names(), 0
    empty: Array | None = None
    with tempfile.TemporaryFile() as file:
        for key_texts, id_texts, vectors in rows:
            empty = vectors[:0] if empty is None else empty
            if vectors.shape[1] != empty.shape[1]:
                words = f"vectors of {empty.shape[1]} and of {vectors.shape[1]} numbers"
                raise _refusal(path, words)
            file.write(np.ascontiguousarray(vectors, empty.dtype).data)
            keys += _numbered(range(count, count + len(vectors)), key_texts)
            ids += _numbered(range(count, count + len(vectors)), id_texts)
            count += len(vectors)
        if empty is None or not empty.shape[1]:
            raise _refusal(path, "holds no vectors")
        file.flush()
        return np.memmap(file, empty.dtype, "r", shape=(count, empty.shape[1])), keys, ids


def _index(files: Files, ending: str, count: int) -> tuple[Names, Names]:
    """Read the keys and ids of `count` rows from the table beside them: Parquet, text with a
    header, or a list of ids. The column `row` tells which rows are meant, else their order.
    """
    path = files.index or files.vectors.with_suffix(ending)
    if not path.exists():
        raise _refusal(path, "there is no such file", "name the table of the rows: --index")
    if path.suffix == ".parquet":
        columns = read_schema(path).names
        if files.vectors.suffix != ".npy" and "row" not in columns:
            raise _refusal(path, f"no column `row`; it has {', '.join(columns)}")
    else:
        separator = "," if path.suffix == ".csv" else "\t"
        columns = _header(path, separator)
        headed = {"cache_key", "id", files.id_column} & {*columns}
        columns = columns if headed else ["id"]
    named, numbered = _name_columns(path, columns, files.id_column), "row" in columns
    if path.suffix == ".parquet":
        tables = read_batches(path, [*named.values(), *["row"] * numbered])
    else:
        options = pa.csv.ReadOptions(column_names=columns, skip_rows=bool(headed))
        types = pa.csv.ConvertOptions(column_types=dict.fromkeys(named.values(), pa.string()))
        parse = pa.csv.ParseOptions(delimiter=separator)
        tables = iter([pa.csv.read_csv(path, options, parse, types)])
    keys, ids, start = Names(), Names(), 0
    for table in tables:
        rows = table["row"].to_pylist() if numbered else range(start, start + len(table))
        key_texts, id_texts = _texts_of(table, named)
        keys += _numbered(rows, key_texts)
        ids += _numbered(rows, id_texts)
        start += len(table)
    if not numbered and start != count:
        raise _refusal(path, f"has {start:,} rows for the {count:,} vectors in {files.vectors}")
    if unknown := [row for row, _ in (*keys, *ids) if not 0 <= row < count]:
        raise _refusal(path, f"names row {unknown[0]}, but {files.vectors} has {count:,} rows")
    return keys, ids


def _header(path: Path, separator: str) -> list[str]:
    with path.open(encoding="utf-8", newline="") as file:
        return next(csv.reader(file, delimiter=separator), [])


def _name_columns(path: Path, columns: Sequence[str], id_column: str) -> dict[str, str]:
    """Return the columns that name rows, by kind. StoreError where that of the ids is not there."""
    if id_column and id_column not in columns:
        words = f"no column `{id_column}`; the columns are {', '.join(columns)}"
        raise _refusal(path, words, "name the one with the ids: --index-id")
    named = {"key": "cache_key", "id": id_column or "id"}
    return {kind: column for kind, column in named.items() if column in columns}


def _texts_of(table: pa.Table | pa.RecordBatch, named: Mapping[str, str]) -> tuple[Texts, Texts]:
    """Return the keys and the ids of a table; none of a kind that it has no column for."""
    keys, ids = (table[named[kind]].to_pylist() if kind in named else [] for kind in ("key", "id"))
    return keys, ids


def _numbered(rows: Iterable[int], texts: Texts) -> Names:
    return [(row, str(text)) for row, text in zip(rows, texts, strict=False) if text is not None]


UNKNOWN, AMBIGUOUS = "no sequence for its key or id", "names of several rows or sequences"


class KnownSequences:
    """The sequences of the input files: their lengths by key, and their keys by record id.

    Ids of different sequences are left out. An accession (of sp|P12345|X_HUMAN), and a header as
    ProtTrans writes it, name a record, too. rare: keys of sequences with the letter B, which the
    family reads as X.
    """

    def __init__(self, files: Files, family: Family) -> None:
        self._files, self._policy = files, ResiduePolicy(alphabet=family.alphabet.name)
        self.length: dict[bytes, int] = {}
        self.rare: set[bytes] = set()
        self._by_id: dict[str, bytes | None] = {}
        self._by_alias: dict[str, bytes | None] = {}
        replaced = "B" in getattr(family.tokenizer, "read_as", ())
        for id, header, sequence in self._read():
            name = key(sequence).encode()
            self.length[name] = len(sequence)
            if replaced and "B" in sequence:
                self.rare.add(name)
            if self._by_id.setdefault(id, name) != name:
                self._by_id[id] = None
            mangled = (re.sub("[/.]", "_", text) for text in (id, header))
            for alias in {*id.split("|")[1:2], *mangled} - {id}:
                if self._by_alias.setdefault(alias, name) != name:
                    self._by_alias[alias] = None

    def _read(self) -> Iterator[tuple[str, str, str]]:
        for path in self._files.sequences:
            with columns_named("name yours: --id-column and --sequence-column"):
                reader = Reader(path, self._files.table)
            for batch in reader:
                texts = (
                    column.to_pylist() for column in (batch.ids, batch.headers, batch.residues)
                )
                for id, header, raw in zip(*texts, strict=True):
                    normalized = normalize(raw, self._policy)
                    if isinstance(normalized, Normalized):
                        yield id, header, normalized.sequence

    def residues(self, keys: Sequence[bytes]) -> list[str]:
        """Return the sequences of some keys; the files are read again."""
        chosen, sequences = set(keys), dict[bytes, str]()
        for _, _, sequence in self._read():
            if (name := key(sequence).encode()) in chosen:
                sequences[name] = sequence
        return [sequences[name] for name in keys]

    def match(self, foreign: Foreign) -> tuple[list[bytes | str], bool]:
        """Return for each row the key of its sequence, or the reason why it has none; and whether
        keys of sequences name the rows.

        If so they alone count: the sequence of an id may have changed since. Else ids count, but
        not those of several rows.
        """
        by_key = any(name.encode() in self.length for _, name in foreign.keys)
        matched: list[bytes | str] = [UNKNOWN] * len(foreign.vectors)
        row_of: dict[str, int] = {}
        for row, name in foreign.keys if by_key else foreign.keys + foreign.ids:
            if by_key:
                sequence = name.encode() if name.encode() in self.length else None
            else:
                sequence = self._by_id[name] if name in self._by_id else self._by_alias.get(name)
            if sequence is None:
                continue
            matched[row] = sequence if matched[row] in (UNKNOWN, sequence) else AMBIGUOUS
            if not by_key and (earlier := row_of.setdefault(name, row)) != row:
                matched[row] = matched[earlier] = AMBIGUOUS
        return matched, by_key
