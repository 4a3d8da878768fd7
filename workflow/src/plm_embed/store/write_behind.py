"""Vectors written into a file beside the caller, who reads the next ones."""

import os

import h5py

from plm_embed.io.threads import OneAtATime
from plm_embed.store.hdf5 import Array, write_bits
from plm_embed.store.rawio import extents, write_block


class VectorWriter(OneAtATime):
    """Writes blocks of vectors into `/representations` of an HDF5 file while the caller reads the
    next ones.
    """

    def __init__(self, file: h5py.File) -> None:
        super().__init__()
        self._datasets: dict[str, h5py.Dataset] = dict(file["representations"].items())
        self._places = {name: extents(dataset) for name, dataset in self._datasets.items()}
        self._descriptor = os.open(file.filename, os.O_WRONLY)

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        os.close(self._descriptor)

    def write(self, name: str, row: int, bits: Array) -> None:
        """Write stored bits (k, D) to rows `row`, ...; they must stay as they are until the write
        after the next.
        """
        where = self._places[name]
        if where is None:
            self.wait()
            write_bits(self._datasets[name], row, bits)
        elif bits.size:
            self.run(write_block, self._descriptor, where, row, bits)

    def sync(self) -> None:
        """Begin to wait for the disk, beside the caller."""
        self.run(os.fsync, self._descriptor)
