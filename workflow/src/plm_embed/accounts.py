"""A batch of records to Arrow columns: the account of every record, and the rows of those that were accepted."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from plm_embed.buckets import KEY_BYTES, digests
from plm_embed.readers import Batch
from plm_embed.residues import ResiduePolicy, Skipped, format_events, is_clean, normalise
from plm_embed.spill import KEY

_KEY_DIGITS = 2 * KEY_BYTES
_ACCEPTED, _SKIPPED = "accepted", "skipped"


def records_schema(keep: Sequence[str]) -> pa.Schema:
    """records.parquet: one row per input record, in input order."""
    names = ("source", "number", "id", "header", "status", "reason", "detail", "events", "key", "length")
    types = {"number": pa.int64(), "length": pa.int32()}
    return pa.schema([(name, types.get(name, pa.string())) for name in (*names, *keep)])


def accepted_schema(keep: Sequence[str]) -> pa.Schema:
    """Accepted records on their way to the buckets; `source` is the place of the file in the inputs."""
    fixed = {"key": KEY, "source": pa.int32(), "number": pa.int64(), "length": pa.int32()}
    names = ("key", "id", "source", "number", "events", "length", *keep, "sequence")
    return pa.schema([(name, fixed.get(name, pa.string())) for name in names])


class Account(NamedTuple):
    records: pa.RecordBatch
    accepted: pa.RecordBatch


def account(batch: Batch, path: str, source: int, keep: Sequence[str], policy: ResiduePolicy) -> Account:
    """Normalise a batch of file number `source`, called `path`: rows of `records_schema` and `accepted_schema`."""
    count = len(batch.ids)
    sequences, events, reasons, details = _normalised(batch, policy)
    skipped = np.fromiter((reason is not None for reason in reasons), dtype=np.bool_, count=count)
    residues = "".join(sequences).encode("ascii")
    lengths = np.fromiter(map(len, sequences), dtype=np.int32, count=len(sequences))
    ends = np.cumsum(lengths, dtype=np.int64)
    keys = pa.FixedSizeBinaryArray.from_buffers(KEY, len(ends), [None, pa.py_buffer(digests(residues, ends))])
    # for each record the place of its sequence among the accepted, null for none
    places = pa.array(np.cumsum(~skipped) - 1, mask=skipped)
    numbers = pa.array(np.arange(batch.first, batch.first + count))
    ids, told = pa.array(batch.ids, pa.string()), pa.array(events, pa.string())
    kept = [pa.array(values, pa.string()) for values in batch.kept] or [pa.nulls(count, pa.string())] * len(keep)
    records = [
        pa.repeat(pa.scalar(path), count),
        numbers,
        ids,
        pa.array(batch.headers, pa.string()),
        pa.array([_ACCEPTED, _SKIPPED]).take(pa.array(skipped.astype(np.int8))),
        pa.array(reasons, pa.string()),
        pa.array(details, pa.string()),
        told,
        hex_keys(keys).take(places),
        pa.array(lengths).take(places),
        *kept,
    ]
    good = pa.array(np.flatnonzero(~skipped))
    accepted = [
        keys,
        ids.take(good),
        pa.repeat(pa.scalar(source, pa.int32()), len(sequences)),
        numbers.take(good),
        told.take(good),
        pa.array(lengths),
        *(values.take(good) for values in kept),
        strings(residues, ends),
    ]
    return Account(
        pa.record_batch(records, schema=records_schema(keep)), pa.record_batch(accepted, schema=accepted_schema(keep))
    )


def strings(text: bytes, ends: NDArray[np.int64]) -> pa.StringArray:
    """The pieces of `text` that end at `ends`, without making Python strings of them."""
    offsets = np.concatenate([[0], ends]).astype(np.int32)
    return pa.StringArray.from_buffers(len(ends), pa.py_buffer(offsets), pa.py_buffer(text))


def hex_keys(keys: pa.FixedSizeBinaryArray) -> pa.StringArray:
    """Binary keys as 64 hexadecimal digits each."""
    start = KEY_BYTES * keys.offset
    digits = memoryview(keys.buffers()[1])[start : start + KEY_BYTES * len(keys)].hex().encode("ascii")
    return strings(digits, np.arange(_KEY_DIGITS, len(digits) + 1, _KEY_DIGITS))


def _normalised(batch: Batch, policy: ResiduePolicy) -> tuple[list[str], list[str], list[str | None], list[str | None]]:
    """The accepted sequences; for every record its events, reason and detail."""
    count = len(batch.ids)
    events = [""] * count
    reasons: list[str | None] = [None] * count
    details: list[str | None] = [None] * count
    if not batch.faults and "" not in batch.residues and is_clean("".join(batch.residues)):
        return batch.residues, events, reasons, details
    sequences = []
    for place, raw in enumerate(batch.residues):
        fault = batch.faults.get(place)
        outcome = Skipped(*fault) if fault else normalise(raw, policy)
        if isinstance(outcome, Skipped):
            reasons[place], details[place] = outcome
        else:
            sequences.append(outcome.sequence)
            events[place] = format_events(outcome.events)
    return sequences, events, reasons, details
