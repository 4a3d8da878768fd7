"""Sequence files to unique sequences in buckets, with an account of every record, in bounded
memory.

Two passes. The first streams the inputs, writes records.parquet and hands the accepted records to a
`KeySorter`. The second takes them back in key order and cuts them into buckets/ and members/.
"""

import logging
import shutil
import tempfile
from binascii import hexlify
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from plm_embed.errors import ConfigError, InputError
from plm_embed.io.files import repeated
from plm_embed.io.json_files import write_sealed
from plm_embed.io.parquet import row_group_writer
from plm_embed.io.terminal import progress
from plm_embed.io.threads import behind
from plm_embed.keys import (
    KEY,
    KEY_BYTES,
    KEY_DIGITS,
    bucket_bounds,
    bucket_names,
    digests,
    key_words,
)
from plm_embed.sequences.digests import WORTH_COMPILING, Digests, compiled_digests
from plm_embed.sequences.plausible import LetterCheck, TextCheck, are_words
from plm_embed.sequences.records import (
    Batch,
    NormalizedBatch,
    Reader,
    normalize_batch,
    strings,
    text_and_ends,
)
from plm_embed.sequences.residues import ALPHABETS, SEPARATOR, ResiduePolicy
from plm_embed.sequences.settings import FIRST_CHAIN, RECORDS, Table, why_not_kept
from plm_embed.sequences.sorting import KeySorter
from plm_embed.sequences.summary import SUMMARY, InputFile, Summary
from plm_embed.wording import some

log = logging.getLogger(__name__)
OWN_MEMORY_MB = 420
"""The interpreter, libraries, batches and row groups that wait for a thread, fragmentation."""
_BEHIND = 2
"""Pieces of work that wait for a thread."""
_COMPARED = 100_000, 1 << 24
"""Records, and bytes of their ids, among which ids that different sequences share are looked for.
"""


def records_schema(keep: Sequence[str]) -> pa.Schema:
    """Return the columns of records.parquet: one row per input record, in input order."""
    return _schema(*RECORDS, *keep)


def _schema(*names: str) -> pa.Schema:
    """Return columns of text, but for numbers."""
    types = {"number": pa.int64(), "length": pa.int32(), FIRST_CHAIN: pa.int32()}
    return pa.schema([(name, types.get(name, pa.string())) for name in names])


def deduplicate(
    inputs: Sequence[Path],
    output: Path,
    *,
    buckets: int,
    table: Table,
    policy: ResiduePolicy,
    memory_mb: int,
    tables: Sequence[Table] = (),
) -> Summary:
    """Write records.parquet, buckets/, members/ and, last, summary.json to the folder `output`, of
    one or more inputs.

    buckets/{bucket}.parquet: the unique sequences (key, sequence, length) sorted by key;
    members/{bucket}.parquet: the accepted records (key, id, source, number, events, length, kept
    columns) sorted by key, then in input order. A file for every bucket, empty ones too. Of pairs
    of chains `length` counts both, and `first_chain_length`, as a kept column, the first.
    `tables`: the columns of each input, where they are not the same (`table`). The bytes depend on
    the inputs and options, not on `memory_mb`, 500 or more, which bounds the memory of the process.
    PlmEmbedError: an input that cannot be read (see `records`) or is of another kind (see
    `LetterCheck`), columns that cannot be kept, `buckets` out of range.
    OSError: a full disk. After an error there is no summary.json.
    """
    names, tables = bucket_names(buckets), tables or [table] * len(inputs)
    columns = dict.fromkeys(name for entry in tables for name in entry.keep)
    for name in columns:
        if why := why_not_kept(name):
            raise ConfigError(f"keep: {name}: {why}", key="keep")
        if any(entry.keep.count(name) > 1 for entry in tables):
            raise ConfigError(f"keep: {name!r} is named twice", key="keep")
    keep = (*columns, *[FIRST_CHAIN] * ALPHABETS[policy.alphabet].pairs)
    readers = [Reader(path, entry) for path, entry in zip(inputs, tables, strict=True)]
    for path, same in repeated(inputs):
        raise InputError(f"{path}: is the same file as {same}; name it once", path=path)
    output.mkdir(parents=True, exist_ok=True)
    _clear(output)
    total = sum(reader.bytes for reader in readers)
    account = Account(policy, keep, compiled_digests() if total >= WORTH_COMPILING else digests)
    with (
        tempfile.TemporaryDirectory(prefix=".spill-", dir=output) as spill,
        row_group_writer(output / "records.parquet", records_schema(keep)) as records,
    ):
        sorter = KeySorter(
            Path(spill),
            int((memory_mb - OWN_MEMORY_MB) * 1e6),
            lambda: sum(reader.bytes_read for reader in readers) / total,
        )
        with (
            progress("read", total / 1e6, "MB") as meter,
            behind(_BEHIND) as in_writer,
            behind(_BEHIND) as in_sorter,
        ):
            for source, reader in enumerate(readers):
                for rows, accepted in account.read(reader, source):
                    in_writer(records.write, rows)
                    if len(accepted):
                        in_sorter(sorter.add, accepted)
                    done = sum(reader.bytes_read for reader in readers) / 1e6
                    meter.advance(done - meter.done)
        account.end()
        sources = pa.array(map(str, inputs), pa.string())
        files, lengths = _write_buckets(sorter.sorted(), output, names, keep, sources)
    summary = Summary(
        buckets=buckets,
        keep=keep,
        records=account.records,
        accepted=account.accepted,
        skipped=dict(account.skipped),
        events=dict(account.events),
        unique=lengths.total(),
        residues=sum(length * count for length, count in lengths.items()),
        lengths=dict(lengths),
        inputs=tuple(account.inputs),
        warnings=tuple(account.warnings),
        files=files | {"records.parquet": records.sha256},
        policy=policy,
    )
    write_sealed(output / SUMMARY, summary)
    return summary


def _clear(output: Path) -> None:
    """Remove an earlier result, first what marks it as whole, and what a killed run left behind."""
    (output / SUMMARY).unlink(missing_ok=True)
    for folder in output.glob(".spill-*"):
        shutil.rmtree(folder)
    for folder in (output, output / "buckets", output / "members"):
        for file in (*folder.glob(".tmp-*"), *folder.glob("[0-9]*.parquet")):
            file.unlink()


@dataclass
class Account:
    """Counts and remarks on every record, as the records are read; `keep`: columns that go into the
    results.
    """

    policy: ResiduePolicy
    keep: Sequence[str]
    digests: Digests
    records: int = 0
    accepted: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    events: Counter[str] = field(default_factory=Counter)
    inputs: list[InputFile] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    _ids: list[pa.StringArray] = field(default_factory=list)
    """Ids of the first accepted records, batch by batch."""
    _keys: list[NDArray[np.uint64]] = field(default_factory=list)
    """The first 64 bits of their keys."""

    def read(self, reader: Reader, source: int) -> Iterator[tuple[pa.RecordBatch, pa.RecordBatch]]:
        """Yield rows of records.parquet, and of the accepted records among them on their way to the
        buckets, for which `source`, the place of the file in the inputs, stands for its path.
        InputError when the letters are of another kind than the model reads.
        """
        letters, text = LetterCheck(ALPHABETS[self.policy.alphabet], reader.path), TextCheck()
        for batch in reader:
            if batch.first == 1 and reader.format != "fasta" and are_words(batch.residues):
                self._warn(
                    f"{reader.path}: {batch.residues[0].as_py()!r} and the like are words that "
                    f"repeat: is {reader.table.sequence} the column of sequences?"
                )
            letters.look(batch.residues)
            normalized = normalize_batch(batch, self.policy)
            if self.policy.alphabet in ("protein", "protein_pair"):
                text.look(batch, normalized)
            rows, accepted = self._rows(reader, batch, normalized)
            for value in accepted["events"].value_counts().to_pylist():
                for event in filter(None, value["values"].split(";")):
                    self.events[event.partition("=")[0]] += value["counts"]
            self.skipped.update(rows["reason"].drop_null().to_pylist())
            most, most_bytes = _COMPARED
            if self.records < most and sum(ids.nbytes for ids in self._ids) < most_bytes:
                self._ids.append(accepted["id"])
                self._keys.append(key_words(accepted["key"])[:, 0])
            self.records += len(rows)
            self.accepted += len(accepted)
            yield rows, accepted.append_column("source", pa.repeat(np.int32(source), len(accepted)))
        for warning in text.warnings(reader.path):
            self._warn(warning)
        file = reader.format, reader.compression, reader.bytes, reader.sha256, reader.records
        self.inputs.append(InputFile(str(reader.path), *file))

    def _rows(
        self, reader: Reader, batch: Batch, normalized: NormalizedBatch
    ) -> tuple[pa.RecordBatch, pa.RecordBatch]:
        sequences, events, reasons, details = normalized
        count, alphabet = len(batch.ids), ALPHABETS[self.policy.alphabet]
        text, ends = text_and_ends(sequences)
        letters = np.diff(ends, prepend=0) - alphabet.pairs
        binary = pa.py_buffer(self.digests(text, ends))
        keys = pa.FixedSizeBinaryArray.from_buffers(KEY, len(ends), [None, binary])
        # for each record the place of its sequence among the accepted, null for none
        is_accepted = reasons.is_null()
        accepted = is_accepted.to_numpy(zero_copy_only=False)
        places = pa.array(np.cumsum(accepted) - 1, mask=~accepted)
        columns = {
            **dict.fromkeys(self.keep, pa.nulls(count, pa.string())),
            **dict(zip(reader.table.keep, batch.columns, strict=False)),
            "source": pa.repeat(str(reader.path), count),
            "number": pa.array(np.arange(batch.first, batch.first + count)),
            "id": batch.ids,
            "header": batch.headers,
            "status": pc.if_else(is_accepted, "accepted", "skipped"),
            "reason": reasons,
            "detail": details,
            "events": events,
            "key": hex_keys(keys).take(places),
            "length": pa.array((letters // alphabet.letters_of_residue).astype(np.int32)).take(
                places
            ),
        }
        if alphabet.pairs:
            columns[FIRST_CHAIN] = pc.find_substring(sequences, SEPARATOR).take(places)
        rows = pa.record_batch(columns, schema=records_schema(self.keep))
        shared = rows.select(["id", "number", "events", "length", *self.keep]).filter(is_accepted)
        return rows, shared.append_column("key", keys).append_column("sequence", sequences)

    def end(self) -> None:
        """Warn when there is nothing to embed, and of ids that different sequences share."""
        if alone := self.events["structure_unknown"]:
            self._warn(f"records without 3Di letters, each read as unknown (#): {alone:,}")
        if not self.accepted:
            self._warn(f"none of the {self.records:,} records has a sequence that can be embedded")
            return
        ids = pa.concat_arrays(self._ids).dictionary_encode()
        numbers, keys = ids.indices.to_numpy(), np.concatenate(self._keys)
        order = np.argsort(numbers, kind="stable")
        numbers, keys = numbers[order], keys[order]
        differ = (numbers[1:] == numbers[:-1]) & (keys[1:] != keys[:-1])
        shared = ids.dictionary.take(pa.array(numbers[1:][differ])).unique().to_pylist()
        if shared := [id for id in shared if id]:
            count = "1 id is" if len(shared) == 1 else f"{len(shared):,} ids are"
            self._warn(f"{count} shared by different sequences: {some(shared)}")

    def _warn(self, message: str) -> None:
        self.warnings.append(message)
        log.warning("warning: %s", message)


def hex_keys(keys: pa.FixedSizeBinaryArray) -> pa.StringArray:
    """Return binary keys as 64 hexadecimal digits each."""
    start = KEY_BYTES * keys.offset
    digits = hexlify(memoryview(keys.buffers()[1])[start : start + KEY_BYTES * len(keys)])
    return strings(digits, np.arange(KEY_DIGITS, len(digits) + 1, KEY_DIGITS))


def _write_buckets(
    batches: Iterator[pa.RecordBatch],
    output: Path,
    names: Sequence[str],
    keep: Sequence[str],
    sources: pa.StringArray,
) -> tuple[dict[str, str], Counter[int]]:
    """Write buckets/ and members/ from rows in key order, whose `sequence` is null but for the
    first row of each key.

    Return the SHA-256 of each file by its name, and the unique sequences by length.
    """
    sha256: dict[str, str] = {}
    lengths: Counter[int] = Counter()
    inner = np.array(bucket_bounds(len(names))[1:-1], dtype=np.uint64)
    unique_schema = _schema("key", "sequence", "length")
    members_schema = _schema("key", "id", "source", "number", "events", "length", *keep)
    with (
        progress("write", len(names), "buckets") as meter,
        # compressing sequences takes longest, so two buckets' at a time
        _bucket_files(output / "buckets", names[0::2], unique_schema, sha256) as write_even,
        _bucket_files(output / "buckets", names[1::2], unique_schema, sha256) as write_odd,
        _bucket_files(output / "members", names, members_schema, sha256) as write_members,
    ):
        for rows in batches:
            text = {"key": hex_keys(rows["key"]), "source": sources.take(rows["source"])}
            members = pa.record_batch(
                [text[name] if name in text else rows[name] for name in members_schema.names],
                schema=members_schema,
            )
            is_first = rows["sequence"].is_valid().to_numpy(zero_copy_only=False)
            first = members.select(["key", "length"]).filter(pa.array(is_first))
            # sorted rows hold no bytes for a null, so the others' are one text already
            residues, ends = text_and_ends(rows["sequence"])
            unique = pa.record_batch(
                [first["key"], strings(residues, ends[is_first]), first["length"]],
                schema=unique_schema,
            )
            for value in first["length"].value_counts().to_pylist():
                lengths[value["values"]] += value["counts"]
            numbers = np.searchsorted(inner, key_words(rows["key"])[:, 0], side="right")
            starts = np.append(np.flatnonzero(np.diff(numbers, prepend=-1)), len(rows))
            places = np.append(0, np.cumsum(is_first))[starts]  # among the unique rows
            cuts = zip(pairwise(starts.tolist()), pairwise(places.tolist()), strict=True)
            for number, (cut, unique_cut) in zip(numbers[starts[:-1]].tolist(), cuts, strict=True):
                (write_even, write_odd)[number % 2](names[number], unique[slice(*unique_cut)])
                write_members(names[number], members[slice(*cut)])
                meter.advance(number - meter.done)
        meter.advance(len(names) - meter.done)
    return sha256, lengths


@contextmanager
def _bucket_files(
    folder: Path, names: Sequence[str], schema: pa.Schema, sha256: dict[str, str]
) -> Iterator[Callable[[str, pa.RecordBatch], object]]:
    """Yield a function that appends rows to the file of a bucket, in a thread; buckets come in the
    order of `names`, and each gets a file. The SHA-256 of each whole file goes to `sha256`, by
    folder and name.
    """

    def write() -> Generator[None, tuple[str, pa.RecordBatch] | None]:
        item = yield
        for name in names:
            with row_group_writer(folder / f"{name}.parquet", schema) as file:
                while item and item[0] == name:
                    file.write(item[1])
                    item = yield
            sha256[f"{folder.name}/{name}.parquet"] = file.sha256

    # after an error the open file does not appear
    with closing(write()) as files, behind(_BEHIND) as in_thread:
        next(files)
        yield lambda name, rows: in_thread(files.send, (name, rows))
        in_thread(next, files, None)
