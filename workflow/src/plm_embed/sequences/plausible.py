"""Text that is not what it is taken for: nucleotides for proteins, words and labels for residues.

Three-letter code and PIR are certain, and such records are skipped. The rest is a guess from
letters and lines: the records are accepted, and a warning names the first of them.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from string import ascii_uppercase

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from plm_embed.errors import InputError
from plm_embed.sequences.records import Batch, NormalizedBatch, text_and_ends
from plm_embed.sequences.residues import Alphabet
from plm_embed.wording import short

_LETTERS = 100_000  # looked at of an input
_OF_A_RECORD = 1_000  # so that one odd record decides nothing
_ENOUGH = 100  # to tell by; peptides of a few letters may be called ACGT
_BASES = ("A", "C", "G", "TU")
_NO_BASE = "EFILPQ"  # a third of a protein's letters, and none of IUPAC's for bases
_NUCLEOTIDES, _EACH_BASE, _PROTEIN = 0.9, 0.01, 0.1  # shares


@dataclass
class LetterCheck:
    """Tells whether the first records of an input, a file if it has a path, are of another kind
    than its model reads.

    Nucleotides: at least 9 in 10 letters are bases, and 1 in 100 is each of the four, since a
    protein of few kinds of residues, such as antifreeze AAT repeats, may lack some. Proteins: at
    least 1 in 10 letters is one that no base has. N (asparagine, any base) and X (any residue, a
    masked base) do not count, and fewer than 100 letters decide nothing. Residues and 3Di states
    have the same letters: nothing tells one from the other.
    """

    alphabet: Alphabet
    path: Path | None = None
    _counts: Counter[str] = field(default_factory=Counter)

    def look(self, records: Iterable[object]) -> None:
        """Look at the next records, unless enough were seen. InputError when they are of the other
        kind.
        """
        if self._counts.total() >= _LETTERS:
            return
        for record in records:
            raw = str(record)  # text, or Arrow's
            self._counts.update(raw[:: len(raw) // _OF_A_RECORD + 1].upper())
            if self._counts.total() >= _LETTERS:
                break
        total = sum(self._counts[letter] for letter in ascii_uppercase if letter not in "NX")
        if total < _ENOUGH:
            return
        by_base = [sum(self._counts[letter] for letter in base) for base in _BASES]
        bases, residues = sum(by_base), sum(self._counts[letter] for letter in _NO_BASE)
        nucleotides = bases >= _NUCLEOTIDES * total and min(by_base) >= _EACH_BASE * total
        name, share = self.path or "the sequences", f"of {total:,} letters looked at"
        kind = self.alphabet.name
        if kind != "dna" and nucleotides:
            reads = "3Di states" if kind == "3di" else "proteins"
            raise InputError(
                f"{name}: these are nucleotides, and the model reads {reads}: "
                f"{bases / total:.0%} {share} are A, C, G, T or U",
                path=self.path,
                remedy="choose a DNA model, or give the proteins that they encode",
            )
        if kind == "dna" and residues >= _PROTEIN * total:
            raise InputError(
                f"{name}: these are proteins, and the model reads DNA: "
                f"{residues / total:.0%} {share} are E, F, I, L, P or Q, which are not bases",
                path=self.path,
                remedy="choose a protein model, or give the genes",
            )


def are_words(column: pa.StringArray) -> bool:
    """Tell whether a column has short texts that repeat, as labels do and peptides do not: of at
    least 20 texts fewer than half distinct, most shorter than 20 letters, and most in lower case,
    shorter than 5 letters, or with a sign or letter that no peptide has.
    """
    texts = column.to_pylist()
    if len(texts) < 20 or 2 * len(set(texts)) >= len(texts):
        return False
    median = sorted(map(len, texts))[len(texts) // 2]
    words = sum(text != text.upper() or bool(_NO_RESIDUE.search(text)) for text in texts)
    return median < 20 and (2 * words > len(texts) or 0 < median < 5)


_NO_RESIDUE = re.compile(r"[JOU\d _-]")
_STRUCTURE = "HEGTSBIPCL"  # DSSP's states, and C or L for a coil
_OF_FEW_LETTERS = f"^(?:[{_STRUCTURE}]{{20,}}|[ACGTUN]{{30,}})$"
_LEAST_LABELS = 20
_MESSAGE = 40  # letters of a line, at most
_WIDEST = 120  # letters of a line that is wrapped
_NAMED = 3  # records of a kind
_MOST_LOOKED_AT = 50  # records of a batch whose lines are odd
_WORD = re.compile(r"(?i:[jou])|^[A-Z][a-z]{2,}[.:!]?$")
_IS, _HAS, _LOOKS = ("is", "are"), ("has", "have"), ("looks", "look")
_NO_RESIDUES = "not like residues; embedded all the same (if wrong, remove from the input)"
_KINDS = {
    "pir_record": (
        _IS,
        "skipped: PIR, whose first line after the header is a title; convert the file to FASTA",
    ),
    "interleaved_structure": (_IS, "skipped: residues and 3Di letters by turns, as for SaProt"),
    "three_letter_code": (_IS, "skipped: in three-letter code; write one letter for each residue"),
    "structure": (_LOOKS, f"like secondary structure and {_NO_RESIDUES}"),
    "nucleotides": (_LOOKS, f"like nucleotides and {_NO_RESIDUES}"),
    "labels": (_HAS, "lines that look like labels of residues, which were taken for residues"),
    "words": (_HAS, "a line that looks like words, which was taken for residues"),
    "entries": (_HAS, "several entries in one header (NCBI's nr); only its first id is known"),
}
"""Kinds of text, with the words of a warning. The first three are reasons to skip a record."""


@dataclass
class TextCheck:
    """Collects the records of an input that are, or look like, other text than sequences."""

    _counts: Counter[str] = field(default_factory=Counter)
    _names: dict[str, list[str]] = field(default_factory=dict)
    _examples: dict[str, str] = field(default_factory=dict)

    def look(self, batch: Batch, normalized: NormalizedBatch) -> None:
        """Look at a batch of records for proteins."""
        sequences, events, reasons, _ = normalized
        for kind in {*reasons.unique().to_pylist()} & _KINDS.keys():
            for place in np.flatnonzero(pc.equal(reasons, kind).fill_null(False)).tolist():
                self._note(kind, batch, place, batch.residues[place].as_py())
        is_accepted = reasons.is_null().to_numpy(zero_copy_only=False)
        accepted = np.flatnonzero(is_accepted)
        odd = is_accepted & _odd_lines(batch, events)
        for row in np.flatnonzero(pc.match_substring_regex(sequences, _OF_FEW_LETTERS)).tolist():
            if kind := _kind(sequence := sequences[row].as_py()):
                self._note(kind, batch, accepted[row], sequence)
                odd[accepted[row]] = False
        for place in np.flatnonzero(odd)[:_MOST_LOOKED_AT].tolist():
            text = (batch.residues if batch.lines is None else batch.lines)[place].as_py()
            lines = text.splitlines() if isinstance(text, str) else [*filter(None, text)]
            kind, line = _odd_line(lines)
            if kind:
                self._note(kind, batch, place, line)
        if b"\1" in bytes(text_and_ends(batch.headers)[0]):
            for place in np.flatnonzero(pc.match_substring(batch.headers, "\1")).tolist():
                self._note("entries", batch, place, "")

    def _note(self, kind: str, batch: Batch, place: int, example: str) -> None:
        self._counts[kind] += 1
        self._examples.setdefault(kind, example.strip()[:_MESSAGE])
        if self._counts[kind] <= _NAMED:
            id = batch.ids[place].as_py()
            name = f"{batch.first + place}" + (f" ({short(id)})" if id else "")
            self._names.setdefault(kind, []).append(name)

    def warnings(self, path: Path) -> Iterator[str]:
        """Yield a line for each kind of text that was seen."""
        for kind, (verbs, words) in _KINDS.items():
            if count := self._counts[kind]:
                more = f" and {count - _NAMED:,} more" if count > _NAMED else ""
                example = f": {self._examples[kind]!r}" if self._examples[kind] else ""
                names, several = ", ".join(self._names[kind]), count > 1
                records = f"record{'s' * several} {names}{more}"
                yield f"{path}: {records} {verbs[several]} {words}{example}"


def _kind(sequence: str) -> str:
    """Return what a sequence of few letters looks like, if it is no protein: `structure`, runs of
    few states, with helices and strands, or several helices and turns or coils between them; or
    `nucleotides`, all four bases and no other letter but N.
    """
    letters = set(sequence)
    if letters <= set("ACGTUN"):
        return "nucleotides" if {"A", "C", "G"} < letters and letters & {"T", "U"} else ""
    strands = "HHH" in sequence and "EEE" in sequence and len(letters) > 2
    coils = len(re.findall("H{4,}", sequence)) > 1 and not letters.isdisjoint("TCL")
    return "structure" if (strands or coils) and _mean_run(sequence) >= 2 else ""


def _mean_run(text: str) -> float:
    """Return how many equal letters follow one another on average; 1.06 in proteins."""
    return len(text) / (1 + sum(before != after for before, after in pairwise(text)))


def _odd_lines(batch: Batch, events: pa.StringArray) -> NDArray[np.bool_]:
    """Return which records (n,) hold blanks among their residues, or lines that are not as a
    program wraps them: all of one width, but for a shorter last one.
    """
    blanks = pc.match_substring(events, "whitespace_removed")
    odd = np.array(blanks.to_numpy(zero_copy_only=False))
    if batch.lines is None:
        return odd
    lengths = pc.binary_length(batch.lines.values).to_numpy()
    records = pc.list_parent_indices(batch.lines).to_numpy()[lengths > 0]
    lengths = lengths[lengths > 0]
    begins = np.diff(records, prepend=-1) > 0  # the first line of a record
    first = np.flatnonzero(begins)
    many = np.diff(first, append=len(lengths))
    widths = np.repeat(lengths[first], many)
    odd_line = np.where(np.append(begins[1:], True), lengths > widths, lengths != widths)
    two = first[many == 2]
    alike, short = lengths[two] == lengths[two + 1], lengths[two + 1] <= _MESSAGE
    odd_line[two] |= alike | (short & (lengths[two] > _WIDEST))
    odd[records[odd_line]] = True
    return odd


def _odd_line(lines: Sequence[str]) -> tuple[str, str]:
    """Return what a line of a record looks like if it is no residues, `labels` or `words`, and that
    line; else two empty texts.
    """
    half, rest = divmod(len(lines), 2)
    first, second = "".join(lines[:half]), "".join(lines[half:])
    alike = not rest and len(first) == len(second) >= _LEAST_LABELS
    if alike and _mean_run(second) >= 2.5 and _mean_run(first) < 2 and len(set(second)) > 1:
        return "labels", second
    for line in lines:
        words = line.split()
        lengths = [len(word) for word in words]
        blocks = len(set(lengths[:-1])) < 2 and lengths[-1:] <= lengths[:1]
        if not blocks and sum(lengths) <= 12 * len(words):
            return "words", line
        if len(lines) > 1 and len(line) <= _MESSAGE and _WORD.search(line):
            return "words", line
    return "", ""
