"""Settings of the steps that read sequences, without the libraries that carry them out."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Literal

from plm_embed.errors import InputError

OnError = Literal["raise", "skip"]
"""Policy for a sequence without a vector, where sequences are given in memory."""
LEAST_MEMORY_MB, MEMORY_MB = 500, 2000
"""Memory that a step which reads sequences takes unless told otherwise, in MB."""
FIRST_CHAIN = "first_chain_length"
"""The column of pairs of chains that has the residues of the first one."""
RECORDS = (
    *("source", "number", "id", "header", "status", "reason", "detail", "events"),
    *("key", "length"),
)
"""The columns of records.parquet, before those to keep."""
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

    def check(self, path: Path, names: Sequence[str]) -> None:
        """InputError unless each of the columns occurs once among the `names` of a file; it lists
        these and the nearest name.
        """
        for column, kind in self.columns.items():
            if (count := names.count(column)) > 1:
                words = f"{path}: {count} columns are named {column!r}"
                raise InputError(words, path=path, remedy="rename all but one")
            if not count:
                folded = {_fold(name): name for name in names}
                near = get_close_matches(_fold(column), folded, n=1)
                name = shlex.quote(folded[near[0]]) if near else "NAME"
                hint = f"; did you mean {folded[near[0]]!r}?" if near else ""
                more = f" and {len(names) - 30} more" if len(names) > 30 else ""
                listed = ", ".join(map(repr, names[:30])) + more
                raise InputError(
                    f"{path}: no column {column!r}; the columns are {listed}{hint}",
                    path=path,
                    remedy=self.remedies[kind].format(name),
                )


def _fold(name: str) -> str:
    return name.casefold().replace(" ", "_")


def why_not_kept(name: str) -> str:
    """Return why a column of this name cannot be carried into the results, or ''."""
    if name in {*RECORDS, FIRST_CHAIN, "cache_key", "row"}:  # the last two are the index's
        return "the results have a column of their own of this name; leave it out or rename yours"
    if name == "sequence":
        return "the steps call the normalized residues so; rename your column to keep it"
    return ""
