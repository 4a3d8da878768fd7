"""What a file is told to be by its letters: no ordinary file is refused, none of the other kind is
taken.
"""

import random
from pathlib import Path

import pytest

from plm_embed.errors import InputError
from plm_embed.sequences.alphabet import DNA, PROTEIN, Alphabet, LetterCheck, are_words
from support.nasty_inputs import M2, NEP

RNG = random.Random(7)
METALLOTHIONEIN = "MDPNCSCATGGSCTCTGSCKCKECKCTSCKKSCCSCCPMSCAKCAQGCICKGASEKCSCCA"
SILK = "GAGAGSGAGAGSGAGAGSGAGAGY" * 20
ANTIFREEZE = "AATAATAATPATAATAATPA" * 20


def bases(count: int, letters: str = "ACGT", weights: tuple[int, ...] | None = None) -> str:
    return "".join(RNG.choices(letters, weights, k=count))


def check(alphabet: Alphabet, *residues: str) -> None:
    LetterCheck(alphabet).look(residues)


@pytest.mark.parametrize(
    "residues",
    [
        [bases(300)],
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


def test_words_that_repeat_are_no_sequences() -> None:
    assert are_words(["enzyme", "transporter", "Enzyme"] * 7)
    for no_words in (
        ["enzyme", "transporter", "Enzyme"] * 6,  # too few to tell
        ["GILGFVFTL", "NLVPMVATV"] * 20,  # peptides
        [NEP.lower(), M2.lower()] * 20,
        [bases(12).lower() for _ in range(30)],
        [],
    ):
        assert not are_words(no_words)


@pytest.mark.parametrize(
    "residues",
    [
        [M2, NEP],
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


@pytest.mark.parametrize(
    "residues",
    [["ACGT"], ["ACGT", "GATC", "TAG"] * 8, ["N" * 5_000], ["X" * 5_000], [""], ["-*. 12"]],
    ids=lambda residues: f"{len(residues)} of {residues[0][:6]}",
)
def test_too_few_letters_that_tell_decide_nothing(residues: list[str]) -> None:
    check(PROTEIN, *residues)
    check(DNA, *residues)


@pytest.mark.parametrize("residues", [METALLOTHIONEIN * 4, SILK, ANTIFREEZE, "GATTAGA" * 50])
def test_proteins_of_few_kinds_of_residues_are_taken(residues: str) -> None:
    check(PROTEIN, residues)


def test_the_first_letters_decide_wherever_batches_end() -> None:
    letters = LetterCheck(PROTEIN)
    letters.look(["ACGT"])
    for _ in range(1000):
        letters.look([NEP])
    assert not letters.wanted
    letters.look([bases(1000)] * 1000)
    letters = LetterCheck(PROTEIN, Path("reads.fna"))
    letters.look(["ACGT"] * 24)
    with pytest.raises(InputError, match=r"^reads\.fna: these are nucleotides") as error:
        letters.look(["ACGT"])
    assert error.value.path == Path("reads.fna")
