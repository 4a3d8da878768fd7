"""Pairs of chains on their way from files to unique pairs."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from plm_embed.errors import InputError
from plm_embed.keys import key
from plm_embed.sequences.deduplicate import deduplicate
from plm_embed.sequences.residues import (
    Normalized,
    ResiduePolicy,
    Skipped,
    normalize,
)
from plm_embed.sequences.settings import Table
from plm_embed.sequences.summary import Summary
from support.nasty_inputs import write

PAIRS = ResiduePolicy(alphabet="protein_pair")
TABLE = Table("name", "heavy", ("species",), partner="light")
ROWS = """\
name,heavy,light,species
ab,EVQLVE,DIQM,mouse
again,evqlve,D-IQM*,
turned,DIQM,EVQLVE,human
twice,DIQM,DIQM,human
heavy only,EVQLVE,,human
missing,EVQLVE,NaN,human
colon,EVQL:VE,DIQM,human
odd,EVQLVE,DIQJ,human
name,heavy,light,species
ragged,EVQLVE
codes,EVQLVE,MetLysThrAla,human
"""
FATES = {
    "ab": "EVQLVE:DIQM",
    "again": "EVQLVE:DIQM",
    "turned": "DIQM:EVQLVE",
    "twice": "DIQM:DIQM",
    "heavy only": ("empty", "chain 2"),
    "missing": ("missing_value", None),
    "colon": ("not_a_pair", "3 chains, where ':' stands between two"),
    "odd": ("unknown_residues", "chain 2: J at 4"),
    "name": ("repeated_header", None),
    "ragged": ("ragged_row", "line 11: 2 fields instead of 4"),
    "codes": ("three_letter_code", "chain 2: 4 codes, the first is MET"),
}


def run(path: Path, output: Path, table: Table = TABLE) -> Summary:
    return deduplicate([path], output, buckets=2, table=table, policy=PAIRS, memory_mb=500)


def check(output: Path, fates: dict[str, str | tuple[str, str | None]]) -> None:
    records = pq.read_table(output / "records.parquet").to_pylist()
    assert [record["id"] for record in records] == [*fates]
    for record, fate in zip(records, fates.values(), strict=True):
        first = record["first_chain_length"]
        if isinstance(fate, str):
            counts = len(fate) - 1, fate.index(":")
            assert (record["key"], record["length"], first) == (key(fate), *counts)
        else:
            assert (record["reason"], record["detail"]) == fate
            assert record["key"] is record["length"] is first is None


def test_each_row_of_a_table_with_two_chains_comes_to_its_end(tmp_path: Path) -> None:
    summary = run(write(tmp_path / "pairs.csv", ROWS), tmp_path / "out")
    check(tmp_path / "out", FATES)
    assert (summary.records, summary.accepted, summary.unique) == (11, 4, 3)
    assert summary.residues == 10 + 10 + 8 and summary.lengths == {10: 2, 8: 1}
    members = [
        line
        for file in (tmp_path / "out" / "members").glob("*.parquet")
        for line in pq.read_table(file).to_pylist()
    ]
    assert {line["id"]: line["first_chain_length"] for line in members} == {
        **{"ab": 6, "again": 6, "turned": 4, "twice": 4}
    }
    again = next(line for line in members if line["id"] == "again")
    assert again["events"] == "upper_cased=6;gaps_removed=1;stop_removed=1"
    buckets = [*(tmp_path / "out" / "buckets").glob("*.parquet")]
    rows = [row for file in buckets for row in pq.read_table(file).to_pylist()]
    assert {row["sequence"]: row["length"] for row in rows} == {
        **{"EVQLVE:DIQM": 10, "DIQM:EVQLVE": 10, "DIQM:DIQM": 8}
    }


def test_a_parquet_table_and_one_column_for_both_chains(tmp_path: Path) -> None:
    columns = {"name": ["ab", "none"], "heavy": ["EVQLVE", "EVQLVE"], "light": ["DIQM", None]}
    pq.write_table(pa.table(columns), tmp_path / "pairs.parquet")
    run(tmp_path / "pairs.parquet", tmp_path / "out", Table("name", "heavy", partner="light"))
    check(tmp_path / "out", {"ab": "EVQLVE:DIQM", "none": ("missing_value", None)})
    homodimers = Table("name", "heavy", partner="heavy")
    run(tmp_path / "pairs.parquet", tmp_path / "out", homodimers)
    check(tmp_path / "out", dict.fromkeys(("ab", "none"), "EVQLVE:EVQLVE"))


def test_fasta_has_a_colon_between_the_chains(tmp_path: Path) -> None:
    fasta = write(tmp_path / "pairs.fasta", ">ab\nEVQLVE:\nDIQM\n>alone\nEVQLVE\n>no\n\n")
    run(fasta, tmp_path / "out")
    alone = "not_a_pair", "1 chain, where ':' stands between two"
    check(tmp_path / "out", {"ab": "EVQLVE:DIQM", "alone": alone, "no": ("empty", "chain 1")})


def test_a_table_without_the_column_of_the_second_chain(tmp_path: Path) -> None:
    path = write(tmp_path / "pairs.csv", ROWS)
    with pytest.raises(InputError, match=r"no column 'lights'.*; did you mean 'light'"):
        run(path, tmp_path / "out", Table("name", "heavy", partner="lights"))


def test_single_chains_have_no_colon() -> None:
    assert normalize("EV:DI", ResiduePolicy()) == Skipped("unknown_residues", ": at 3")
    substituted = normalize("EJ:DI", ResiduePolicy(alphabet="protein_pair", unknown="substitute"))
    assert substituted == Normalized("EX:DI", {"substituted": 1})
