from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from plm_embed.errors import PlmEmbedError
from plm_embed.keys import key
from plm_embed.sequences.residues import ResiduePolicy
from plm_embed.sequences.settings import Table
from support.deduplicated import all_rows, check, files, rows, run
from support.nasty_inputs import COMPRESS, M2, NEP, PLAIN, write

NASTY = Path(__file__).parents[2] / "data" / "bad_inputs"
# what each file of the collection comes to: accepted, unique, skipped by reason, records with an
# event; or an error
NASTY_ENDS: dict[str, tuple[int, int, dict[str, int], dict[str, int]] | str] = {
    "all_x.fasta": (3, 3, {}, {}),
    "blank_lines.fasta": (5, 5, {}, {}),
    "compressed.fasta.bz2": (5, 5, {}, {}),
    "compressed.fasta.gz": (5, 5, {}, {}),
    "compressed.fasta.xz": (5, 5, {}, {}),
    "compressed.fasta.zst": (5, 5, {}, {}),
    "crlf_line_endings.fasta": (5, 5, {}, {}),
    "csv_bom_crlf.csv": (5, 5, {}, {}),
    "csv_column_names_differ.csv": r"no column 'protein_id'; .* did you mean 'Protein_ID'\?",
    "csv_duplicate_rows.csv": (8, 5, {}, {}),
    "csv_empty_sequence.csv": (2, 2, {"empty": 2, "missing_value": 1}, {}),
    "csv_gzip.csv.gz": (5, 5, {}, {}),
    "csv_header_only.csv": "a header and no rows",
    "csv_id_is_NA.csv": (5, 5, {}, {}),
    "csv_newline_in_field.csv": (5, 5, {}, {}),
    "csv_no_sequence_column.csv": "no column 'sequence'; the columns are 'assembly_id', "
    "'protein_id', 'protein_name'",
    "csv_number_like_ids.csv": (5, 5, {}, {}),
    "csv_other_order_extra_columns.csv": "no column 'protein_name'",
    "csv_plain.csv": (5, 5, {}, {}),
    "csv_quoted_commas.csv": (5, 5, {}, {}),
    "csv_ragged_rows.csv": (2, 2, {"ragged_row": 2}, {}),
    "csv_semicolons.csv": (5, 5, {}, {}),
    "csv_tabs.tsv": (5, 5, {}, {}),
    "duplicate_ids.fasta": (4, 3, {}, {}),
    "empty_file.fasta": "the file is empty",
    "empty_sequence.fasta": (3, 3, {"empty": 3}, {}),
    "gaps.fasta": (5, 5, {}, {"gaps_removed": 4}),
    "gt_inside_header.fasta": (2, 2, {}, {}),
    "gzip_without_gz_name.fasta": (5, 5, {}, {}),
    "header_without_name.fasta": (3, 3, {}, {}),
    "latin1_header.fasta": (2, 2, {}, {}),
    "length_boundaries.fasta": (10, 10, {}, {}),
    "lower_case.fasta": (5, 5, {}, {"upper_cased": 5}),
    "no_final_newline.fasta": (5, 5, {}, {}),
    "nucleotides_not_protein.fasta": "these are nucleotides, and the model reads proteins: 100%",
    "path_like_ids.fasta": (5, 5, {}, {}),
    "plain_multi_line.fasta": (5, 5, {}, {}),
    "plain_one_line.fasta": (5, 5, {}, {}),
    "plain_text_named_gz.fasta.gz": (5, 5, {}, {}),
    "rare_letters_UOBZJ.fasta": (6, 5, {"unknown_residues": 2}, {}),
    "same_first_word.fasta": (3, 3, {}, {}),
    "same_sequence_many_ids.fasta": (120, 1, {}, {}),
    "space_after_gt.fasta": (2, 2, {}, {}),
    "spaces_and_numbers_in_sequence.fasta": (0, 0, {"unknown_residues": 3}, {}),
    "special_tokens_in_sequence.fasta": (0, 0, {"unknown_residues": 3}, {}),
    "stop_at_end.fasta": (5, 5, {}, {"stop_removed": 5}),
    "stop_inside.fasta": (3, 3, {"unknown_residues": 2}, {}),
    "tabs_in_header.fasta": (2, 2, {}, {}),
    "text_before_first_header.fasta": (5, 5, {"text_before_first_header": 1}, {}),
    "truncated.fasta.gz": "cut short after 116 complete records",
    "two_gzip_members.fasta.gz": (5, 5, {}, {}),
    "unicode_header.fasta": (3, 3, {}, {}),
    "utf8_bom.fasta": (5, 5, {}, {}),
    "very_long_header.fasta": (2, 2, {}, {}),
    "very_long_titin.fasta": (3, 3, {}, {}),
    "whitespace_only_file.fasta": "nothing but white space",
    "x_runs.fasta": (6, 6, {}, {}),
}


@pytest.mark.parametrize("name", sorted({*NASTY_ENDS, *(path.name for path in NASTY.glob("*"))}))
def test_every_file_of_the_collection_comes_to_its_end(tmp_path: Path, name: str) -> None:
    end, path, output = NASTY_ENDS[name], NASTY / name, tmp_path / "out"
    if isinstance(end, str):
        with pytest.raises(PlmEmbedError, match=end) as error:
            run([path], output)
        assert str(path) in str(error.value) and "\n" not in str(error.value)
        assert not files(tmp_path)
    else:
        summary = run([path], output)
        assert (summary.accepted, summary.unique, summary.skipped, summary.events) == end
        shared = name in {"csv_duplicate_rows.csv", "duplicate_ids.fasta", "same_first_word.fasta"}
        assert len(summary.warnings) == (shared or not summary.accepted)
        check(output, summary, [path])


def odd_records() -> str:
    return (
        f"free text\n{PLAIN}>AAD51929.1 other residues\n{M2[:40]}J\n>low\n{M2.lower()}*\n"
        f">blanks\n{NEP[:60]} {NEP[60:]}\n>blanks at line ends\n{NEP[:60]}  \n{NEP[60:]}\t\n"
        f">gaps\n{M2[:9]}-{M2[9:]}\n>none\n>mask\nMK<mask>T\n>plain again\n{M2}\n>plain "
        f"again\n{M2}\n"
    )


@pytest.fixture
def inputs(tmp_path: Path) -> list[Path]:
    """FASTA (zstd), CSV (gzip), Parquet and plain FASTA with the same sequences in many guises."""
    fasta = write(tmp_path / "a.fasta", COMPRESS["zstd"](odd_records().encode()))
    text = (
        f"assembly_id,protein_id,protein_name,sequence\nA1,NA,NA,{M2}\nA1,x\nA2,"
        f"NA,M2,{NEP}J\nA3,00123,,NaN\nA4,,,\n"
    )
    table = write(tmp_path / "b.csv", COMPRESS["gzip"](text.encode()))
    parquet = tmp_path / "c"
    columns = {"sequence": [NEP, None, M2[1:]], "protein_id": [1, 2, 3]}
    columns |= {"assembly_id": ["A", None, "B"], "protein_name": ["p", "q", "r"]}
    pq.write_table(pa.table(columns), parquet)
    return [fasta, table, parquet, write(tmp_path / "d.fa", PLAIN)]


def test_every_record_of_several_inputs_is_accounted_for(
    tmp_path: Path, inputs: list[Path]
) -> None:
    output = tmp_path / "out"
    summary = run(inputs, output)
    check(output, summary, inputs)
    assert (summary.records, summary.accepted, summary.unique) == (22, 13, 3)
    assert summary.skipped == {
        **{"text_before_first_header": 1, "unknown_residues": 3, "empty": 2},
        **{"missing_value": 2, "ragged_row": 1},
    }
    assert summary.events == {
        **{"upper_cased": 1, "stop_removed": 1, "whitespace_removed": 2, "gaps_removed": 1}
    }
    assert summary.lengths == {96: 1, 97: 1, 121: 1}
    kinds = [(entry.format, entry.compression) for entry in summary.inputs]
    assert kinds == [("fasta", "zstd"), ("csv", "gzip"), ("parquet", "none"), ("fasta", "none")]
    records = rows(output / "records.parquet")
    assert records[3] == {
        **{"source": str(inputs[0]), "number": 3, "id": "AAD51929.1"},
        **{"header": "AAD51929.1 other residues", "status": "skipped"},
        **{"reason": "unknown_residues", "detail": "J at 41", "events": ""},
        **dict.fromkeys(("key", "length", "assembly_id", "protein_name")),
    }
    assert records[4]["events"] == "upper_cased=97;stop_removed=1" and records[4]["key"] == key(M2)
    names = "id", "header", "assembly_id", "protein_name"
    cells = [[row[name] for name in names] for row in records if row["source"] == str(inputs[1])]
    assert cells[:3:2] == [["NA", "NA", "A1", "NA"], ["NA", "NA", "A2", "M2"]]
    repeated = [row["id"] for row in all_rows(output / "members") if row["key"] == key(M2)]
    assert repeated == ["AAD51929.1", "low", "gaps", "plain", "plain", "NA", "AAD51929.1"]


def test_the_policy_decides_about_unknown_letters_and_gaps(
    tmp_path: Path, inputs: list[Path]
) -> None:
    output = tmp_path / "out"
    policy = ResiduePolicy(unknown="substitute", gaps="skip")
    summary = run(inputs, output, policy=policy)
    check(output, summary, inputs)
    assert summary.skipped["unknown_residues"] == summary.skipped["gaps"] == 1
    assert summary.events["substituted"] == 2
    assert f"{NEP}X" in {row["sequence"] for row in all_rows(output / "buckets")}


@pytest.mark.parametrize("count", [1, 20])
def test_repeated_runs_give_equal_bytes_whatever_was_there_before(
    tmp_path: Path, inputs: list[Path], count: int
) -> None:
    first, again = tmp_path / "first", tmp_path / "again"
    run(inputs, first, buckets=count)
    run(inputs[:1], again, buckets=7)
    (again / ".spill-left").mkdir()
    (again / "buckets" / ".tmp-left").touch()
    summary = run(inputs, again, buckets=count, memory_mb=4000)
    assert files(first) == files(again)
    check(again, summary, inputs)


def test_a_failure_leaves_no_output(tmp_path: Path, inputs: list[Path]) -> None:
    content = COMPRESS["gzip"](odd_records().encode() * 40)
    cut = write(tmp_path / "cut.gz", content[:-20])
    output = tmp_path / "new"
    with pytest.raises(PlmEmbedError, match=r"cut\.gz: .* cut short after \d+ complete records"):
        run([*inputs, cut], output)
    assert not files(output)
    run(inputs, output)
    with pytest.raises(PlmEmbedError, match="cut short"):
        run([*inputs, cut], output)
    assert not (output / "summary.json").exists()


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("absent.fasta", {}, r"absent\.fasta: cannot be read: No such file"),
        ("link", {}, r"link: is the same file as \S*a\.fasta; name it once"),
        ("", {"buckets": 0}, "buckets: 0 is not between 1 and 20,000"),
        (
            "",
            {"table": Table("protein_id", "sequence", ("length",))},
            "keep: length: the results have a column of their own",
        ),
        ("", {"table": Table("protein_id", "sequence", ("a", "a"))}, "keep: 'a' is named twice"),
    ],
)
def test_what_cannot_work_is_refused_before_any_input_is_read(
    tmp_path: Path, inputs: list[Path], name: str, options: dict[str, Any], message: str
) -> None:
    (tmp_path / "link").symlink_to(inputs[0])
    with pytest.raises(PlmEmbedError, match=message):
        run([*inputs, *[tmp_path / name] * bool(name)], tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


def test_the_bytes_do_not_depend_on_the_memory(
    tmp_path: Path, inputs: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    summary = run(inputs, tmp_path / "much")
    # a thousand bytes are left: all is spilled
    monkeypatch.setattr("plm_embed.sequences.deduplicate.OWN_MEMORY_MB", 499.999)
    check(tmp_path / "much", run(inputs, tmp_path / "little"), inputs)
    check(tmp_path / "little", summary, inputs)
    assert files(tmp_path / "much") == files(tmp_path / "little")
