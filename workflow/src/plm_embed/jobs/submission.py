"""A submission: the buckets that one scheduler job embeds, on one GPU or on all GPUs of its nodes,
and its file `submissions/{submission}.json`.
"""

import logging
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Literal

from plm_embed.errors import PassingError, PlmEmbedError
from plm_embed.inference.settings import Settings
from plm_embed.io.sealed_json import read_sealed, write_sealed
from plm_embed.jobs.completion_record import Completion, read_completion
from plm_embed.jobs.dispatch import Dispatch, Plan
from plm_embed.jobs.stop_signals import on_stop

log = logging.getLogger(__name__)
FOLDER = "submissions"
"""Beside the folder of the completion records."""


@dataclass(frozen=True, kw_only=True)
class Share:
    """How a worker of a submission spent its time."""

    host: str
    gpu: str | None
    """CUDA_VISIBLE_DEVICES; None on a CPU."""
    pid: int
    buckets: int
    """How many it completed."""
    seconds: float
    """From the begin of its first bucket to the end of the last bucket on its host, so that waiting
    for the others counts.
    """
    busy: float
    """Seconds in the model."""
    loading: float
    """Seconds of loading and checking it."""
    idle: float
    """The share of `seconds`, 0 to 1, that is neither."""


@dataclass(frozen=True, kw_only=True)
class Submission:
    """Says that each of its buckets has its completion record."""

    schema_version: Literal[1] = 1
    buckets: tuple[str, ...]
    workers: tuple[Share, ...]
    """Those that completed buckets in the last attempt."""


def read_submission(path: Path) -> Submission:
    """What a finished submission has left. StoreError when it is missing or damaged."""
    remedy = "remove it, and run `snakemake` again (only what the store lacks is computed)"
    return read_sealed(path, Submission, "a record of a submission", remedy)


def embed_buckets(plan: Plan, settings: Settings, output: Path) -> None:
    """Embed all buckets of the plan, then write `output`: a summary that says that each has its
    completion record.

    What was done stays done, and a repetition does only the rest. Raises PassingError when a bucket
    could not be done, and PlmEmbedError when a repetition would not do it either.
    """
    dispatch = Dispatch(plan, settings)
    with on_stop(dispatch.stop):
        dispatch.run()
    lacking = [
        bucket.stem
        for bucket in plan.buckets
        if not (plan.records / f"{bucket.stem}.json").exists()
    ]
    if dispatch.problems or lacking:
        problems = dispatch.problems or [f"no completion record of {', '.join(lacking)}"]
        error = PassingError if dispatch.passing or not dispatch.problems else PlmEmbedError
        raise error("\n  ".join(["not all buckets are embedded:", *problems]))
    shares = worker_shares(
        [plan.records / f"{bucket.stem}.json" for bucket in plan.buckets], dispatch.began
    )
    if shares:
        worst = max(share.idle for share in shares)
        log.info(
            "%d workers; the idlest one was idle for %.1f %% of its time", len(shares), 100 * worst
        )
    names = tuple(sorted(bucket.stem for bucket in plan.buckets))
    write_sealed(output, Submission(buckets=names, workers=tuple(shares)))


def worker_shares(records: Iterable[Path], since: datetime) -> list[Share]:
    """What each worker that completed buckets after `since` did. Records of earlier attempts are
    left out.
    """
    spans: dict[tuple[str, str, int], list[Completion]] = defaultdict(list)
    for record in map(read_completion, records):
        if datetime.fromisoformat(record.ended) >= since:
            worker = record.worker
            spans[worker.host, worker.gpu or "", worker.pid].append(record)
    ends: dict[str, datetime] = {}
    for (host, _, _), found in spans.items():
        ends[host] = max(
            ends.get(host, since), *(datetime.fromisoformat(record.ended) for record in found)
        )
    return [_share(*who, found, ends[who[0]]) for who, found in sorted(spans.items())]


def _share(host: str, gpu: str, pid: int, records: list[Completion], end: datetime) -> Share:
    began = min(datetime.fromisoformat(record.started) for record in records)
    seconds = (end - began).total_seconds()
    busy = sum(record.busy_seconds for record in records)
    loading = sum(record.loading_seconds for record in records)
    return Share(
        host=host,
        gpu=gpu or None,
        pid=pid,
        buckets=len(records),
        seconds=round(seconds, 3),
        busy=round(busy, 3),
        loading=round(loading, 3),
        idle=round(max(0.0, 1 - (busy + loading) / seconds), 4) if seconds else 0.0,
    )
