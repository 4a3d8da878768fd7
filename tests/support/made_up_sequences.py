"""Output of deduplicate for made-up records: their files, and a summary that fits."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from plm_embed.io.json_files import write_sealed
from plm_embed.keys import bucket_names, key
from plm_embed.sequences.deduplicate import records_schema
from plm_embed.sequences.residues import PROTEIN
from plm_embed.sequences.summary import SUMMARY, InputFile, Summary
from support.buckets import bucket_of

SOURCES = ("inputs/a.fasta", "inputs/b.csv")


def make_records(count: int = 90) -> list[dict[str, Any]]:
    """Input records of two files, a third of them repeats, some skipped by deduplicate, some with
    events.
    """
    random = np.random.default_rng(7)
    letters = list(PROTEIN.letters)
    unique = [
        "".join(random.choice(letters, size=length))
        for length in random.integers(5, 60, 2 * count // 3)
    ]
    records = []
    for at in range(count):
        source = SOURCES[at >= 2 * count // 3]
        number = at if source == SOURCES[0] else at + 1 - 2 * count // 3
        record: dict[str, Any] = {
            **{"source": source, "number": number, "id": f"p{at % 80}", "header": f"p{at % 80} x"},
            **{"status": "accepted", "events": ""},
            **dict.fromkeys(("reason", "detail", "key", "length")),
        }
        if number == 0:
            record |= {"status": "skipped", "reason": "text_before_first_header", "detail": None}
        elif at % 17 == 4:
            record |= {"status": "skipped", "reason": "empty", "detail": "no residues"}
        else:
            sequence = unique[at % len(unique)]
            record |= {"sequence": sequence, "key": key(sequence), "length": len(sequence)}
            record["events"] = "stop_removed=1" if at % 9 == 0 else ""
        record["function"] = None if source == SOURCES[0] else f"f{at}"
        records.append(record)
    return records


def counted(**fields: Any) -> Summary:
    """A summary of no records, but for these fields."""
    stated: dict[str, Any] = {
        **dict.fromkeys(("records", "accepted", "unique", "residues"), 0),
        **{"skipped": Counter(), "events": Counter(), "lengths": Counter(), "files": {}},
        **{"buckets": 1, "keep": (), "inputs": (), "warnings": ()},
    }
    return Summary(**stated | fields)


def write_sequences(folder: Path, records: list[dict[str, Any]], buckets: int) -> None:
    schema = records_schema(["function"])
    member_order = ["key", "id", "source", "number", "events", "length", "function"]
    members_schema = pa.schema([schema.field(name) for name in member_order])
    bucket_schema = pa.schema(
        [("key", pa.string()), ("sequence", pa.string()), ("length", pa.int32())]
    )
    for sub in ("buckets", "members"):
        (folder / sub).mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(records, schema), folder / "records.parquet")
    accepted = [record for record in records if record["status"] == "accepted"]
    by_key = sorted(accepted, key=lambda record: record["key"])  # stable: then by source and number
    unique = {record["key"]: record for record in by_key}
    for number, name in enumerate(bucket_names(buckets)):
        inside = [record for record in by_key if bucket_of(record["key"], buckets) == number]
        once = [record for record in unique.values() if bucket_of(record["key"], buckets) == number]
        for sub, held, columns in (
            ("members", inside, members_schema),
            ("buckets", once, bucket_schema),
        ):
            pq.write_table(pa.Table.from_pylist(held, columns), folder / sub / f"{name}.parquet")
    per_source = Counter(record["source"] for record in records)
    lengths = Counter(record["length"] for record in unique.values())
    summary = counted(
        inputs=tuple(
            InputFile(path, Path(path).suffix[1:], "none", 1, "00", per_source[path])
            for path in SOURCES
        ),
        keep=("function",),
        records=len(records),
        accepted=len(accepted),
        skipped=dict(Counter(record["reason"] for record in records if record["reason"])),
        unique=len(unique),
        residues=sum(length * count for length, count in lengths.items()),
        lengths=dict(lengths),
        buckets=buckets,
    )
    write_sealed(folder / SUMMARY, summary)
