"""Raw residues to a normalized sequence: what is dropped, kept, replaced, or a reason to skip the
record.
"""

import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal, NamedTuple

from plm_embed.sequences.alphabet import PROTEIN, Alphabet

EVENTS = ("whitespace_removed", "upper_cased", "gaps_removed", "stop_removed", "substituted")
POSITIONS_SHOWN = 5

_IN_BRACKETS = re.compile("<[^<>]*>")
_SHOWN = 20  # letters of a header among residues
_ASCII_UPPER = {ord(letter): letter.upper() for letter in "abcdefghijklmnopqrstuvwxyz"}


@dataclass(frozen=True)
class ResiduePolicy:
    """What to do with a record that holds letters beyond the alphabet (`unknown`) or alignment gaps
    (`gaps`).
    """

    unknown: Literal["skip", "substitute"] = "skip"
    gaps: Literal["remove", "skip"] = "remove"
    alphabet: Alphabet = PROTEIN


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
    return text.isascii() and alphabet.is_clean(text.encode("ascii"))


def normalize(raw: str, policy: ResiduePolicy) -> Normalized | Skipped:
    """Normalize the residues of one record.

    In this order: line ends are dropped (no event), other white space is dropped, ASCII letters are
    upper-cased, the gap signs (of proteins '-' and '.') are removed or the record is skipped as
    `gaps`, one terminal stop ('*') is dropped. What is then not a letter of the alphabet (J,
    digits, an inner '*', '<', any letter beyond ASCII) makes the record `unknown_residues`, or
    becomes X one for one. Nothing left: `empty`. A '>' is never replaced: it ends a word such as
    <mask>, or else begins a header that lacks its line, and the record is skipped as
    `glued_header`. Positions in `detail` are 1-based in `raw`.
    """
    alphabet = policy.alphabet
    if raw and is_clean(raw, alphabet):
        return Normalized(raw, {})
    events: dict[str, int] = {}
    one_line = raw.replace("\r", "").replace("\n", "")
    text = "".join(one_line.split())
    if len(text) < len(one_line):
        events["whitespace_removed"] = len(one_line) - len(text)
    upper = text.translate(_ASCII_UPPER)  # str.upper() would make 'SS' of 'ß'
    if upper != text:
        events["upper_cased"] = sum(
            before != after for before, after in zip(text, upper, strict=True)
        )
    gaps = sum(map(upper.count, alphabet.gaps))
    if gaps and policy.gaps == "skip":
        return Skipped("gaps", _positions(raw, alphabet.gaps))
    if gaps:
        events["gaps_removed"] = gaps
        upper = upper.translate(dict.fromkeys(map(ord, alphabet.gaps)))
    stop = 0
    if upper.endswith(alphabet.stop):
        events["stop_removed"] = 1
        upper = upper[:-1]
        stop = raw.rindex(alphabet.stop) + 1
    if not upper:
        return Skipped("empty", None)
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
