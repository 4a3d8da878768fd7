"""Residues of records: the letters that they may have, the policy for others, and what becomes of
them, a normalized sequence or a reason to skip the record.

The letters decide the key of a sequence; what a model makes of a letter is up to its tokens.
"""

import re
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, replace
from string import ascii_lowercase, ascii_uppercase
from typing import Literal, NamedTuple

from plm_embed.errors import ConfigError
from plm_embed.fingerprint import AlphabetName, Strand
from plm_embed.wording import count, some

SEPARATOR = ":"
"""The sign between the two chains of a pair, which is no letter of any alphabet."""


@dataclass(frozen=True)
class Alphabet:
    """Upper-case ASCII `letters` of a normalized sequence, in any order, and the signs beside
    them.
    """

    name: AlphabetName
    letters: str
    unknown: str
    """The letter that may stand in for one that is not among `letters`; none if empty."""
    gaps: str = "-."
    """Signs of an alignment, which stand for nothing."""
    stop: str = ""
    """The sign that may end a record; none if empty."""
    complements: str = ""
    """Letter that faces each of `letters` on the other strand; '' where there is none."""
    uracil: str = ""
    """The letter that U is read as; empty where U is a letter like the others."""
    pairs: bool = False
    """Sequences are pairs of chains with the separator between them."""
    states: str = ""
    """The lower-case letters of which one follows each residue; none if empty."""
    letters_of_residue: int = 1
    """Letters of a normalized sequence for each residue."""

    def length(self, sequence: str) -> int:
        """Return the number of residues of a normalized sequence, or of both chains of a pair."""
        return (len(sequence) - sequence.count(SEPARATOR)) // self.letters_of_residue

    def reverse_complement(self, sequence: str) -> str:
        """Return the other strand of a normalized sequence, read in its own direction."""
        return sequence.translate(str.maketrans(self.letters, self.complements))[::-1]


PROTEIN = Alphabet("protein", "LAGVSERTIDPKQNFYMHWCXBUZO", unknown="X", stop="*")
PAIR = replace(PROTEIN, name="protein_pair", pairs=True)
"""Two chains of proteins, in their order, as in EVQL:DIQM."""
DNA = Alphabet("dna", "ACGTRYSWKMBDHVN", "N", complements="TGCAYRSWMKVHDBN", uracil="T")
"""The four bases and IUPAC's letters for several of them."""
STATES = Alphabet("3di", "ACDEFGHIKLMNPQRSTVWY", unknown="")
"""Foldseek's 3Di states of a protein's structure, one per residue, which share the letters of
residues.
"""
PROTEIN_3DI = Alphabet(
    "protein_3di",
    f"{PROTEIN.letters}#",
    unknown="#",
    states=f"{STATES.letters.lower()}#",
    letters_of_residue=2,
)
"""Residues that are each followed by the 3Di state of its structure, as in MdEvVp; # is an unknown
one of either.
"""
ALPHABETS: dict[AlphabetName, Alphabet] = {
    alphabet.name: alphabet for alphabet in (PROTEIN, PAIR, DNA, STATES, PROTEIN_3DI)
}
ONE_STRAND = "residues.strand: canonical: the model reads proteins, which have no other strand"


@dataclass(frozen=True, kw_only=True)
class ResiduePolicy:
    """Policy for a record that holds letters beyond the alphabet (`unknown`) or alignment gaps
    (`gaps`), and whether a sequence and its reverse complement are one (`strand`: canonical).

    ConfigError for strands of proteins, and where no letter stands for an unknown one.
    """

    alphabet: AlphabetName = "protein"
    unknown: Literal["skip", "substitute"] = "skip"
    gaps: Literal["remove", "skip"] = "remove"
    strand: Strand = "as_given"

    def __post_init__(self) -> None:
        if self.strand == "canonical" and not ALPHABETS[self.alphabet].complements:
            raise ConfigError(ONE_STRAND, key="residues.strand")
        if self.unknown == "substitute" and not ALPHABETS[self.alphabet].unknown:
            raise ConfigError(
                "residues.unknown: substitute: no 3Di state stands for an unknown one; choose skip",
                key="residues.unknown",
            )


EVENTS = (
    *("whitespace_removed", "upper_cased", "u_to_t", "gaps_removed", "stop_removed"),
    *("substituted", "reverse_complemented", "structure_unknown"),
)
POSITIONS_SHOWN = 5
_SHOWN = 20  # letters of a header among residues
_IN_BRACKETS = re.compile("<[^<>]*>")
_INTERLEAVED = re.compile("(?:[A-Z#][a-z#])+")
_ASCII_UPPER = str.maketrans(ascii_lowercase, ascii_uppercase)  # str.upper() makes 'SS' of 'ß'
CODES = frozenset(
    (
        *("ALA", "ARG", "ASN", "ASP", "CYS", "GLN", "GLU", "GLY", "HIS", "ILE", "LEU", "LYS"),
        *("MET", "PHE", "PRO", "SER", "THR", "TRP", "TYR", "VAL", "ASX", "GLX", "PYL", "SEC"),
        "XAA",
    )
)
LEAST_CODES = 4


Faults = dict[int, tuple[str, str | None]]
"""Reasons, by place in a batch, why a record cannot be used: a word to group by, and the
particulars.
"""


class Normalized(NamedTuple):
    """A sequence of the alphabet's letters, at least one, and how many characters each event
    touched.
    """

    sequence: str
    events: dict[str, int]


class Skipped(NamedTuple):
    """Why a record has no sequence: a word to group by, and the particulars for a person."""

    reason: str
    detail: str | None


def normalize(raw: str, policy: ResiduePolicy) -> Normalized | Skipped:
    """Normalize the residues of one record.

    In this order: line ends are dropped (no event), other white space is dropped, ASCII letters are
    upper-cased, U of DNA is read as T, the gap signs ('-' and '.') are removed or the record is
    skipped as `gaps`, one terminal stop ('*') of proteins is dropped. What is then not a letter of
    the alphabet (J, digits, an inner '*', '<', any letter beyond ASCII) makes the record
    `unknown_residues`, or becomes X (of DNA N) one for one. Nothing left: `empty`. A '>' is never
    replaced: it ends a word such as <mask>, or else begins a header that lacks its line, and the
    record is skipped as `glued_header`. Proteins in three-letter code are skipped as such, and
    residues and 3Di states by turns as `interleaved_structure`, unless the alphabet has states. Of
    the two strands of DNA the alphabetically first one is the sequence, if `strand` is canonical.
    Positions in `detail` are 1-based in `raw`. Each chain of a pair is normalized as a protein.
    """
    alphabet = ALPHABETS[policy.alphabet]
    if alphabet.pairs or alphabet.states:
        return (_normalize_pair if alphabet.pairs else _normalize_interleaved)(raw, policy)
    events = dict.fromkeys(EVENTS, 0)
    one_line = raw.replace("\r", "").replace("\n", "")
    text = "".join(one_line.split())
    events["whitespace_removed"] = len(one_line) - len(text)
    if policy.alphabet != "dna" and _INTERLEAVED.fullmatch(text):
        return Skipped("interleaved_structure", f"{len(text) // 2} residues with a 3Di letter each")
    upper = text.translate(_ASCII_UPPER)
    if upper != text:
        events["upper_cased"] = sum(map(text.count, ascii_lowercase))
    if alphabet.uracil:
        events["u_to_t"] = upper.count("U")
        upper = upper.replace("U", alphabet.uracil)
    events["gaps_removed"] = sum(map(upper.count, alphabet.gaps))
    if events["gaps_removed"] and policy.gaps == "skip":
        return Skipped("gaps", _positions(raw, alphabet.gaps))
    upper = upper.translate(dict.fromkeys(map(ord, alphabet.gaps)))
    stop = 0  # its position
    if alphabet.stop and upper.endswith(alphabet.stop):
        events["stop_removed"] = 1
        upper, stop = upper[:-1], raw.rindex(alphabet.stop) + 1
    if not upper:
        return Skipped("empty", None)
    if unknown := set(upper).difference(alphabet.letters):
        if ">" in _IN_BRACKETS.sub("", upper):
            place = _IN_BRACKETS.sub(lambda word: " " * len(word[0]), raw).index(">")
            shown = raw[place : place + _SHOWN]
            return Skipped("glued_header", f"> at {place + 1}: no line end before {shown!r}")
        if policy.unknown == "skip" or ">" in unknown:
            return Skipped("unknown_residues", _positions(raw, unknown, dropped=stop))
        events["substituted"] = sum(map(upper.count, unknown))
        upper = upper.translate(dict.fromkeys(map(ord, unknown), alphabet.unknown))
    if policy.alphabet == "protein" and upper[:3] in CODES and _in_three_letters(upper):
        return Skipped("three_letter_code", f"{len(upper) // 3} codes, the first is {upper[:3]}")
    if policy.strand == "canonical" and (reverse := alphabet.reverse_complement(upper)) < upper:
        upper, events["reverse_complemented"] = reverse, len(reverse)
    return Normalized(upper, {name: count for name, count in events.items() if count})


def _in_three_letters(sequence: str) -> bool:
    """Tell whether a sequence is nothing but three-letter codes of amino acids, several kinds: by
    chance a triplet is one once in 400 times, but ALAALAALAALA may be a peptide.
    """
    codes = [sequence[start : start + 3] for start in range(0, len(sequence), 3)]
    return len(codes) >= LEAST_CODES and len(set(codes)) > 2 and CODES.issuperset(codes)


def _normalize_interleaved(raw: str, policy: ResiduePolicy) -> Normalized | Skipped:
    """Normalize the residues of a record and the 3Di states between them, as in MdEvVp.

    Residues alone, in one case, are normalized as a protein, and their states are unknown (#), as
    the authors of SaProt advise. Else case tells residues from states, and # may be in place of
    either. Not by turns: `not_interleaved`. Letters that are no residue or state make the record
    `unknown_residues`, or become #.
    """
    text = "".join(raw.split())
    if "#" not in text and text in {text.upper(), text.lower()}:
        plain = normalize(raw, replace(policy, alphabet="protein"))
        if isinstance(plain, Skipped):
            return plain
        sequence = "".join(f"{residue}#" for residue in plain.sequence)
        return Normalized(sequence, plain.events | {"structure_unknown": len(plain.sequence)})
    residues, states = text[::2], text[1::2]
    if len(text) % 2 or residues != residues.upper() or states != states.lower():
        detail = f"{len(text):,} letters, not a residue and its 3Di letter by turns"
        return Skipped("not_interleaved", detail)
    alphabet = ALPHABETS[policy.alphabet]
    events = {"whitespace_removed": len(raw.replace("\r", "").replace("\n", "")) - len(text)}
    strange = {*residues} - {*alphabet.letters}, {*states} - {*alphabet.states}
    odd = [i for i, letter in enumerate(text) if letter in strange[i % 2]] if any(strange) else []
    if odd:
        # gaps, stops and the > of a header stand for no residue
        if policy.unknown == "skip" or not text.replace("#", "").isalnum():
            return Skipped("unknown_residues", some([f"{text[i]} at {i // 2 + 1}" for i in odd]))
        letters = [*text]
        for i in odd:
            letters[i] = alphabet.unknown
        text = "".join(letters)
        events["substituted"] = len(odd)
    return Normalized(text, {name: count for name, count in events.items() if count})


def _normalize_pair(raw: str, policy: ResiduePolicy) -> Normalized | Skipped:
    """Normalize the two chains of a record, each as a protein. One that cannot be used makes the
    record skipped for its reason; another number of chains is `not_a_pair`.
    """
    chains = raw.split(SEPARATOR)
    if len(chains) != 2 and raw.strip():
        detail = f"{count(len(chains), 'chain')}, where {SEPARATOR!r} stands between two"
        return Skipped("not_a_pair", detail)
    sequences, events = list[str](), Counter[str]()
    for number, chain in enumerate(chains, start=1):
        outcome = normalize(chain, replace(policy, alphabet="protein"))
        if isinstance(outcome, Skipped):
            detail = f"chain {number}" + (f": {outcome.detail}" if outcome.detail else "")
            return Skipped(outcome.reason, detail)
        sequences.append(outcome.sequence)
        events.update(outcome.events)
    return Normalized(SEPARATOR.join(sequences), dict(events))


def _positions(raw: str, letters: Collection[str], dropped: int = 0) -> str:
    """Return 'J at 12, 45; 7 at 3': where the first few of `letters` are, leaving out position
    `dropped`.
    """
    by_letter: dict[str, list[str]] = {}
    total = 0
    for position, letter in enumerate(raw, start=1):
        if letter.translate(_ASCII_UPPER) in letters and position != dropped:
            total += 1
            if total <= POSITIONS_SHOWN:
                name = letter if letter.isprintable() else f"U+{ord(letter):04X}"
                by_letter.setdefault(name, []).append(str(position))
    listed = "; ".join(f"{name} at {', '.join(places)}" for name, places in by_letter.items())
    return listed if total <= POSITIONS_SHOWN else f"{listed}; {total - POSITIONS_SHOWN} more"
