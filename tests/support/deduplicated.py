"""Runs of deduplicate, and what must hold for the files of any of them."""

import hashlib
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from plm_embed.io.files import sha256_file
from plm_embed.keys import bucket_names, key
from plm_embed.sequences.deduplicate import Summary, deduplicate
from plm_embed.sequences.residues import ResiduePolicy
from plm_embed.sequences.settings import Table
from plm_embed.sequences.summary import read_summary
from support.buckets import bucket_of

TABLE = Table("protein_id", "sequence", ("assembly_id", "protein_name"))


def run(inputs: list[Path], output: Path, **options: Any) -> Summary:
    settings = {"buckets": 3, "table": TABLE, "policy": ResiduePolicy(), "memory_mb": 500} | options
    return deduplicate(inputs, output, **settings)


def rows(path: Path) -> list[dict[str, Any]]:
    return pq.read_table(path).to_pylist()


def all_rows(folder: Path) -> list[dict[str, Any]]:
    return [row for path in sorted(folder.iterdir()) for row in rows(path)]


def files(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def check(output: Path, summary: Summary, inputs: list[Path]) -> None:
    """Everything that must hold for any result, from the files alone."""
    records = rows(output / "records.parquet")
    unique, members = all_rows(output / "buckets"), all_rows(output / "members")
    assert read_summary(output) == summary
    found = {str(path.relative_to(output)): sha256_file(path) for path in output.rglob("*.parquet")}
    assert summary.files == found
    # counts add up
    statuses = Counter(row["status"] for row in records)
    skipped = sum(summary.skipped.values())
    assert summary.records == len(records) == summary.accepted + skipped
    assert summary.records == sum(entry.records for entry in summary.inputs)
    assert (statuses["accepted"], statuses["skipped"]) == (summary.accepted, skipped)
    assert summary.skipped == Counter(row["reason"] for row in records if row["reason"])
    assert summary.unique == len(unique) == sum(summary.lengths.values())
    assert summary.residues == sum(row["length"] for row in unique)
    # records come in input order, and are answered by exactly one member if accepted
    order = {str(path): place for place, path in enumerate(inputs)}
    places = [(order[row["source"]], row["number"]) for row in records]
    assert places == sorted(set(places))
    accepted = [row for row in records if row["status"] == "accepted"]
    accepted.sort(key=lambda row: (row["key"], order[row["source"]], row["number"]))
    assert members == [{name: row[name] for name in members[0]} for row in accepted]
    for row in records:
        without = [row[name] is None for name in ("key", "length")]
        assert without == [row["status"] != "accepted"] * 2 == [row["reason"] is not None] * 2
    # unique sequences, each once, in its bucket, in key order
    names = bucket_names(summary.buckets)
    assert [path.stem for path in sorted((output / "buckets").iterdir())] == names
    assert [path.stem for path in sorted((output / "members").iterdir())] == names
    keys = [row["key"] for row in unique]
    assert keys == sorted({row["key"] for row in accepted})
    assert keys == [key(row["sequence"]) for row in unique]
    assert all(row["length"] == len(row["sequence"]) for row in unique)
    for name in names:
        for folder in ("buckets", "members"):
            for row in rows(output / folder / f"{name}.parquet"):
                assert names[bucket_of(row["key"], summary.buckets)] == name
    for entry, path in zip(summary.inputs, inputs, strict=True):
        assert (entry.path, entry.bytes) == (str(path), path.stat().st_size)
        assert entry.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    written = sorted(path.name for path in output.iterdir())
    assert written == ["buckets", "members", "records.parquet", "summary.json"]
