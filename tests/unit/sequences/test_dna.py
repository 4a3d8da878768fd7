"""DNA on its way from files to unique sequences."""

from pathlib import Path

import pytest

from plm_embed.cli.main import group
from plm_embed.errors import ConfigError, InputError, StoreError
from plm_embed.keys import key
from plm_embed.sequences.residues import DNA, ResiduePolicy
from plm_embed.sequences.settings import Table
from plm_embed.sequences.summary import Summary, check_kind, read_summary
from support.deduplicated import all_rows, rows, run
from support.nasty_inputs import COMPRESS, M2, NEP, write

GIVEN = ResiduePolicy(alphabet="dna")
CANONICAL = ResiduePolicy(unknown="substitute", alphabet="dna", strand="canonical")
GENE = "ATGGCGTTACCNRTAGGATTTACAGCC" * 5
OTHER = DNA.reverse_complement(GENE)
RECORDS = f"""\
>plain
{GENE[:60]}
{GENE[60:]}
>soft-masked
{GENE[:9]}{GENE[9:].lower()}
>RNA
{GENE.replace("T", "U")}
>aligned
--{GENE[:30]}-.{GENE[30:]}
>other strand
{OTHER}
>stop
{GENE}*
>masked
{GENE[:9]}XX{GENE[11:]}
>nothing
--
>glued
{GENE}>next
"""


@pytest.fixture
def inputs(tmp_path: Path) -> list[Path]:
    table = f"id,sequence\na,{GENE}\nb,{OTHER.lower()}\nc,ACGT\nd,NaN\n"
    return [
        write(tmp_path / "genes.fna.gz", COMPRESS["gzip"](RECORDS.encode())),
        write(tmp_path / "genes.csv", table),
    ]


def deduplicated(inputs: list[Path], output: Path, policy: ResiduePolicy) -> Summary:
    return run(inputs, output, table=Table(), policy=policy)


def sequences(output: Path) -> set[str]:
    return {row["sequence"] for row in all_rows(output / "buckets")}


def test_each_record_of_dna_comes_to_its_end(tmp_path: Path, inputs: list[Path]) -> None:
    output = tmp_path / "out"
    summary = deduplicated(inputs, output, GIVEN)
    assert sequences(output) == {GENE, OTHER, "ACGT"} and summary.unique == 3
    skipped = {"unknown_residues": 2, "empty": 1, "glued_header": 1, "missing_value": 1}
    assert summary.skipped == skipped
    assert summary.events == {"upper_cased": 2, "u_to_t": 1, "gaps_removed": 1}
    found = {row["header"]: row for row in rows(output / "records.parquet")}
    assert found["RNA"]["events"] == f"u_to_t={GENE.count('T')}"
    assert found["stop"]["detail"] == f"* at {len(GENE) + 1}"
    assert found["masked"]["detail"] == "X at 10, 11"
    assert found["aligned"]["key"] == found["plain"]["key"] == key(GENE)
    assert found["other strand"]["key"] == found["b"]["key"] == key(OTHER)


def test_the_two_strands_of_a_gene_are_one_sequence(tmp_path: Path, inputs: list[Path]) -> None:
    output = tmp_path / "out"
    summary = deduplicated(inputs, output, CANONICAL)
    turned = min(GENE, OTHER)
    assert turned in sequences(output) and max(GENE, OTHER) not in sequences(output)
    found = {row["header"]: row for row in rows(output / "records.parquet")}
    for name in ("plain", "soft-masked", "RNA", "aligned", "other strand", "a", "b"):
        assert found[name]["key"] == key(turned), name
    counted = sum("reverse_complemented" in (row["events"] or "") for row in found.values())
    assert summary.events["reverse_complemented"] == counted > 0
    assert "substituted=1" in found["stop"]["events"]


def test_a_folder_of_sequences_says_of_what_kind_they_are(
    tmp_path: Path, inputs: list[Path]
) -> None:
    command = ["deduplicate", *map(str, inputs), "--output", str(tmp_path / "out"), "--buckets=2"]
    policy = '{"alphabet": "%s", "strand": "canonical", "unknown": "substitute"}'
    group.main([*command, "--residues", policy % "dna"], standalone_mode=False)
    assert read_summary(tmp_path / "out").policy == CANONICAL
    bucket = tmp_path / "out" / "buckets" / "0000.parquet"
    check_kind(bucket, "dna", "canonical")
    with pytest.raises(StoreError, match="alphabet dna, strand as_given; delete"):
        check_kind(bucket, "dna", "as_given")
    with pytest.raises(StoreError, match="was not made for alphabet protein, strand as_given"):
        check_kind(bucket, "protein", "as_given")
    with pytest.raises(ConfigError, match="strand: canonical: the model reads proteins"):
        group.main([*command, "--residues", policy % "protein"], standalone_mode=False)


def test_files_of_the_other_kind_are_refused_and_leave_nothing(
    tmp_path: Path, inputs: list[Path]
) -> None:
    proteins = write(tmp_path / "proteins.csv", f"id,sequence\na,{M2}\nb,{NEP}\n")
    for given in inputs:
        with pytest.raises(InputError, match=f"{given.name}: these are nucleotides") as error:
            deduplicated([proteins, given], tmp_path / "out", ResiduePolicy())
        assert error.value.path == given
    with pytest.raises(InputError, match=r"proteins\.csv: these are proteins") as error:
        deduplicated([*inputs, proteins], tmp_path / "out", GIVEN)
    assert not (tmp_path / "out" / "summary.json").exists()


def test_contigs_and_lines_of_any_length_are_read(tmp_path: Path) -> None:
    contig = (GENE * 1000)[:100_003]
    lines = "\n".join(contig[at : at + 80] for at in range(0, len(contig), 80))
    whole = GENE * 8000
    path = write(
        tmp_path / "contigs.fa",
        f">wrapped\n{lines}\n>one line\n{whole.lower()}\n>chromosome\n{'ACGT' * (5 << 20)}\n"
        f">last\n{contig}\n",
    )
    summary = deduplicated([path], tmp_path / "out", GIVEN)
    assert summary.skipped == {"too_large": 1} and summary.accepted == 3
    assert sequences(tmp_path / "out") == {contig, whole}
