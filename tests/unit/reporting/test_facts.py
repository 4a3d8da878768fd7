"""Facts of a report: the completion records that count, and the table of records without a
vector, as spreadsheets open it.
"""

import csv
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from plm_embed.fingerprint import Pooling
from plm_embed.io.json_files import write_sealed
from plm_embed.reporting.facts import last_runs
from plm_embed.reporting.outputs import SKIPPED_COLUMNS, write_skipped
from support.campaigns import MEAN, completion, gathered_campaign
from support.made_up_sequences import counted


def test_what_earlier_settings_left_does_not_count(tmp_path: Path) -> None:
    def leave(bucket: str, ended: str, pooling: Pooling) -> None:
        fingerprint = replace(MEAN, pooling=(pooling,))
        record = completion(bucket=bucket, ended=ended, fingerprint=fingerprint, found=1)
        write_sealed(tmp_path / "embedded" / f"{bucket}.json", record)

    assert last_runs(tmp_path, counted(buckets=2)) == []
    leave("0000", "2026-01-02", "mean")
    leave("0001", "2026-01-01", "max")
    leave("0002", "2026-01-03", "mean")  # of more buckets than there are now
    assert [record.bucket for record in last_runs(tmp_path, counted(buckets=2))] == ["0000"]
    assert [record.bucket for record in last_runs(tmp_path, counted(buckets=3))] == ["0000", "0002"]


def table(path: Path) -> list[list[str]]:
    with path.open(encoding="utf-8", newline="") as lines:
        return list(csv.reader(lines, delimiter="\t"))


def test_every_skipped_record_is_named(tmp_path: Path) -> None:
    """Records skipped when read, and those whose vector could not be computed."""
    records = gathered_campaign(tmp_path, out_of_memory=2).records
    write_skipped(records, tmp_path / "skipped.tsv")
    head, *rows = table(tmp_path / "skipped.tsv")
    assert head == list(SKIPPED_COLUMNS)
    reasons = [row[1] for row in rows]
    assert reasons.count("empty") == 6 and reasons.count("out_of_memory") == 3 and len(rows) == 10
    expected = pq.read_table(records).filter(pa.compute.field("status") == "skipped")
    assert [row[0] for row in rows] == [id or "" for id in expected["id"].to_pylist()]


def test_foreign_text_stays_in_its_cell(tmp_path: Path) -> None:
    columns = {
        "status": ["skipped", "embedded"],
        "id": ["a\tb\n\x1b[2J", "c"],
        "reason": ["empty", None],
        "detail": [None, None],
        "source": ["x.fasta", "x.fasta"],
        "number": [1, 2],
    }
    pq.write_table(pa.table(columns), tmp_path / "records.parquet")
    write_skipped(tmp_path / "records.parquet", tmp_path / "skipped.tsv")
    assert table(tmp_path / "skipped.tsv")[1:] == [["a\tb\n\\x1b[2J", "empty", "", "x.fasta", "1"]]
