"""Sequences as a caller gives them in memory, normalized by the rules of a campaign."""

import logging
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from plm_embed.errors import InputError
from plm_embed.sequences.plausible import LetterCheck
from plm_embed.sequences.records import Reader
from plm_embed.sequences.residues import (
    ALPHABETS,
    SEPARATOR,
    Faults,
    ResiduePolicy,
    Skipped,
    normalize,
)
from plm_embed.sequences.settings import OnError, Table
from plm_embed.sequences.tables import NO_VALUE
from plm_embed.wording import some

log = logging.getLogger(__name__)
AT_ONCE = 256
"""Sequences that are taken from an iterable before the first of them is used."""
_RESIDUES = re.compile("[ACDEFGHIKLMNPQRSTVWY]{8,}")
"""Ids that may be sequences: the first chains of pairs."""
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


Block = tuple[int, list[str], list[str], Faults]
"""Ids and residues of consecutive sequences as they are given, after the number of the first (0:
text of a file before them), and the reasons of those that cannot be used.
"""


class NamedSequence(NamedTuple):
    """A normalized sequence, or why there is none; `number` counts from 1."""

    number: int
    id: str
    sequence: str
    problem: str


def named_sequences(sequences: SequenceInput, policy: ResiduePolicy) -> Iterator[NamedSequence]:
    """Yield normalized sequences in their order, as they are asked for.

    A file may be whatever the workflow reads; tables need the columns `id` and `sequence`.
    InputError for a text that names no file, for a set, for what is no sequence at all, and for
    nucleotides where the model reads proteins, or the reverse.
    """
    if isinstance(sequences, Path | str):
        path = _file(sequences)
        if path is None:
            raise InputError(
                f"{str(sequences)[:40]!r} is not a file",
                path=sequences,
                remedy="give the name of a file, or a list of sequences",
            )
        remedies = dict.fromkeys(
            ("id", "sequence"),
            "rename yours: a table of sequences has the columns id and sequence here; in Python, "
            "pairs of id and sequence will do",
        )
        sequences = Reader(path, Table(remedies=remedies))
    alphabet, path = ALPHABETS[policy.alphabet], None
    blocks: Iterator[Block]
    if isinstance(sequences, Reader):
        path = sequences.path
        blocks = (
            (batch.first, batch.ids.to_pylist(), batch.residues.to_pylist(), batch.faults)
            for batch in sequences
        )
    elif isinstance(sequences, set | frozenset):
        raise InputError("a set of sequences has no order", remedy="give a list")
    else:
        blocks = _blocks(sequences, alphabet.pairs)
    letters, alone = LetterCheck(alphabet, path), False
    for first, ids, residues, faults in blocks:
        letters.look(residues)
        if first == 0:
            log.warning("%s: text before the first header is ignored", path)
            continue
        for place, (id, raw) in enumerate(zip(ids, residues, strict=True)):
            fault, number = faults.get(place), first + place
            outcome = Skipped(*fault) if fault else normalize(raw, policy)
            if isinstance(outcome, Skipped):
                reason, detail = outcome
                yield NamedSequence(number, id, "", f"{reason} ({detail})" if detail else reason)
                continue
            if "structure_unknown" in outcome.events and not alone:
                alone = True
                log.warning("residues without 3Di letters are each read as unknown (#)")
            yield NamedSequence(number, id, outcome.sequence, "")


def substitutions(variant: str, sequence: str, letters: str) -> list[tuple[int, str]]:
    """Return the places, from 0 on, and the new letters of a variant of a normalized sequence:
    "A23T", or several joined by colons. InputError where it is none of this sequence.
    """
    changes: dict[int, str] = {}
    for part in str(variant).upper().split(":"):
        match = re.fullmatch(r"([A-Z])([0-9]{1,9})([A-Z])", part)
        if not match or match[3] not in letters:
            raise InputError(
                f"variant {variant!r}: {part!r} is no substitution of a residue",
                remedy="write A23T for A at residue 23 (from 1 on) to T; A23T:K30R for two",
            )
        place = int(match[2]) - 1
        if not 0 <= place < len(sequence):
            raise InputError(f"variant {variant!r}: the residues are 1 to {len(sequence)}")
        if sequence[place] != match[1]:
            raise InputError(f"variant {variant!r}: residue {place + 1} is {sequence[place]}")
        if place in changes:
            raise InputError(f"variant {variant!r}: residue {place + 1} is substituted twice")
        changes[place] = match[3]
    return list(changes.items())


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


def _blocks(sequences: object, in_pairs: bool) -> Iterator[Block]:
    """Yield the sequences of an iterable as they are given, some at a time."""
    # an open file yields lines, a table names of columns, and Biopython's records and Seq letters
    refused = ("read", "columns", "reverse_complement")
    if not isinstance(sequences, Iterable) or any(hasattr(sequences, name) for name in refused):
        raise InputError(
            f"sequences: a {type(sequences).__name__} is no list of sequences",
            remedy="give a list of sequences, a dictionary by id, or a file by its name; of a "
            "table, its column",
        )
    items = iter(sequences.items() if isinstance(sequences, Mapping) else sequences)
    first = 1
    while block := list(islice(items, AT_ONCE)):
        pairs = [
            _id_and_residues(item, number, in_pairs) for number, item in enumerate(block, first)
        ]
        if first == 1 and all(_RESIDUES.fullmatch(id) for id, _ in pairs):
            log.warning(
                "the ids look like sequences; for pairs of chains, name a linker: linker=25 * 'G'"
            )
        # half a character, as Python has for bytes that are no text, cannot be written
        ids, residues = (
            [(text or "").encode(errors="replace").decode() for text in texts]
            for texts in zip(*pairs, strict=True)
        )
        faults: Faults = {i: NO_VALUE for i, (_, residue) in enumerate(pairs) if residue is None}
        yield first, ids, residues, faults
        first += len(block)


def _id_and_residues(item: Any, number: int, in_pairs: bool) -> tuple[str, str | None]:
    """Return the id and the residues of a sequence, of a pair of chains the text of both; None for
    a missing value.
    """
    id, value = getattr(item, "id", None) or "", item
    if isinstance(item, tuple | list) and len(item) == 2 and not (in_pairs and _are_chains(item)):
        id, value = item
    value = getattr(value, "seq", value)
    chains = value if in_pairs and _are_chains(value) else (value,)
    missing = any(
        chain is None
        or type(chain).__name__ in ("NAType", "NaTType")  # of pandas
        or (isinstance(chain, float) and math.isnan(chain))
        for chain in chains
    )
    if len(chains) == 2:
        value = SEPARATOR.join(map(str, chains))
    elif hasattr(value, "reverse_complement"):  # Biopython's Seq
        value = str(value)
    if isinstance(value, Path) or (
        isinstance(value, str) and "." in value and (_FILE_NAME.search(value) or _file(value))
    ):
        raise InputError(
            f"sequence {number}: {str(value)!r} is the name of a file",
            record=number,
            remedy="pass a file by itself, not in a list; remove the dots from an aligned sequence",
        )
    if not isinstance(id, str) or not (missing or isinstance(value, str)):
        raise InputError(
            f"sequence {number}: {item!r:.60} is no sequence",
            record=number,
            remedy="give strings, pairs of an id and a string, or records of Biopython; for pairs "
            "of chains, name a linker",
        )
    return id, None if missing else value


def _are_chains(value: object) -> bool:
    """Return whether a value is two chains, and not an id and a pair of them."""
    return (
        isinstance(value, tuple | list)
        and len(value) == 2
        and not isinstance(value[1], tuple | list)
        and SEPARATOR not in str(value[1])
    )


def _file(name: str | Path) -> Path | None:
    """Return the path of a file if there is one of this name; `~` is the home folder."""
    # the home folder of nobody; a long sequence is no name of a file
    with suppress(RuntimeError, OSError, ValueError):
        path = Path(name).expanduser()
        return path if path.is_file() else None
    return None
