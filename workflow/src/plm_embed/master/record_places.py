"""A place for every input record, and tables with a value in each place that stay on disk."""

import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from plm_embed.errors import StoreError
from plm_embed.sequences.summary import SUMMARY, read_summary


class RecordNumbers:
    """A place for every input record, in input order, from its file and its number in that file.

    Numbers count from 1; what stands before the first record of a file is number 0. sources:
    records by file as deduplicate counted them; places: of all files together, some of them unused.
    """

    def __init__(self, sequences: Path) -> None:
        self.summary = read_summary(sequences)
        self.sources: dict[str, int] = {entry.path: entry.records for entry in self.summary.inputs}
        if len(self.sources) < len(self.summary.inputs):
            raise StoreError(
                f"{sequences / SUMMARY}: an input file is named twice",
                path=sequences / SUMMARY,
                remedy="name it once and run again",
            )
        self._first: dict[str, int] = {}
        self.places = 0
        for source, count in self.sources.items():
            self._first[source] = self.places
            self.places += count + 1

    def of(self, table: pa.Table) -> NDArray[np.int64]:
        """Places of the records that the columns `source` and `number` name. StoreError for an
        unknown one.
        """
        source = table["source"].combine_chunks().dictionary_encode()
        paths: list[str] = source.dictionary.to_pylist()
        spans = np.array(
            [(self._first.get(path, 0), self.sources.get(path, -1)) for path in paths],
            dtype=np.int64,
        )
        first, count = spans.reshape(-1, 2)[source.indices.to_numpy(zero_copy_only=False)].T
        number = table["number"].to_numpy()
        unknown = (number < 0) | (number > count)
        if unknown.any():
            at = int(np.flatnonzero(unknown)[0])
            raise StoreError(
                f"{table['source'][at]}, record {number[at]}: no input has this record"
            )
        places: NDArray[np.int64] = first + number
        return places


class RecordTable:
    """Fixed-size values for every record, zero at first, in a temporary file, so that memory stays
    bounded. OSError when the disk has no room for them.
    """

    def __init__(self, folder: Path, places: int, dtype: Any) -> None:
        self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115
        # a file with holes would end the process by a signal once the disk is full
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(self._file.fileno(), 0, max(places, 1) * np.dtype(dtype).itemsize)
        self.values: np.ndarray = np.memmap(
            self._file, dtype=dtype, shape=(max(places, 1),), mode="w+"
        )

    def close(self) -> None:
        del self.values
        self._file.close()
