"""The input of a campaign, counted, and its sequences that the store lacks."""

import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from plm_embed.errors import InputError, PlmEmbedError
from plm_embed.fingerprint import Fingerprint
from plm_embed.io.files import missing
from plm_embed.io.json_files import read_sealed
from plm_embed.io.parquet import read_table
from plm_embed.jobs.completion_record import is_done
from plm_embed.keys import bucket_names, key_array
from plm_embed.models.registry import Model
from plm_embed.sequences.settings import MEMORY_MB, Table
from plm_embed.sequences.summary import Summary, known_summary, read_summary
from plm_embed.store.parts import Part, parts_folder
from plm_embed.store.store import PartList, fingerprint_folders, read_fingerprint
from plm_embed.workflow.checks import known_settings
from plm_embed.workflow.config import Config, input_paths, input_tables, residues_of

BUCKETS = 64
"""Buckets of sequences that are read for their number alone."""


@dataclass(frozen=True)
class Input:
    """Counts of what is to be embedded. lengths: unique sequences by their number of residues;
    counted: in words, how; folder: of the deduplicated sequences, if there is one.
    """

    records: int
    accepted: int
    unique: int
    residues: int
    lengths: dict[int, int]
    counted: str
    folder: Path | None = None


@contextmanager
def counted_input(config: Config, lengths: Path | None) -> Iterator[Input]:
    """Count the deduplicated sequences of the campaign, its input, or a table of lengths."""
    if lengths:
        yield _from_lengths(lengths)
        return
    from plm_embed.sequences.deduplicate import deduplicate  # not to read a configuration

    folder, policy = Path(config["results"], "sequences"), residues_of(config)
    paths = [Path(path) for path in input_paths(config)]
    for path in paths:
        if words := missing(path):
            raise InputError(f"inputs: {path}: {words}", path=path)
    if summary := known_summary(folder):
        before = sorted((entry.path, entry.bytes) for entry in summary.inputs)
        same = before == sorted((str(path), path.stat().st_size) for path in paths)
        if same and summary.policy in (None, policy):
            yield _counts(summary, f"as in {folder}", folder)
            return
    with tempfile.TemporaryDirectory(prefix="plm-embed-plan-") as temporary:
        summary = deduplicate(
            paths, Path(temporary), buckets=BUCKETS, table=Table(), tables=input_tables(config),
            policy=policy, memory_mb=MEMORY_MB,
        )  # fmt: skip
        yield _counts(summary, "counted just now", Path(temporary))


def _counts(summary: Summary, how: str, folder: Path | None = None) -> Input:
    counts = (summary.records, summary.accepted, summary.unique, summary.residues)
    return Input(*counts, dict(summary.lengths), how, folder)


def _from_lengths(path: Path) -> Input:
    """Return the counts of a summary.json, or of lines of `length number`. InputError otherwise."""
    text = path.read_text(encoding="utf-8-sig", errors="replace")
    if text.lstrip().startswith("{"):
        name = "the summary.json of deduplicated sequences"
        return _counts(read_sealed(path, Summary, name, "", InputError), f"by {path}")
    lengths = Counter[int]()
    for number, line in enumerate(text.splitlines(), start=1):
        if line.strip() and not line.startswith("#"):
            words = line.replace(",", " ").split()
            if len(words) != 2 or not all(word.isdecimal() and int(word) for word in words):
                where = f"--lengths: {path}, line {number}: {line.strip()!r}"
                raise InputError(f"{where}: must be `length number`", path=path, line=number)
            lengths[int(words[0])] += int(words[1])
    unique = lengths.total()
    residues = sum(length * count for length, count in lengths.items())
    return Input(unique, unique, unique, residues, dict(lengths), f"by the lengths in {path}")


def lengths_left(config: Config, model: Model, counted: Input) -> Mapping[int, int]:
    """Return the number by length of the sequences that the store lacks.

    The device that will compute decides the rest of the fingerprint (compute_dtype auto, the
    engine): of several fingerprints that fit the settings, the one that spares most counts.
    """
    if not counted.folder:
        return counted.lengths
    results, settings = Path(config["results"], model.name), known_settings(config, model)
    store, left = Path(config["store"] or results / "store"), counted.lengths
    for folder in fingerprint_folders(store):
        fingerprint = read_fingerprint(folder)
        stated = fingerprint.stated
        if all(stated[key] == value for key, value in settings.items()):
            lacking = _lacking(counted.folder, results / "embedded", store, fingerprint)
            left = min(left, lacking, key=lambda lengths: sum(lengths.values()))
    return left


def _lacking(
    sequences: Path, embedded: Path, store: Path, fingerprint: Fingerprint
) -> dict[int, int]:
    """Count by length the sequences in a folder that the store lacks."""
    parts, lacking = PartList(parts_folder(store, fingerprint)), Counter[int]()
    for name in bucket_names(read_summary(sequences).buckets):
        bucket = sequences / "buckets" / f"{name}.parquet"
        if is_done(bucket, embedded / f"{name}.json", store, fingerprint):
            continue
        table = read_table(bucket, ["key", "length"])
        keys, absent = key_array(table["key"]), np.ones(len(table), dtype=np.bool_)
        for path in parts.between(keys[0].decode(), keys[-1].decode()) if len(keys) else ():
            # a damaged one counts for nothing: its sequences will be computed again
            with suppress(PlmEmbedError), Part(path) as part:
                absent &= part.locate(keys) < 0
        lacking.update(table["length"].to_numpy()[absent].tolist())
    return lacking
