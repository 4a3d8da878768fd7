"""Sequences as a caller gives them in memory, normalized by the rules of a campaign."""

import logging
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import NamedTuple, Protocol

from plm_embed.errors import InputError
from plm_embed.sequences.alphabet import ALPHABETS, Alphabet
from plm_embed.sequences.batch import Batch, Faults, batch_of
from plm_embed.sequences.formats import columns_named
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


One = str | tuple[str, str] | SequenceRecord
"""A sequence; an id and a sequence; or a record of Biopython. A missing value, as tables have them,
is a sequence without a vector.
"""
Given = str | Path | Mapping[str, str] | Iterable[One]
"""A file of sequences, sequences by id, or any iterable of single ones."""


class Named(NamedTuple):
    """One normalized sequence, or why there is none; `number` counts from 1."""

    number: int
    id: str
    sequence: str
    wrong: str

    def refusal(self) -> InputError:
        """Return the error for a record without a sequence."""
        name = f"sequence {self.number}" + (f" ({self.id})" if self.id else "")
        return InputError(f"{name}: {self.wrong}", record=self.number)


def named_sequences(given: Given, policy: ResiduePolicy) -> Iterator[Named]:
    """Yield the sequences in the order given, one by one, as they are asked for.

    A file may be whatever the workflow reads; tables need the columns `id` and `sequence`.
    InputError for a text that names no file, for what is no sequence at all, and for nucleotides
    where the model reads proteins, or the reverse.
    """
    path = Path(given) if isinstance(given, Path | str) else None
    letters = LetterCheck(ALPHABETS[policy.alphabet], path)
    for batch in _batches(given):
        letters.look(batch.residues)
        if batch.first == 0:
            log.warning("%s: what stands before the first header is left out", given)
            continue
        normalized = normalize_batch(batch, policy)
        sequences = iter(normalized.sequences.to_pylist())
        columns = zip(
            batch.ids.to_pylist(),
            normalized.reasons.to_pylist(),
            normalized.details.to_pylist(),
            strict=True,
        )
        for number, (id, reason, detail) in enumerate(columns, batch.first):
            wrong = f"{reason} ({detail})" if detail else reason or ""
            yield Named(number, id, "" if wrong else next(sequences), wrong)


def of_kind(given: Given, alphabet: Alphabet) -> Given:
    """Return the same sequences, in a list if they could be taken once only. InputError, before a
    model is loaded or downloaded for them, when the first of them are of another kind than it
    reads.
    """
    if isinstance(given, Iterator) and not hasattr(given, "read"):  # an open file is refused below
        given = list(given)
    letters = LetterCheck(alphabet, Path(given) if isinstance(given, Path | str) else None)
    for batch in islice(_batches(given), 1):
        letters.look(batch.residues)
    return given


def _batches(given: Given) -> Iterator[Batch]:
    if isinstance(given, Path | str):
        path = _expanded(given)
        if isinstance(given, str) and not _is_file(path):
            if _FILE_NAME.search(given):
                raise InputError(f"{given}: there is no such file", path=path)
            shown = given if len(given) <= 40 else f"{given[:40]}..."
            raise InputError(f"{shown!r} is no file; a single sequence goes into a list")
        with columns_named(
            "rename yours: a table of sequences has the columns id and sequence here; in Python, "
            "pairs of id and sequence will do"
        ):
            reader = Reader(path, Table())
        yield from reader
        return
    if hasattr(given, "read"):  # an open file yields lines
        raise InputError("an open file: give its name, or what Biopython's SeqIO.parse reads of it")
    if hasattr(given, "columns"):  # a data frame yields the names of its columns
        raise InputError("a table: give its column of sequences, or pairs of id and sequence")
    if hasattr(given, "reverse_complement"):  # Biopython's records and Seq yield their letters
        raise InputError(f"a single {type(given).__name__}: a single sequence goes into a list")
    if not isinstance(given, Iterable):
        raise InputError(
            f"sequences: {given!r} holds none",
            remedy="give a list of sequences, a dictionary by id, or a file",
        )
    ones = iter(given.items() if isinstance(given, Mapping) else given)
    first = 1
    while taken := list(islice(ones, AT_ONCE)):
        pairs = [_pair(one, number) for number, one in enumerate(taken, first)]
        # half a character, as Python has for bytes that are no text, is none of Arrow's
        ids, residues = (
            [(text or "").encode(errors="replace").decode() for text in texts]
            for texts in zip(*pairs, strict=True)
        )
        faults: Faults = {
            place: NO_VALUE for place, (_, residue) in enumerate(pairs) if residue is None
        }
        yield batch_of(first, ids, ids, residues, faults=faults)
        first += len(taken)


def _expanded(path: str | Path) -> Path:
    with suppress(RuntimeError):  # the home folder of nobody
        return Path(path).expanduser()
    return Path(path)


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # a long sequence is no name of a file
        return False


def _is_file_name(text: str) -> bool:
    return "." in text and bool(_FILE_NAME.search(text) or _is_file(_expanded(text)))


def _pair(one: object, number: int) -> tuple[str, str | None]:
    """The id, and the residues or None for a missing value."""
    id, given = "", one
    if isinstance(one, tuple | list) and len(one) == 2:
        id, given = one
        if not isinstance(id, str):
            raise InputError(
                f"sequence {number}: the id {id!r} is a {type(id).__name__}; ids are text",
                record=number,
            )
    elif hasattr(one, "seq"):
        id = "" if getattr(one, "id", None) is None else str(one.id)  # type: ignore[attr-defined]
    given = getattr(given, "seq", given)
    if isinstance(given, Path) or (isinstance(given, str) and _is_file_name(given)):
        raise InputError(
            f"sequence {number}: {str(given)!r} is the name of a file",
            record=number,
            remedy="give one file, not in a list; an aligned sequence without its dots",
        )
    if isinstance(given, str):
        return id, given
    if _is_missing(given):
        return id, None
    if hasattr(given, "reverse_complement"):  # Biopython's Seq
        return id, str(given)
    raise InputError(
        f"sequence {number} is a {type(given).__name__}; sequences are strings, pairs of an id and "
        "a sequence, or records of Biopython",
        record=number,
    )


def _is_missing(value: object) -> bool:
    """None, NaN, or what pandas has for them."""
    return (
        value is None
        or type(value).__name__ in ("NAType", "NaTType")
        or (isinstance(value, float) and math.isnan(value))
    )


def refuse(wrong: Iterable[Named], on_error: OnError) -> None:
    """InputError for the first of them, or a warning that names some of them."""
    refused = list(islice(wrong, 1)) if on_error == "raise" else list(wrong)
    if refused and on_error == "raise":
        raise refused[0].refusal()
    if refused:
        log.warning(
            "%s no vector: %s",
            "1 sequence has" if len(refused) == 1 else f"{len(refused):,} sequences have",
            some([str(one.refusal()) for one in refused]),
        )
