"""Tables to batches of records: CSV and TSV text, and Parquet files, a part of either at a time."""

from dataclasses import dataclass
from typing import Annotated

from plm_embed.setting import Setting


@dataclass(frozen=True)
class Table:
    """The columns of CSV, TSV and Parquet inputs: the id, the residues, and those to keep. FASTA
    ignores it.
    """

    id: Annotated[str, Setting("Column with the record id (tables only).", option="id-column")] = (
        "id"
    )
    sequence: Annotated[
        str,
        Setting(
            "Column with the residues (tables only).",
            option="sequence-column",
        ),
    ] = "sequence"
    keep: Annotated[
        tuple[str, ...],
        Setting("Column to carry into the index (tables only; repeatable)."),
    ] = ()

    @property
    def read(self) -> tuple[str, str]:
        """The columns that say what a record is."""
        return self.id, self.sequence

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((self.id, self.sequence, *self.keep)))
