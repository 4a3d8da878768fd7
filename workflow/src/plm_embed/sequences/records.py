"""Sequence files to batches of records: FASTA, CSV, TSV and Parquet, plain or compressed, streamed.

Records are numbered from 1: FASTA records, or table rows without the header line and blank lines.
Text before the first '>' of a FASTA file is one record with the number 0 and a fault.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

from plm_embed.errors import InputError
from plm_embed.io.streams import Stream, named_errors
from plm_embed.io.threads import ahead
from plm_embed.sequences.batch import Batch
from plm_embed.sequences.fasta import read_fasta
from plm_embed.sequences.formats import sniff
from plm_embed.sequences.settings import Table
from plm_embed.sequences.tables import DelimitedText, ParquetTable


class Reader:
    """One input file; iterate it once for its batches.

    Made, it has looked at the start of the file only, and raises what `sniff` raises. Iterated, it
    raises InputError for data that are damaged or cut short (naming the number of complete records
    before), and for a table without rows. `records` and `bytes_read` (of `bytes`) grow meanwhile;
    `sha256` of the file is known after the last batch. A FASTA record of more than `LARGEST_RECORD`
    bytes is a fault, a table row of as many characters an error.
    """

    def __init__(self, path: Path, table: Table) -> None:
        kind = sniff(path, table.columns)
        self.path, self.table = path, table
        self.format, self.compression = kind.format, kind.compression
        self.bytes = path.stat().st_size
        self.bytes_read = self.records = 0
        self.sha256 = ""
        self._batches: Callable[[Stream], Iterator[Batch]]
        if self.format == "fasta":
            self._batches = lambda stream: read_fasta(stream.pieces)
        elif self.format == "parquet":
            self._batches = ParquetTable(path, table).batches
        else:
            self._batches = DelimitedText(path, kind.delimiter, table).batches

    def __iter__(self) -> Iterator[Batch]:
        with Stream(self.path) as stream:
            batches = ahead(self._batches(stream), 1)
            while True:
                with named_errors(self.path, lambda: self.records):
                    batch = next(batches, None)
                    self.sha256 = "" if batch else stream.finish()
                self.bytes_read = stream.bytes_read
                if batch is None:
                    break
                self.records += len(batch)
                yield batch
        if not self.records:
            what = f"{self.path}: the table has a header and no rows: no record 1"
            raise InputError(what, path=self.path, record=1)
