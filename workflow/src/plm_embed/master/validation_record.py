"""The outcome of validate, `validation.json` in the model's folder: every check with its result,
and what was counted on the way.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import pyarrow as pa

from plm_embed.errors import PlmEmbedError, StoreError
from plm_embed.fingerprint import Fingerprint
from plm_embed.io.json_files import read_sealed
from plm_embed.store.hdf5 import DAMAGES

VALIDATION = "validation.json"
PROOF = "checksums.sha256"
"""The file beside it, only of a result that is right."""
LISTED = 20
"""Problems of a check, and outliers, that are spelled out; the rest is counted."""
Problem = Callable[[str | PlmEmbedError], None]
"""Notes a problem: a text, for which the remedy of the check stands, or an error with its own."""


@dataclass(kw_only=True)
class Check:
    """A check, with the first of its problems. meaning: a sentence for people, the fact that a
    passed check proves.
    """

    check: str
    meaning: str = ""
    result: Literal["passed", "failed"] = "passed"
    problems: int = 0
    listed: list[str] = field(default_factory=list)


@dataclass(kw_only=True)
class Counts:
    """Numbers of a campaign, as far as validate came: sequences, of which `vectors` have a vector;
    records, in all and by status.
    """

    unique: int | None = None
    vectors: int | None = None
    records: int | None = None
    statuses: dict[str, int] | None = None


@dataclass(frozen=True, kw_only=True)
class Outlier:
    """A row of the master whose norm is far from the rest. z: distance of the norm's logarithm from
    the median, in robust standard deviations.
    """

    row: int
    key: str
    norm: float
    z: float


@dataclass(frozen=True, kw_only=True)
class Norms:
    """Distribution of the norms of a representation's vectors, of `rows` that are finite; without
    numbers where none is. Per residue, a row's norm is the root mean square of its residues'.

    Outliers, of which the farthest are listed, are worth a look and no proof of an error.
    """

    rows: int
    min: float | None = None
    median: float | None = None
    max: float | None = None
    outliers: int
    listed: tuple[Outlier, ...]


@dataclass(frozen=True, kw_only=True)
class Spot:
    """A stored vector beside that of the reference path. relative_l2: |stored - expected| /
    |expected|.
    """

    row: int
    key: str
    representation: str
    relative_l2: float
    cosine: float


@dataclass(kw_only=True)
class Validation:
    """The outcome of a validation; checks in the order in which they began.

    finished: when, '' in older records; remedy: of the first problem that has one: all that depends
    on what it deletes is made again.
    norms: by representation; fingerprint: None where no completion record is sound; files: SHA-256
    of master, index and records, by name. Remarks: rounding, where the compute dtype alone moves
    vectors of these weights notably; not_compared, where the reference took no pseudo-perplexity.
    """

    schema_version: Literal[1] = 1
    status: Literal["passed", "failed"]
    finished: str = ""
    remedy: str = ""
    checks: list[Check]
    counts: Counts = field(default_factory=Counts)
    norms: dict[str, Norms] = field(default_factory=dict)
    spot_checks: list[Spot] = field(default_factory=list)
    fingerprint: Fingerprint | None = None
    files: dict[str, str] = field(default_factory=dict)
    rounding: str = ""
    not_compared: str = ""

    @contextmanager
    def check(self, name: str, meaning: str, remedy: str = "") -> Iterator[Problem]:
        """Make the block a check, whose problems have this remedy. A file that cannot be read is a
        problem and ends the block; the validation goes on.
        """
        check = Check(check=name, meaning=meaning)
        self.checks.append(check)

        def problem(fault: str | PlmEmbedError) -> None:
            error = fault if isinstance(fault, PlmEmbedError) else StoreError(fault, remedy=remedy)
            self.status = check.result = "failed"
            self.remedy = self.remedy or error.remedy
            check.problems += 1
            if check.problems <= LISTED:
                check.listed.append(error.message)

        try:
            yield problem
        except PlmEmbedError as error:
            problem(error)
        except (*DAMAGES, LookupError, pa.ArrowException) as error:
            problem(str(error))

    @property
    def recomputed(self) -> int:
        """Return how many sequences the reference computed."""
        return len({spot.row for spot in self.spot_checks})

    @property
    def problems(self) -> list[str]:
        """One line per problem, each with the name of its check."""
        lines = []
        for check in self.checks:
            lines += [f"{check.check}: {text}" for text in check.listed]
            if more := check.problems - len(check.listed):
                lines.append(f"{check.check}: and {more:,} more")
        return lines


def read_validation(path: Path) -> Validation | None:
    """Read validation.json, None when there is none. StoreError when the file was changed."""
    return read_sealed(path, Validation, "a report of validate") if path.is_file() else None
