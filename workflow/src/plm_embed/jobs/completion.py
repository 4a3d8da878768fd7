"""The completion record of a bucket, and what the records of a campaign or submission add up to."""

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from statistics import median
from typing import Any

from plm_embed.errors import PlmEmbedError, StoreError
from plm_embed.fingerprint import Fingerprint
from plm_embed.io.files import whole_files
from plm_embed.io.sealed import read_sealed
from plm_embed.keys import bucket_names
from plm_embed.store.store import PartInfo

EMBED_AGAIN = "run `snakemake --forcerun embed` (only what the store lacks is computed)"


@dataclass(frozen=True)
class Completion:
    """What is used of a completion record; see `read_completion`. skipped: reason by key.

    batch_dependent: whether the job's self-test saw bits that depend on the batch.
    """

    path: Path
    keys_sha256: str
    fingerprint: Fingerprint
    parts: tuple[PartInfo, ...]
    skipped: dict[bytes, str]
    devices: tuple[str, ...]
    versions: dict[str, str]
    batch_dependent: bool


def read_completion(path: Path) -> Completion:
    """Read a bucket's completion record. StoreError when it is absent, damaged or not one."""
    record = read_sealed(path, "a completion record", EMBED_AGAIN)
    try:
        return Completion(
            path=path,
            keys_sha256=record["keys_sha256"],
            fingerprint=Fingerprint.from_json(json.dumps(record["fingerprint"])),
            parts=tuple(
                sorted((PartInfo(**part) for part in record["parts"]), key=lambda part: part.name)
            ),
            skipped={skip["key"].encode(): skip["reason"] for skip in record["skipped"]},
            devices=(record["worker"]["device"], *record.get("reused_devices", ())),
            versions=record["versions"],
            batch_dependent=not (record.get("self_test") or {}).get("batch_invariant", True),
        )
    except (ValueError, KeyError, TypeError) as error:  # sealed, but of another version
        raise StoreError(
            f"{path}: not a completion record of this version ({error!r})",
            remedy=EMBED_AGAIN,
            path=path,
        ) from None


def worker_shares(records: Iterable[Path], since: datetime) -> list[dict[str, Any]]:
    """For each worker that completed buckets after `since`: host, GPU, process, buckets, and
    seconds by use.

    `seconds` runs from the begin of its first bucket to the end of the last bucket on its host, so
    that waiting for the others counts. `busy` is the time in the model, `loading` that of loading
    and checking it, `idle` the share of `seconds` that is neither. Records of earlier attempts are
    left out.
    """
    spans: dict[tuple[str, str, int], list[dict[str, Any]]] = defaultdict(list)
    for path in records:
        record = json.loads(path.read_text(encoding="utf-8"))
        worker = record["worker"]
        if datetime.fromisoformat(record["ended"]) >= since and "busy_seconds" in record:
            spans[worker["host"], worker.get("gpu") or "", worker["pid"]].append(record)
    ends: dict[str, datetime] = {}
    for (host, _, _), found in spans.items():
        ends[host] = max(
            ends.get(host, since), *(datetime.fromisoformat(record["ended"]) for record in found)
        )
    return [_shares(*who, found, ends[who[0]]) for who, found in sorted(spans.items())]


def _shares(
    host: str, gpu: str, pid: int, records: list[dict[str, Any]], end: datetime
) -> dict[str, Any]:
    seconds = (
        end - min(datetime.fromisoformat(record["started"]) for record in records)
    ).total_seconds()
    busy = sum(record["busy_seconds"] for record in records)
    loading = sum(record["loading_seconds"] for record in records)
    return {
        "host": host,
        "gpu": gpu or None,
        "pid": pid,
        "buckets": len(records),
        "seconds": round(seconds, 3),
        "busy": round(busy, 3),
        "loading": round(loading, 3),
        "idle": round(max(0.0, 1 - (busy + loading) / seconds), 4) if seconds else 0.0,
    }


def completion_records(folder: Path) -> Iterable[dict[str, Any]]:
    """Whole completion records in a folder, by name."""
    for path in whole_files(folder, "*.json"):
        try:
            record = read_sealed(path, "a completion record", "")
        except PlmEmbedError:
            continue
        if {"bucket", "fingerprint", "worker", "tokens", "tokens_per_second", "ended"} <= set(
            record
        ):
            yield record


def campaign_records(folder: Path, buckets: int) -> list[dict[str, Any]]:
    """Whole completion records of the present buckets, by name, of the settings of the one that
    ended last.

    Records of other settings, or of an earlier and larger number of buckets, may lie beside them.
    """
    names = set(bucket_names(buckets))
    found = [record for record in completion_records(folder) if record["bucket"] in names]
    last = max(found, key=lambda record: str(record["ended"]), default=None)
    return [record for record in found if last and record["fingerprint"] == last["fingerprint"]]


@dataclass(frozen=True)
class Savings:
    """Sequences found in the store and reused; hours: of one device, estimated from its speed; None
    if it is unknown.

    What an interrupted job of the same campaign has computed counts as found when it is run again.
    """

    found: int
    reused: int
    hours: float | None

    def __str__(self) -> str:
        """'3 sequences found in the store, 40 taken from earlier results (about 0.5 device-hours)',
        '' for none.
        """
        counts = {"found in the store": self.found, "taken from earlier results": self.reused}
        words = ", ".join(f"{count:,} {where}" for where, count in counts.items() if count)
        return words + (
            f" (about {self.hours:.1f} device-hours)" if words and self.hours is not None else ""
        )


def savings(records: Iterable[Mapping[str, Any]]) -> Savings:
    """Add up the completion records of a campaign."""
    found, reused, tokens = 0, 0, 0
    speeds = []
    for record in records:
        found += record.get("found", 0)
        reused += record.get("reused", 0)
        tokens += record.get("spared_tokens", 0)
        if record.get("tokens_per_second"):
            speeds.append(record["tokens_per_second"])
    return Savings(found, reused, tokens / median(speeds) / 3600 if speeds else None)
