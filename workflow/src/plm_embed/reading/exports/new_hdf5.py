"""A new HDF5 file of an export, on a disk that may be full.

HDF5 goes on after a write that failed, prints what its objects meet when they are closed, and in
the end crashes. So what went wrong is kept from it, and told to who writes.
"""

import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py

from plm_embed.io.files import atomic_path
from plm_embed.store.hdf5 import connect


class _File(io.FileIO):
    def __init__(self, path: Path) -> None:
        super().__init__(path, "w+b")
        self._error: OSError | None = None

    def write(self, data: Any) -> int:
        left = memoryview(data).cast("B")
        try:
            while left and not self._error:
                left = left[super().write(left) :]
        except OSError as error:
            self._error = error
        return memoryview(data).nbytes

    def check(self) -> None:
        if self._error:
            raise self._error


@contextmanager
def new_hdf5(final: Path) -> Iterator[tuple[h5py.File, Callable[[], None]]]:
    """The file, which appears whole when the block succeeds, and a function to call now and then:
    it raises the OSError of the first write that failed.
    """
    with atomic_path(final) as temporary, _File(temporary) as written:
        with connect(written, "w") as file:
            yield file, written.check
        written.check()
