"""Pairs of chains on their way from files to unique pairs."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from plm_embed.keys import key
from plm_embed.sequences.residues import Normalized, ResiduePolicy, Skipped, normalize
from plm_embed.sequences.settings import Table
from plm_embed.sequences.summary import Summary
from support.deduplicated import all_rows, rows, run
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


def paired(path: Path, output: Path, table: Table = TABLE) -> Summary:
    return run([path], output, table=table, policy=PAIRS)


def check(output: Path, fates: dict[str, str | tuple[str, str | None]]) -> None:
    records = rows(output / "records.parquet")
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
    output = tmp_path / "out"
    summary = paired(write(tmp_path / "pairs.csv", ROWS), output)
    check(output, FATES)
    assert (summary.records, summary.accepted, summary.unique) == (11, 4, 3)
    assert summary.residues == 10 + 10 + 8 and summary.lengths == {10: 2, 8: 1}
    members = {line["id"]: line for line in all_rows(output / "members")}
    first = {id: line["first_chain_length"] for id, line in members.items()}
    assert first == {"ab": 6, "again": 6, "turned": 4, "twice": 4}
    assert members["again"]["events"] == "upper_cased=6;gaps_removed=1;stop_removed=1"
    unique = {row["sequence"]: row["length"] for row in all_rows(output / "buckets")}
    assert unique == {"EVQLVE:DIQM": 10, "DIQM:EVQLVE": 10, "DIQM:DIQM": 8}


def test_a_parquet_table_and_one_column_for_both_chains(tmp_path: Path) -> None:
    columns = {"name": ["ab", "none"], "heavy": ["EVQLVE", "EVQLVE"], "light": ["DIQM", None]}
    pq.write_table(pa.table(columns), tmp_path / "pairs.parquet")
    paired(tmp_path / "pairs.parquet", tmp_path / "out", Table("name", "heavy", partner="light"))
    check(tmp_path / "out", {"ab": "EVQLVE:DIQM", "none": ("missing_value", None)})
    homodimers = Table("name", "heavy", partner="heavy")
    paired(tmp_path / "pairs.parquet", tmp_path / "out", homodimers)
    check(tmp_path / "out", dict.fromkeys(("ab", "none"), "EVQLVE:EVQLVE"))


def test_fasta_has_a_colon_between_the_chains(tmp_path: Path) -> None:
    fasta = write(tmp_path / "pairs.fasta", ">ab\nEVQLVE:\nDIQM\n>alone\nEVQLVE\n>no\n\n")
    paired(fasta, tmp_path / "out")
    alone = "not_a_pair", "1 chain, where ':' stands between two"
    check(tmp_path / "out", {"ab": "EVQLVE:DIQM", "alone": alone, "no": ("empty", "chain 1")})


def test_single_chains_have_no_colon() -> None:
    assert normalize("EV:DI", ResiduePolicy()) == Skipped("unknown_residues", ": at 3")
    substituted = normalize("EJ:DI", ResiduePolicy(alphabet="protein_pair", unknown="substitute"))
    assert substituted == Normalized("EX:DI", {"substituted": 1})
