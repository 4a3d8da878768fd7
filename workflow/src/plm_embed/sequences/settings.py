"""Settings of the steps that read sequences, without the libraries that carry them out."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

OnError = Literal["raise", "skip"]
"""Policy for a sequence without a vector, where sequences are given in memory."""
LEAST_MEMORY_MB, MEMORY_MB = 500, 2000
"""Memory that a step which reads sequences takes unless told otherwise, in MB."""
FIRST_CHAIN = "first_chain_length"
"""The column of pairs of chains that has the residues of the first one."""
_RESULTS = {
    *("id", "cache_key", "key", "row", "length", "source", "number"),
    *("header", "status", "reason", "detail", "events", FIRST_CHAIN),
}
"""Columns that the index or records.parquet have by themselves."""


_IN_CONFIGURATION = {
    name: f"name yours: `{name}: {{}}` of the input"
    for name in ("id", "sequence", "structure", "partner", "keep")
}


@dataclass(frozen=True)
class Table:
    """The columns of CSV, TSV and Parquet inputs: the id, the residues, their 3Di states or the
    residues of a second chain if there is such a column, and those to keep. FASTA ignores it.
    """

    id: str = "id"
    sequence: str = "sequence"
    keep: tuple[str, ...] = ()
    structure: str = ""
    partner: str = ""
    remedies: Mapping[str, str] = field(default_factory=lambda: _IN_CONFIGURATION, compare=False)
    """Remedies for columns that a file lacks, by their names here; {} is the file's nearest one."""

    @property
    def columns(self) -> dict[str, str]:
        """Return the columns of a file that are read, each with its name here."""
        columns: dict[str, str] = {}
        for name in ("id", "sequence", "structure", "partner"):
            columns.setdefault(getattr(self, name), name)
        for column in self.keep:
            columns.setdefault(column, "keep")
        columns.pop("", None)
        return columns


def why_not_kept(name: str) -> str:
    """Return why a column of this name cannot be carried into the results, or ''."""
    if name in _RESULTS:
        return "the results have a column of their own of this name; leave it out or rename yours"
    if name == "sequence":
        return "the steps call the normalized residues so; rename your column to keep it"
    return ""
