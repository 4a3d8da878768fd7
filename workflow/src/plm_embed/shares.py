"""How the workers of a submission spent their time, by the completion records of its buckets."""

import json
from collections import defaultdict
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import Any


def worker_shares(records: Iterable[Path], since: datetime) -> list[dict[str, Any]]:
    """For each worker that completed buckets after `since`: host, GPU, process, buckets, and seconds by use.

    `seconds` runs from the begin of its first bucket to the end of the last bucket on its host, so that waiting for the
    others counts. `busy` is the time in the model, `loading` that of loading and checking it, `idle` the share of
    `seconds` that is neither. Records of earlier attempts are left out.
    """
    spans: dict[tuple[str, str, int], list[dict[str, Any]]] = defaultdict(list)
    for path in records:
        record = json.loads(path.read_text(encoding="utf-8"))
        worker = record["worker"]
        if datetime.fromisoformat(record["ended"]) >= since and "busy_seconds" in record:
            spans[worker["host"], worker.get("gpu") or "", worker["pid"]].append(record)
    ends: dict[str, datetime] = {}
    for (host, _, _), found in spans.items():
        ends[host] = max(ends.get(host, since), *(datetime.fromisoformat(record["ended"]) for record in found))
    return [_shares(*who, found, ends[who[0]]) for who, found in sorted(spans.items())]


def _shares(host: str, gpu: str, pid: int, records: list[dict[str, Any]], end: datetime) -> dict[str, Any]:
    seconds = (end - min(datetime.fromisoformat(record["started"]) for record in records)).total_seconds()
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
