"""The table of records without a vector, as spreadsheets open it."""

import csv
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from plm_embed.reporting.outputs import SKIPPED_COLUMNS, write_skipped
from support.campaigns import gathered_campaign


def table(path: Path) -> list[list[str]]:
    with path.open(encoding="utf-8", newline="") as lines:
        return list(csv.reader(lines, delimiter="\t"))


def test_every_skipped_record_is_named(tmp_path: Path) -> None:
    """Those skipped when read, and those whose vector could not be computed."""
    campaign = gathered_campaign(tmp_path, out_of_memory=2)
    records = campaign.master.with_name("records.parquet")
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
