"""Sequences as a caller gives them in memory, normalized by the rules of a campaign."""

import logging
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import NamedTuple, Protocol

import pyarrow.compute as pc

from plm_embed.errors import InputError
from plm_embed.sequences.alphabet import ALPHABETS, SEPARATOR
from plm_embed.sequences.batch import Batch, Faults, batch_of
from plm_embed.sequences.normalize import normalize_batch
from plm_embed.sequences.plausible import LetterCheck
from plm_embed.sequences.records import Reader
from plm_embed.sequences.settings import OnError, ResiduePolicy, Table
from plm_embed.sequences.tables import NO_VALUE
from plm_embed.wording import some

log = logging.getLogger(__name__)
AT_ONCE = 256
"""Sequences that are taken from an iterable before the first of them is used."""
_FILE_NAME = re.compile(r"[^.]\.(fasta|fas|fa|faa|fna|ffn|csv|tsv|parquet)(\.(gz|bz2|xz|zst))?$")
"""Names of files of sequences, there or not: such a name's letters are residues and its dot is a
gap, so that it would pass for an aligned sequence. Those have other capitals, or several dots.
"""


class SequenceRecord(Protocol):
    """The used part of Biopython's SeqRecord."""

    id: str | None
    seq: object


Chains = tuple[str, str]
"""The chains of a pair, where pairs are embedded."""
SequenceItem = str | Chains | tuple[str, str | Chains] | SequenceRecord
"""A sequence; an id and a sequence; or a record of Biopython. A missing value, as tables have them,
is a sequence without a vector.
"""
SequenceInput = str | Path | Reader | Mapping[str, str | Chains] | Iterable[SequenceItem]
"""A file of sequences, sequences by id, or any iterable of single ones."""


class NamedSequence(NamedTuple):
    """A normalized sequence, or why there is none; `number` counts from 1."""

    number: int
    id: str
    sequence: str
    problem: str


def named_sequences(sequences: SequenceInput, policy: ResiduePolicy) -> Iterator[NamedSequence]:
    """Yield normalized sequences in their order, as they are asked for.

    A file may be whatever the workflow reads; tables need the columns `id` and `sequence`.
    InputError for a text that names no file, for what is no sequence at all, and for nucleotides
    where the model reads proteins, or the reverse.
    """
    path = Path(sequences) if isinstance(sequences, Path | str) else None
    path = sequences.path if isinstance(sequences, Reader) else path
    letters, alone = LetterCheck(ALPHABETS[policy.alphabet], path), False
    for batch in _batches(sequences, ALPHABETS[policy.alphabet].pairs):
        letters.look(batch.residues)
        if batch.first == 0:
            log.warning("%s: text before the first header is ignored", path)
            continue
        normalized = normalize_batch(batch, policy)
        if not alone and pc.any(pc.match_substring(normalized.events, "structure_unknown")).as_py():
            alone = True
            log.warning("residues without 3Di letters are each read as unknown (#)")
        accepted = iter(normalized.sequences.to_pylist())
        columns = batch.ids, normalized.reasons, normalized.details
        rows = zip(*(column.to_pylist() for column in columns), strict=True)
        for number, (id, reason, detail) in enumerate(rows, batch.first):
            problem = f"{reason} ({detail})" if detail else reason or ""
            yield NamedSequence(number, id, "" if problem else next(accepted), problem)


def substitutions(variant: str, sequence: str, letters: str) -> list[tuple[int, str]]:
    """Return the places, from 0 on, and the new letters of a variant of a normalized sequence:
    "A23T", or several joined by colons. InputError where it is none of this sequence.
    """
    changes = []
    for part in str(variant).upper().split(":"):
        match = re.fullmatch(r"([A-Z])([0-9]{1,9})([A-Z])", part)
        if not match or not {match[1], match[3]} <= {*letters}:
            raise InputError(
                f"variant {variant!r}: {part!r} is no substitution of a residue",
                remedy="write A23T for A at residue 23 (from 1 on) to T; A23T:K30R for two",
            )
        old, place, new = match[1], int(match[2]), match[3]
        if not 1 <= place <= len(sequence):
            raise InputError(f"variant {variant!r}: the residues are 1 to {len(sequence)}")
        if sequence[place - 1] != old:
            raise InputError(
                f"variant {variant!r}: residue {place} of the sequence is {sequence[place - 1]}"
            )
        changes.append((place - 1, new))
    if len({place for place, _ in changes}) < len(changes):
        raise InputError(f"variant {variant!r}: substitutes a residue twice")
    return changes


def refuse(sequences: Iterable[NamedSequence], on_error: OnError) -> None:
    """Raise InputError for the first sequence that has a problem, or warn of some of them."""
    lines = []
    for number, id, _, problem in sequences:
        if problem:
            lines.append(f"sequence {number}{f' ({id})' if id else ''}: {problem}")
            if on_error == "raise":
                raise InputError(lines[0], record=number)
    if lines:
        count = "1 sequence has" if len(lines) == 1 else f"{len(lines):,} sequences have"
        log.warning("%s no vector: %s", count, some(lines))


def _batches(sequences: SequenceInput, in_pairs: bool) -> Iterator[Batch]:
    if isinstance(sequences, Reader):
        yield from sequences
        return
    if isinstance(sequences, Path | str):
        path = _existing_file(sequences)
        if isinstance(sequences, str) and not path:
            if _FILE_NAME.search(sequences):
                raise InputError(f"{sequences}: there is no such file", path=sequences)
            shown = sequences if len(sequences) <= 40 else f"{sequences[:40]}..."
            raise InputError(f"{shown!r} is not a file; put a single sequence into a list")
        remedies = dict.fromkeys(
            ("id", "sequence"),
            "rename yours: a table of sequences has the columns id and sequence here; in Python, "
            "pairs of id and sequence will do",
        )
        yield from Reader(path or Path(sequences), Table(remedies=remedies))
        return
    for attribute, message in (
        ("read", "an open file: give its name, or the records that Biopython's SeqIO.parse reads"),
        ("columns", "a table: give its column of sequences, or pairs of id and sequence"),
        # Biopython's records and Seq yield their letters
        (
            "reverse_complement",
            f"a single {type(sequences).__name__}: put a single sequence into a list",
        ),
    ):
        if hasattr(sequences, attribute):
            raise InputError(message)
    if not isinstance(sequences, Iterable):
        raise InputError(
            f"sequences: {sequences!r} holds no sequences",
            remedy="give a list of sequences, a dictionary by id, or a file",
        )
    items = iter(sequences.items() if isinstance(sequences, Mapping) else sequences)
    first = 1
    while block := list(islice(items, AT_ONCE)):
        pairs = [
            _pair(_joined(item) if in_pairs else item, number)
            for number, item in enumerate(block, first)
        ]
        # half a character, as Python has for bytes that are no text, is none of Arrow's
        ids, residues = (
            [(text or "").encode(errors="replace").decode() for text in texts]
            for texts in zip(*pairs, strict=True)
        )
        faults: Faults = {i: NO_VALUE for i, (_, residue) in enumerate(pairs) if residue is None}
        yield batch_of(first, ids, ids, residues, faults)
        first += len(block)


def _joined(item: object) -> object:
    """Return two chains as the text of a pair, beside an id if there is one, or None where a chain
    is missing; anything else, such as the text of a pair, as it is.
    """
    if not (isinstance(item, tuple | list) and len(item) == 2):
        return item
    first, second = item
    if isinstance(second, tuple | list):
        return first, _joined(second)
    if _is_missing(first) or _is_missing(second):
        return None
    if isinstance(first, str) and isinstance(second, str) and SEPARATOR not in second:
        return SEPARATOR.join(item)
    return item


def _is_missing(value: object) -> bool:
    return (
        value is None
        or type(value).__name__ in ("NAType", "NaTType")  # of pandas
        or (isinstance(value, float) and math.isnan(value))
    )


def _pair(item: object, number: int) -> tuple[str, str | None]:
    """Return the id, and the residues or None for a missing value."""
    id, value = "", item
    if isinstance(item, tuple | list) and len(item) == 2:
        id, value = item
        if not isinstance(id, str):
            raise InputError(
                f"sequence {number}: the id {id!r} is a {type(id).__name__}; ids are text",
                record=number,
            )
    elif hasattr(item, "seq"):
        id = str(getattr(item, "id", None) or "")
    value = getattr(value, "seq", value)
    if isinstance(value, Path) or (
        isinstance(value, str)
        and "." in value
        and (_FILE_NAME.search(value) or _existing_file(value))
    ):
        raise InputError(
            f"sequence {number}: {str(value)!r} is the name of a file",
            record=number,
            remedy="pass a file by itself, not in a list; remove the dots from an aligned sequence",
        )
    if isinstance(value, str):
        return id, value
    if _is_missing(value):
        return id, None
    if hasattr(value, "reverse_complement"):  # Biopython's Seq
        return id, str(value)
    raise InputError(
        f"sequence {number} is a {type(value).__name__}; sequences are strings, pairs of an id and "
        "a sequence, or records of Biopython",
        record=number,
        remedy="for pairs of chains, name a linker" if isinstance(value, tuple | list) else "",
    )


def _existing_file(name: str | Path) -> Path | None:
    """Return the path of a file if there is one of this name; `~` is the home folder."""
    # the home folder of nobody; a long sequence is no name of a file
    with suppress(RuntimeError, OSError, ValueError):
        path = Path(name).expanduser()
        return path if path.is_file() else None
    return None
