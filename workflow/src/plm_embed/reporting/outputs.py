"""The files that a model's campaign leaves: what each is, and how to open it."""

import mimetypes
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from plm_embed.fingerprint import SPANS, has_matrix
from plm_embed.master.validation_record import PROOF, VALIDATION
from plm_embed.reporting import skipped
from plm_embed.reporting.repeat import CONFIG

CRATE = "ro-crate-metadata.json"
REPORT = "report.html"
_TYPES = {
    ".h5": "application/x-hdf5",
    ".parquet": "application/vnd.apache.parquet",
    ".sha256": "text/plain",
    ".tsv": "text/tab-separated-values",
    ".yaml": "application/yaml",
}


def reader(names: Collection[str]) -> str:
    """The method of opened embeddings that reads representations with these names."""
    if not all(map(has_matrix, names)):
        return "get"
    return "per_token" if SPANS in names else "per_residue"


@dataclass(frozen=True)
class Output:
    """A file in the folder of a model.

    what: is in it; opening: a line of Python or of a shell, in that folder, or words.
    """

    path: Path
    what: str
    opening: str

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def media_type(self) -> str | None:
        return _TYPES.get(self.path.suffix) or mimetypes.guess_type(self.name)[0]


def outputs(folder: Path, master: Path | None) -> Iterator[Output]:
    """The files that there are, and those that are made with the report."""
    found = [(REPORT, "this report", "any browser")]
    if master:
        index = master.with_suffix(".parquet").name
        found = [
            (
                master.name,
                "vectors, one row per distinct sequence in the order of the keys",
                "plm_embed.open(...)",
            ),
            (
                index,
                "index: one row per record that has a vector",
                "pandas.read_parquet(...)",
            ),
            *found,
        ]
    found += [
        (
            "records.parquet",
            "what became of every input record",
            "pandas.read_parquet(...)",
        ),
        (skipped.NAME, "records without a vector, and why", "a spreadsheet"),
        (VALIDATION, "every check of the validation and its result", "a text editor"),
        (PROOF, "checksums of the result", f"sha256sum --check {PROOF}"),
        (CONFIG, "the configuration, to repeat it", "a text editor"),
        (CRATE, "provenance for machines: an RO-Crate", "a text editor"),
    ]
    for name, what, opening in found:
        if (folder / name).is_file() or name in (REPORT, CRATE):
            yield Output(folder / name, what, opening)
