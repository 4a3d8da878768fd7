"""A batch of records to Arrow columns: the account of every record, and the rows of those that were
accepted.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from plm_embed.keys import KEY, KEY_BYTES, KEY_DIGITS
from plm_embed.sequences.alphabet import ALPHABETS
from plm_embed.sequences.batch import Batch, strings, text_and_ends
from plm_embed.sequences.normalize import Skipped, format_events, normalize
from plm_embed.sequences.settings import ResiduePolicy

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
    kept: Sequence[pa.StringArray]
    ids: pa.StringArray
    headers: pa.StringArray
    events: pa.StringArray
    reasons: pa.StringArray
    details: pa.StringArray
    skipped: NDArray[np.bool_]
    text: bytes | memoryview
    ends: NDArray[np.int64]


def judge(batch: Batch, policy: ResiduePolicy) -> Judged:
    """Normalize a batch."""
    odd = _odd(batch, policy)
    return _normalized(batch, odd.tolist(), policy) if len(odd) else _clean(batch)


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
    kept = found.kept or [pa.nulls(count, pa.string())] * len(keep)
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
    return strings(digits, np.arange(KEY_DIGITS, len(digits) + 1, KEY_DIGITS))


def _clean(batch: Batch) -> Judged:
    count = batch.count
    none = pa.nulls(count, pa.string())
    no_events = pa.repeat(pa.scalar(""), count)
    skipped = np.zeros(count, dtype=np.bool_)
    columns = batch.id_column, batch.header_column, no_events, none, none
    return Judged(batch.first, batch.kept_columns, *columns, skipped, batch.text, batch.ends)


def _odd(batch: Batch, policy: ResiduePolicy) -> NDArray[np.int64]:
    """The places of the records that are no sequences as they are."""
    if policy.strand == "canonical":
        return np.arange(batch.count)
    alphabet = ALPHABETS[policy.alphabet]
    lengths = np.diff(batch.ends, prepend=0)
    odd = lengths == 0
    if not alphabet.is_clean(batch.text):
        starts = (batch.ends - lengths)[~odd]
        odd[~odd] = np.logical_or.reduceat(alphabet.others(batch.text), starts)
    odd[list(batch.faults)] = True
    return np.flatnonzero(odd)


def _normalized(batch: Batch, odd: Sequence[int], policy: ResiduePolicy) -> Judged:
    """A batch by the rules of `policy`, which have something to say on the `odd` records."""
    count = batch.count
    given = strings(batch.text, batch.ends)
    events = [""] * count
    reasons: list[str | None] = [None] * count
    details: list[str | None] = [None] * count
    skipped = np.zeros(count, dtype=np.bool_)
    made: list[str] = []
    places = np.arange(count)  # of the sequences, among those given and then those made
    for place in odd:
        fault = batch.faults.get(place)
        outcome = Skipped(*fault) if fault else normalize(given[place].as_py(), policy)
        if isinstance(outcome, Skipped):
            reasons[place], details[place] = outcome
            skipped[place] = True
        else:
            places[place] = count + len(made)
            made.append(outcome.sequence)
            events[place] = format_events(outcome.events)
    both = pa.concat_arrays([given, pa.array(made, pa.string())])
    text, ends = text_and_ends(both.take(pa.array(places[~skipped])))
    told, why, particulars = (
        pa.array(values, pa.string()) for values in (events, reasons, details)
    )
    columns = batch.id_column, batch.header_column, told, why, particulars
    return Judged(batch.first, batch.kept_columns, *columns, skipped, text, ends)


_RESULTS = {
    *("id", "cache_key", "key", "row", "length", "source", "number"),
    *("header", "status", "reason", "detail", "events"),
}
"""Columns that the index or records.parquet have by themselves."""


def taken(name: str) -> str:
    """Why a column of this name cannot be carried into the results, or ''."""
    if name in _RESULTS:
        return "the results have a column of their own of this name; leave it out or rename yours"
    if name == "sequence":
        return "the steps call the normalized residues so; rename your column to keep it"
    return ""
