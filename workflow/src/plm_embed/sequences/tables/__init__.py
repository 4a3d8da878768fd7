"""Tables to batches of records: CSV and TSV text, and Parquet files, a part of either at a time."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Table:
    """The columns of CSV, TSV and Parquet inputs: the id, the residues, and those to keep. FASTA
    ignores it.
    """

    id: str = "id"
    sequence: str = "sequence"
    keep: tuple[str, ...] = ()

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((self.id, self.sequence, *self.keep)))
