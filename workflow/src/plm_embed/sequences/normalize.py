"""Raw residues to a normalized sequence: what is dropped, kept, replaced, or a reason to skip the
record.
"""

import re
from collections.abc import Collection
from string import ascii_lowercase, ascii_uppercase
from typing import NamedTuple

import numpy as np

from plm_embed.sequences.alphabet import ALPHABETS, Alphabet
from plm_embed.sequences.settings import ResiduePolicy

EVENTS = (
    *("whitespace_removed", "upper_cased", "u_to_t", "gaps_removed", "stop_removed"),
    *("substituted", "reverse_complemented"),
)
POSITIONS_SHOWN = 5

_IN_BRACKETS = re.compile("<[^<>]*>")
_SHOWN = 20  # letters of a header among residues
_SHORT = 500  # letters; numpy takes longer to be called
_ASCII_UPPER = str.maketrans(ascii_lowercase, ascii_uppercase)


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


def is_clean(text: str, alphabet: Alphabet) -> bool:
    """Whether every character is a letter of the alphabet, in upper case, so that nothing is left
    to normalize.
    """
    if len(text) < _SHORT:
        return alphabet.each.issuperset(text)
    return text.isascii() and alphabet.is_clean(text.encode("ascii"))


def normalize(raw: str, policy: ResiduePolicy) -> Normalized | Skipped:
    """Normalize the residues of one record.

    In this order: line ends are dropped (no event), other white space is dropped, ASCII letters are
    upper-cased, U of DNA is read as T, the gap signs ('-' and '.') are removed or the record is
    skipped as `gaps`, one terminal stop ('*') of proteins is dropped. What is then not a letter of
    the alphabet (J, digits, an inner '*', '<', any letter beyond ASCII) makes the record
    `unknown_residues`, or becomes X (of DNA N) one for one. Nothing left: `empty`. A '>' is never
    replaced: it ends a word such as <mask>, or else begins a header that lacks its line, and the
    record is skipped as `glued_header`. Of the two strands of DNA the alphabetically first one is
    the sequence, if `strand` is canonical. Positions in `detail` are 1-based in `raw`.
    """
    alphabet = ALPHABETS[policy.alphabet]
    clean = raw and is_clean(raw, alphabet)
    found = Normalized(raw, {}) if clean else _mended(raw, policy, alphabet)
    if policy.strand == "canonical" and isinstance(found, Normalized):
        other = alphabet.reverse_complement(found.sequence)
        if other < found.sequence:
            return Normalized(other, found.events | {"reverse_complemented": len(other)})
    return found


def _mended(raw: str, policy: ResiduePolicy, alphabet: Alphabet) -> Normalized | Skipped:
    """`normalize`, of the strand given."""
    events: dict[str, int] = {}
    one_line = raw.replace("\r", "").replace("\n", "")
    text = "".join(one_line.split())
    if len(text) < len(one_line):
        events["whitespace_removed"] = len(one_line) - len(text)
    upper = text.translate(_ASCII_UPPER)  # str.upper() would make 'SS' of 'ß'
    if upper != text:
        codes = np.frombuffer(text.encode("utf-8", "surrogatepass"), np.uint8)
        events["upper_cased"] = int(
            np.count_nonzero(codes - np.uint8(ord("a")) < len(ascii_lowercase))
        )
    if alphabet.uracil and "U" in upper:
        events["u_to_t"] = upper.count("U")
        upper = upper.replace("U", alphabet.uracil)
    gaps = sum(map(upper.count, alphabet.gaps))
    if gaps and policy.gaps == "skip":
        return Skipped("gaps", _positions(raw, alphabet.gaps))
    if gaps:
        events["gaps_removed"] = gaps
        upper = upper.translate(dict.fromkeys(map(ord, alphabet.gaps)))
    stop = 0
    if alphabet.stop and upper.endswith(alphabet.stop):
        events["stop_removed"] = 1
        upper = upper[:-1]
        stop = raw.rindex(alphabet.stop) + 1
    if not upper:
        return Skipped("empty", None)
    if is_clean(upper, alphabet):
        return Normalized(upper, events)
    if ">" in _IN_BRACKETS.sub("", upper):
        return Skipped("glued_header", _glued(raw))
    unknown = set(upper).difference(alphabet.letters)
    if unknown and (policy.unknown == "skip" or ">" in unknown):
        return Skipped("unknown_residues", _positions(raw, unknown, dropped=stop))
    if unknown:
        events["substituted"] = sum(map(upper.count, unknown))
        upper = upper.translate(dict.fromkeys(map(ord, unknown), alphabet.unknown))
    return Normalized(upper, events)


def format_events(events: dict[str, int]) -> str:
    """`name=count;name=count` in the order of `EVENTS`; empty for no events."""
    return ";".join(f"{name}={events[name]}" for name in EVENTS if name in events)


def _glued(raw: str) -> str:
    """Where a header begins among the residues, and how."""
    inside = _IN_BRACKETS.sub(lambda found: " " * len(found[0]), raw)
    at = inside.index(">")
    return f"> at {at + 1}: no line end before {raw[at : at + _SHOWN]!r}"


def _positions(raw: str, letters: Collection[str], dropped: int = 0) -> str:
    """'J at 12, 45; 7 at 3': where the first few of `letters` are, leaving out position
    `dropped`.
    """
    found: dict[str, list[str]] = {}
    total = 0
    for position, letter in enumerate(raw, start=1):
        if letter.translate(_ASCII_UPPER) in letters and position != dropped:
            total += 1
            if total <= POSITIONS_SHOWN:
                name = letter if letter.isprintable() else f"U+{ord(letter):04X}"
                found.setdefault(name, []).append(str(position))
    listed = "; ".join(f"{name} at {', '.join(positions)}" for name, positions in found.items())
    return listed if total <= POSITIONS_SHOWN else f"{listed}; {total - POSITIONS_SHOWN} more"
