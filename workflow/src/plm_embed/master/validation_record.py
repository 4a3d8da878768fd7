"""The outcome of validate, `validation.json` in the model's folder: every check with its result,
and what was counted on the way.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from plm_embed.errors import delete
from plm_embed.fingerprint import Fingerprint
from plm_embed.io.json_files import read_sealed, write_sealed

VALIDATION = "validation.json"
PROOF = "checksums.sha256"
"""Beside it, of a result that is right."""


@dataclass(frozen=True, kw_only=True)
class Check:
    """One check, with the first of its problems."""

    check: str
    meaning: str = ""
    """A sentence for people: the fact that a passed check proves."""
    result: Literal["passed", "failed"]
    problems: int
    listed: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Counts:
    """Numbers of a campaign, as far as validate came."""

    unique: int | None = None
    """Sequences."""
    vectors: int | None = None
    """Sequences that have one."""
    records: int | None = None
    statuses: dict[str, int] | None = None
    """Records by status."""
    skipped: dict[str, int] | None = None
    """Records without a vector, by reason."""
    sources: dict[str, dict[str, int]] | None = None
    """Records by status, of each input file."""


@dataclass(frozen=True, kw_only=True)
class Outlier:
    """A row of the master whose norm is far from the rest."""

    row: int
    key: str
    norm: float
    z: float
    """Distance of the norm's logarithm from the median, in robust standard deviations."""


@dataclass(frozen=True, kw_only=True)
class Norms:
    """Distribution of the norms of a representation's vectors; without numbers where none is
    positive.

    Per residue, a row's norm is the root mean square of its residues'. Outliers are worth a look
    and no proof of an error.
    """

    rows: int
    """Rows whose norm is finite and not 0."""
    zero: int | None = None
    """Rows whose norm is 0."""
    min: float | None = None
    median: float | None = None
    max: float | None = None
    outliers: int
    listed: tuple[Outlier, ...]
    """The farthest."""


@dataclass(frozen=True, kw_only=True)
class Spot:
    """A stored vector beside what the reference path computes."""

    row: int
    key: str
    representation: str
    relative_l2: float
    """|stored - expected| / |expected|."""
    cosine: float


@dataclass(frozen=True, kw_only=True)
class Validation:
    """The outcome of a validation."""

    schema_version: Literal[1] = 1
    status: Literal["passed", "failed"]
    remedy: str = ""
    """The remedy for the first problem that has one."""
    checks: tuple[Check, ...]
    counts: Counts
    norms: dict[str, Norms]
    """Norms by representation."""
    spot_checks: tuple[Spot, ...]
    fingerprint: Fingerprint | None
    """None where no completion record is sound."""
    files: dict[str, str]
    """SHA-256 of master, index and records, by file name."""
    rounding: str = ""
    """A remark where the compute dtype alone moves vectors of these weights notably."""

    @property
    def problems(self) -> list[str]:
        """One line per problem, each with the name of its check."""
        lines = []
        for check in self.checks:
            lines += [f"{check.check}: {text}" for text in check.listed]
            if more := check.problems - len(check.listed):
                lines.append(f"{check.check}: and {more:,} more")
        return lines


def write_validation(path: Path, validation: Validation) -> None:
    """Write validation.json."""
    write_sealed(path, validation)


def read_validation(path: Path) -> Validation | None:
    """Read validation.json, None when there is none. StoreError when the file was changed."""
    if not path.is_file():
        return None
    return read_sealed(path, Validation, "a report of validate", delete(path))
