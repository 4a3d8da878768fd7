"""Names that moved to `parts`."""

import h5py

from plm_embed.fingerprint import has_matrix
from plm_embed.store import checksums
from plm_embed.store.hdf5 import Array, Numbers
from plm_embed.store.parts import BYTES_PER_PART, SCHEMA_VERSION, PartRows, write_part

__all__ = ["BYTES_PER_PART", "SCHEMA_VERSION", "PartRows", "write_checksums", "write_part"]


def write_checksums(file: h5py.File, name: str, start: int, bits: Array, residues: Numbers) -> None:
    """Keep the checksums of the keys from row `start` on."""
    of = checksums.of_sequences(bits, residues) if has_matrix(name) else checksums.of_rows(bits)
    checksums.write(file, name, start, of)
