"""Kinds of files, told by their letters: no ordinary file is refused, none of the other kind is
taken.
"""

import random
import re
from pathlib import Path

import pyarrow as pa
import pytest

from plm_embed.errors import InputError
from plm_embed.sequences.plausible import LetterCheck, are_words
from plm_embed.sequences.residues import DNA, PROTEIN, Alphabet
from plm_embed.sequences.settings import Table
from support.deduplicated import run
from support.nasty_inputs import M2, NEP, write

RNG = random.Random(7)
DEMO = Path(__file__).parents[3] / "config" / "demo"
METALLOTHIONEIN = "MDPNCSCATGGSCTCTGSCKCKECKCTSCKKSCCSCCPMSCAKCAQGCICKGASEKCSCCA"
SILK = "GAGAGSGAGAGSGAGAGSGAGAGY" * 20
ANTIFREEZE = "AATAATAATPATAATAATPA" * 20


def bases(count: int, letters: str = "ACGT", weights: tuple[int, ...] | None = None) -> str:
    return "".join(RNG.choices(letters, weights, k=count))


def check(alphabet: Alphabet, *residues: str) -> None:
    LetterCheck(alphabet).look(pa.array(residues))


@pytest.mark.parametrize(
    "residues",
    [
        [bases(300).lower()],
        [bases(300).replace("T", "U")],
        ["N" * 50_000 + bases(50_000) + "N" * 50_000],
        [bases(150, "ACGT", (42, 8, 8, 42))],
        [bases(20) for _ in range(10)],  # primers
        [bases(270) + bases(30, "RYSWKM")],
        [*(bases(150) for _ in range(200)), M2],
        [bases(100_000).replace("A", "X")[:50_000] + bases(50_000)],  # masked
    ],
    ids=lambda residues: f"{len(residues)} of {len(residues[0])}",
)
def test_nucleotides_are_no_proteins(residues: list[str]) -> None:
    check(DNA, *residues)
    with pytest.raises(InputError, match="these are nucleotides, and the model reads proteins"):
        check(PROTEIN, *residues)


@pytest.mark.parametrize(
    "residues",
    [
        [M2.lower(), NEP],
        [bases(400, "LAGVSERTIDPKQNFYMHWC")],
        [bases(10_000), *[NEP] * 12],  # one odd record among proteins
        ["X" * 5_000, NEP],
    ],
    ids=lambda residues: f"{len(residues)} of {len(residues[0])}",
)
def test_proteins_are_no_nucleotides(residues: list[str]) -> None:
    check(PROTEIN, *residues)
    with pytest.raises(InputError, match="these are proteins, and the model reads DNA"):
        check(DNA, *residues)


def test_what_tells_too_little_is_taken() -> None:
    few = (["ACGT"], ["ACGT", "GATC", "TAG"] * 8, ["N" * 5_000], ["X" * 5_000], [""], ["-*. 12"])
    for residues in few:
        check(PROTEIN, *residues)
        check(DNA, *residues)
    for protein in (METALLOTHIONEIN * 4, SILK, ANTIFREEZE, "GATTAGA" * 50):  # of few kinds
        check(PROTEIN, protein)


def test_the_first_letters_decide_wherever_batches_end() -> None:
    letters = LetterCheck(PROTEIN)
    for _ in range(1000):
        letters.look(pa.array([NEP]))
    letters.look(pa.array([bases(1000)] * 1000))  # not looked at any more
    letters = LetterCheck(PROTEIN, Path("reads.fna"))
    letters.look(pa.array(["ACGT"] * 24))
    with pytest.raises(InputError, match=r"^reads\.fna: these are nucleotides"):
        letters.look(pa.array(["ACGT"]))


def warnings(path: Path, content: str) -> tuple[dict[str, int], list[str]]:
    """Skipped records by reason, and the warnings without the path."""
    summary = run([write(path, content)], path.parent / "out", table=Table("id", "seq"))
    return summary.skipped, [line.removeprefix(f"{path}: ") for line in summary.warnings]


def wrapped(*lines: str, width: int = 60) -> str:
    return "\n".join(line[at : at + width] for line in lines for at in range(0, len(line), width))


THREE = "MetThrHisAlaThrGlyThrGln"
COILS = "CCCCHHHHHHHHHHHHCCCCCCHHHHHHHHHHHCCCC"
LABELS = "S" * 20 + "O" * 20 + "M" * 30 + "I" * 27
STRUCTURE = "    HHHHHHHHTT  EEEE GGG     TTT SSBTTTB"


@pytest.mark.parametrize(
    ("content", "skipped", "warning"),
    [
        (
            f">P1;ONE\nHEAT SHOCK PROTEIN\n  {M2}*\n>P1;TWO\nFerredoxin.\n  {NEP}*\n>b\n{M2}\n",
            {"pir_record": 2},
            r"records 1 \(P1;ONE\), 2 \(P1;TWO\) are skipped: PIR, .*: 'HEAT SHOCK PROTEIN",
        ),
        (
            f">a\n{THREE}\n>b\n{THREE.upper()}\n>c\n{wrapped(THREE, width=5)}\n"
            + f">d\n{' '.join(THREE[at : at + 3] for at in range(0, 24, 3))}\n>e\n{M2}\n",
            {"three_letter_code": 4},
            r"records 1 \(a\), 2 \(b\), 3 \(c\) and 1 more are skipped: in three-letter code",
        ),
        (f"id,seq\na,{THREE}\nb,{M2}\n", {"three_letter_code": 1}, r"1 \(a\) is skipped: in th"),
        (
            ">one\nMdEvVpQpLrVyQdYaKv\n>two\nMEVQ\n",
            {"interleaved_structure": 1},
            r"record 1 \(one\) is skipped: residues and 3Di letters by turns, as for SaProt",
        ),
        (f">a\n{M2}\n>s\n{STRUCTURE}\n", {}, r"record 2 \(s\) looks like secondary structure"),
        (f">s\n{COILS}\n", {}, r"record 1 \(s\) looks like secondary structure"),
        (
            f">a\n{M2 * 9}\n>s\n{'ATGGCTTGCNAC' * 3}\n>r\n{'AUGGCUUGCUAC' * 3}\n",
            {},
            r"records 2 \(s\), 3 \(r\) look like nucleotides and not like residues; embedded",
        ),
        (f">a\n{M2}\n{LABELS}\n", {}, r"record 1 \(a\) has lines that look like labels of resi"),
        (f">a\n{wrapped(M2, LABELS)}\n", {}, r"1 \(a\) has lines that look like labels of resi"),
        (f">a\nHEAT SHOCK PROTEIN\n{wrapped(M2)}\n", {}, "words, .*'HEAT SHOCK PROTEIN'"),
        (f">a\n{wrapped(M2)}\nKilled\n", {}, r"record 1 \(a\) has a line .* words, .*: 'Killed'"),
        (f">a\n{M2 * 2}\nDONE\n>b\n{M2}\n", {}, r"record 1 \(a\) .* words, .*: 'DONE'"),
        ("id,seq\na,heat shock protein\nb,MKV\n", {}, r"record 1 \(a\) .*: 'heat shock protein'"),
        (f">a one\1b two\n{M2}\n>c\n{M2}\n", {}, r"record 1 \(a\) has several entries in one head"),
    ],
    ids=lambda value: value[:12] if isinstance(value, str) else "",
)
def test_text_that_is_no_sequence_is_skipped_or_warned_of_by_name(
    tmp_path: Path, content: str, skipped: dict[str, int], warning: str
) -> None:
    counted, (line,) = warnings(tmp_path / "in", content)
    assert counted == skipped
    assert re.search(warning, line) and "\n" not in line


ODD = [
    *(METALLOTHIONEIN, SILK, ANTIFREEZE, "GGGGS" * 12, "E" * 40, "H" * 40, "PGP" * 20, "S" * 24),
    *("MGSSHHHHHHSSGLVPRGSH", "HHHHHHGSGSGSGSHHHHHH", "SESESEEEEEEESSSSEEEE", "ALAALAALAALA"),
    *("SERSERSERSER", "METLYS", "QQQQQQQQQQQQQQQQQQQQQQQQHHHHHHHPPPPPPPPPP", "MKUSO"),
]


@pytest.mark.parametrize("width", [30, 60, 1000])
def test_odd_proteins_are_no_text(tmp_path: Path, width: int) -> None:
    for masked in (str, str.lower):
        texts = [wrapped(each[:width] + masked(each[width:]), width=width) for each in ODD]
        content = "".join(f">{number}\n{text}\n" for number, text in enumerate(texts))
        assert warnings(tmp_path / "in.fasta", content) == ({}, [])


def test_words_that_repeat_are_no_sequences() -> None:
    names = ["HEMAGGLUTININ", "NEURAMINIDASE", "MATRIX PROTEIN"]
    for words in (["enzyme", "transporter", "Enzyme"], ["HA", "NA", "PB2", "M1"], names):
        assert are_words(pa.array(words * 7))
    for no_words in (
        ["enzyme", "transporter", "Enzyme"] * 6,  # too few to tell
        ["GILGFVFTL", "NLVPMVATV"] * 20,  # peptides
        [NEP.lower(), M2.lower()] * 20,
        [bases(12).lower() for _ in range(30)],
        [""] * 20,
    ):
        assert not are_words(pa.array(no_words))


def test_real_proteins_are_no_text_and_the_names_of_a_table_are(tmp_path: Path) -> None:
    table = Table("protein_id", "sequence")
    assert not run([DEMO / "proteins.fasta"], tmp_path / "out").warnings
    assert not run([DEMO / "proteins.csv"], tmp_path / "out", table=table).warnings
    table = Table("protein_id", "protein_name")
    (warning,) = run([DEMO / "proteins.csv"], tmp_path / "out", table=table).warnings
    assert "words that repeat: is protein_name the column of sequences?" in warning


def test_ids_that_different_sequences_share_are_named(tmp_path: Path) -> None:
    content = f">b\n{M2}\n>a\n{M2}\n>b\n{NEP}\n>a\n{M2}\n>\n{M2}\n>\n{NEP}\n>c\n{M2}\n>c\n{M2}A\n"
    _, (line,) = warnings(tmp_path / "in.fasta", content)
    assert line == "2 ids are shared by different sequences: b, c"
