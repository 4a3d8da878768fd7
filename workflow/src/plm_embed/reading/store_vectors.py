"""Reading a store as it is, without a master: by key, since parts know nothing of records."""

from collections.abc import Iterable, Iterator
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from plm_embed.errors import PlmEmbedError, StoreError, extra
from plm_embed.fingerprint import Fingerprint, has_matrix, storage_bytes
from plm_embed.keys import Keys
from plm_embed.reading.exports.as_anndata import make_anndata
from plm_embed.reading.rows import Rows
from plm_embed.reading.vectors import KEY_TEXT, Embedder, Vectors
from plm_embed.store.hdf5 import Array, decode
from plm_embed.store.parts import Part, read_part
from plm_embed.store.replaced import PartList, was_compacted
from plm_embed.store.store import fingerprint_folders, read_fingerprint

if TYPE_CHECKING:
    import anndata


def is_store(path: Path) -> bool:
    """Whether a folder is a store of one fingerprint, or holds such stores."""
    return path.is_dir() and bool(fingerprint_folders(path))


class StoreVectors(Vectors):
    """All keys that the parts of a store hold when it is opened; 76 bytes of memory per key."""

    def __init__(self, path: Path, embedder: Embedder | None = None) -> None:
        self.embedder = embedder
        folders = fingerprint_folders(path)
        if len(folders) > 1:
            listed = ", ".join(folder.name for folder in folders)
            raise StoreError(
                f"{path}: holds {len(folders)} stores of different settings",
                path=path,
                remedy=f"open one of them: {listed}",
            )
        self.path = folders[0]
        self._fingerprint = read_fingerprint(self.path)
        self._parts = PartList(self.path / "parts").all()
        self._dim = 0
        held = []
        for file in self._parts:
            with read_part(file) as part:
                part.check(self._fingerprint)
                self._dim = next(iter(part.dims.values()))
                held.append(part.keys)
        counts = [len(keys) for keys in held]
        everything: Keys = np.concatenate([np.zeros(0, "S64"), *held])
        # stable: of a key that several parts hold, the first part by name serves, as in a master
        self._keys, first = np.unique(everything, return_index=True)
        self._part = np.repeat(np.arange(len(counts)), counts)[first].astype(np.int32)
        starts = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
        self._row: Rows = first - starts[self._part]

    def close(self) -> None:
        """Nothing stays open."""

    def __len__(self) -> int:
        return len(self._keys)

    def __contains__(self, key: object) -> bool:
        """Whether a key has a vector."""
        return (
            isinstance(key, str)
            and bool(KEY_TEXT.fullmatch(key))
            and int(self._locate(np.array([key], "S64"))[0]) >= 0
        )

    @property
    def names(self) -> list[str]:
        return list(self._fingerprint.representations)

    @property
    def dim(self) -> int:
        return self._dim

    @property
    def fingerprint(self) -> Fingerprint:
        return self._fingerprint

    @property
    def keys(self) -> Keys:
        return self._keys

    @cached_property
    def lengths(self) -> NDArray[np.int32]:
        lengths = np.empty(len(self), dtype=np.int32)
        for number, mine in self._by_part(np.arange(len(self))):
            with self._opened(number) as part:
                lengths[mine] = part.length[self._row[mine]]
        return lengths

    def get(self, ids: Iterable[str], name: str = "emb") -> Array:  # noqa: ARG002
        """PlmEmbedError: a store knows sequences, not records."""
        raise PlmEmbedError(
            f"{self.path}: a store has keys, no ids: use by_key, or open a master", path=self.path
        )

    def to_anndata(self, name: str = "emb") -> "anndata.AnnData":
        """An observation for every key, with the length of its sequence; X (n, D)."""
        with extra():
            import pandas as pd
        return make_anndata(
            self.to_numpy(name), pd.DataFrame({"length": self.lengths}, index=self.keys.astype(str))
        )

    def _pooled(self, name: str) -> str:
        name = super()._pooled(name)
        return next(each for each in self.names if not has_matrix(each)) if name == "emb" else name

    def __iter__(self) -> Iterator[str]:
        """All keys, sorted."""
        return (key.decode() for key in self._keys.tolist())

    def _of_name(self, name: str) -> Array:
        vector: Array = self.by_key([name])[0]
        return vector

    def _lines(self, rows: Rows) -> pa.Table:
        keys = pa.array(self.keys[rows].astype(str))
        return pa.table({"row": rows, "key": keys, "length": self.lengths[rows]})

    def _locate(self, keys: Keys) -> Rows:
        if not len(self):
            return np.full(len(keys), -1)
        at = np.minimum(np.searchsorted(self._keys, keys), len(self) - 1)
        return np.where(self._keys[at] == keys, at, -1)

    def _span(self, name: str, start: int, stop: int) -> Array:
        return self._take(name, np.arange(start, stop))

    def _take(self, name: str, rows: Rows) -> Array:
        unique, back = np.unique(rows, return_inverse=True)
        bits = np.empty(
            (len(unique), self.dim), f"<u{storage_bytes(self._fingerprint.storage_dtype)}"
        )
        for number, mine in self._by_part(unique):
            with self._opened(number) as part:
                wanted = self._row[unique[mine]]
                bits[mine] = part.bits(name, wanted)
        return decode(bits[back], self._fingerprint.storage_dtype)

    def _by_part(self, rows: Rows) -> Iterator[tuple[int, Rows]]:
        """Each part that holds some of the rows, and where in `rows` those are."""
        which = self._part[rows]
        order = np.argsort(which, kind="stable")
        numbers, starts = np.unique(which[order], return_index=True)
        ends = [*starts[1:].tolist(), len(order)]
        for number, start, end in zip(numbers.tolist(), starts.tolist(), ends, strict=False):
            yield number, order[start:end]

    def _residues(self, name: str, row: int) -> Array:
        with self._opened(int(self._part[row])) as part:
            matrix: Array = part.rows(name, self._row[[row]])[0]
        return matrix

    def _opened(self, number: int) -> Part:
        path = self._parts[number]
        try:
            return read_part(path)
        except StoreError:
            if not was_compacted(path):
                raise
            what = f"{path}: `plm-embed compact` has replaced it since the store was opened"
            raise StoreError(what, remedy="open the store again", path=path) from None
