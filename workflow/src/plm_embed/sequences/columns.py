"""A batch of records to Arrow columns: the account of every record, and the rows of those that were
accepted.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from plm_embed.keys import KEY, KEY_BYTES
from plm_embed.sequences.alphabet import ALPHABETS
from plm_embed.sequences.fasta import Batch, PlainBatch, strings
from plm_embed.sequences.normalize import ResiduePolicy, Skipped, format_events, is_clean, normalize

_KEY_DIGITS = 2 * KEY_BYTES
_ACCEPTED, _SKIPPED = "accepted", "skipped"


def records_schema(keep: Sequence[str]) -> pa.Schema:
    """records.parquet: one row per input record, in input order."""
    names = (
        "source",
        "number",
        "id",
        "header",
        "status",
        "reason",
        "detail",
        "events",
        "key",
        "length",
    )
    types = {"number": pa.int64(), "length": pa.int32()}
    return pa.schema([(name, types.get(name, pa.string())) for name in (*names, *keep)])


def accepted_schema(keep: Sequence[str]) -> pa.Schema:
    """Accepted records on their way to the buckets; `source` is the place of the file in the
    inputs.
    """
    fixed = {"key": KEY, "source": pa.int32(), "number": pa.int64(), "length": pa.int32()}
    names = ("key", "id", "source", "number", "events", "length", *keep, "sequence")
    return pa.schema([(name, fixed.get(name, pa.string())) for name in names])


class Judged(NamedTuple):
    """A batch after normalization: columns of all records, and the accepted residues, each ending
    at one of `ends`.
    """

    first: int
    kept: Sequence[list[str | None]]
    ids: pa.StringArray
    headers: pa.StringArray
    events: pa.StringArray
    reasons: pa.StringArray
    details: pa.StringArray
    skipped: NDArray[np.bool_]
    text: bytes | memoryview
    ends: NDArray[np.int64]


def judge(batch: Batch | PlainBatch, policy: ResiduePolicy) -> Judged:
    """Normalize a batch."""
    as_they_are = _as_they_are(batch, policy)
    if isinstance(batch, PlainBatch) and as_they_are:
        return _clean(batch)
    return _normalized(batch, None if as_they_are else policy)


class Account(NamedTuple):
    records: pa.RecordBatch
    accepted: pa.RecordBatch


def account(found: Judged, digests: bytes, path: str, source: int, keep: Sequence[str]) -> Account:
    """Rows of `records_schema` and `accepted_schema` for a batch of file number `source`, called
    `path`.

    `digests`: of the accepted sequences, 32 bytes each.
    """
    count, accepted_count = len(found.ids), len(found.ends)
    lengths = pa.array(np.diff(found.ends, prepend=0).astype(np.int32))
    keys = pa.FixedSizeBinaryArray.from_buffers(KEY, accepted_count, [None, pa.py_buffer(digests)])
    numbers = pa.array(np.arange(found.first, found.first + count))
    kept = [pa.array(values, pa.string()) for values in found.kept] or [
        pa.nulls(count, pa.string())
    ] * len(keep)
    hexes, told_lengths, statuses = hex_keys(keys), lengths, pa.repeat(pa.scalar(_ACCEPTED), count)
    good = [found.ids, numbers, found.events, *kept]
    if accepted_count < count:
        # for each record the place of its sequence among the accepted, null for none
        places = pa.array(np.cumsum(~found.skipped) - 1, mask=found.skipped)
        hexes, told_lengths = hexes.take(places), lengths.take(places)
        statuses = pa.array([_ACCEPTED, _SKIPPED]).take(pa.array(found.skipped.astype(np.int8)))
        good = [column.take(pa.array(np.flatnonzero(~found.skipped))) for column in good]
    records = [
        pa.repeat(pa.scalar(path), count),
        numbers,
        found.ids,
        found.headers,
        statuses,
        found.reasons,
        found.details,
        found.events,
        hexes,
        told_lengths,
        *kept,
    ]
    ids, good_numbers, events, *good_kept = good
    sources = pa.repeat(pa.scalar(source, pa.int32()), accepted_count)
    sequences = strings(found.text, found.ends)
    accepted = [keys, ids, sources, good_numbers, events, lengths, *good_kept, sequences]
    return Account(
        pa.record_batch(records, schema=records_schema(keep)),
        pa.record_batch(accepted, schema=accepted_schema(keep)),
    )


def hex_keys(keys: pa.FixedSizeBinaryArray) -> pa.StringArray:
    """Binary keys as 64 hexadecimal digits each."""
    start = KEY_BYTES * keys.offset
    digits = (
        memoryview(keys.buffers()[1])[start : start + KEY_BYTES * len(keys)].hex().encode("ascii")
    )
    return strings(digits, np.arange(_KEY_DIGITS, len(digits) + 1, _KEY_DIGITS))


def _clean(batch: PlainBatch) -> Judged:
    count = len(batch.ends)
    none = pa.nulls(count, pa.string())
    no_events = pa.repeat(pa.scalar(""), count)
    skipped = np.zeros(count, dtype=np.bool_)
    columns = batch.id_column, batch.header_column, no_events, none, none
    return Judged(batch.first, batch.kept, *columns, skipped, batch.text, batch.ends)


def _normalized(batch: Batch | PlainBatch, policy: ResiduePolicy | None) -> Judged:
    """A batch by the rules of `policy`; None where nothing is left to do."""
    count = len(batch.ids)
    events = [""] * count
    reasons: list[str | None] = [None] * count
    details: list[str | None] = [None] * count
    sequences = batch.residues
    if policy:
        sequences = []
        for place, raw in enumerate(batch.residues):
            fault = batch.faults.get(place)
            outcome = Skipped(*fault) if fault else normalize(raw, policy)
            if isinstance(outcome, Skipped):
                reasons[place], details[place] = outcome
            else:
                sequences.append(outcome.sequence)
                events[place] = format_events(outcome.events)
    ids, headers, told, why, particulars = (
        pa.array(values, pa.string())
        for values in (batch.ids, batch.headers, events, reasons, details)
    )
    skipped = np.fromiter((reason is not None for reason in reasons), dtype=np.bool_, count=count)
    ends = np.cumsum(np.fromiter(map(len, sequences), dtype=np.int64, count=len(sequences)))
    columns = ids, headers, told, why, particulars
    text = "".join(sequences).encode("ascii")
    return Judged(batch.first, batch.kept, *columns, skipped, text, ends)


def _as_they_are(batch: Batch | PlainBatch, policy: ResiduePolicy) -> bool:
    """Whether the residues of all records are sequences already."""
    if policy.strand == "canonical" or batch.faults:
        return False
    if isinstance(batch, PlainBatch):
        return ALPHABETS[policy.alphabet].is_clean(batch.text)
    return "" not in batch.residues and is_clean(
        "".join(batch.residues), ALPHABETS[policy.alphabet]
    )


# Columns that the index and records.parquet have by themselves.
OWN_COLUMNS = {
    *("id", "cache_key", "key", "row", "length", "source", "number"),
    *("header", "status", "reason", "detail", "events", "sequence"),
}
