"""The job of a bucket: what the store lacks is computed, on one node or several; then the
completion record is written.
"""

import logging
import platform
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from plm_embed._version import __version__
from plm_embed.errors import PlmEmbedError
from plm_embed.inference.settings import Settings
from plm_embed.io.files import atomic_path
from plm_embed.jobs.bucket import Sequences, is_done, missing, read_sequences, too_long
from plm_embed.jobs.completion_record import Completion, Skipped, write_completion
from plm_embed.jobs.gpus import Meter
from plm_embed.jobs.heartbeat import (
    Heartbeat,
    ended_path,
    heartbeat_path,
    new_heartbeat,
    read_heartbeat,
)
from plm_embed.jobs.node import SECONDS_MARGIN, Node
from plm_embed.jobs.nodes import start_others
from plm_embed.jobs.worker import Failed
from plm_embed.keys import keys_sha256
from plm_embed.models.manifest import read_manifest
from plm_embed.sequences.summary import check_kind
from plm_embed.store.parts import read_part
from plm_embed.store.store import Store

log = logging.getLogger(__name__)
LIBRARIES = ("torch", "fair-esm", "h5py", "numpy")
SECONDS_TO_CHECK = 60.0
"""At most between two looks at the store while the first node waits for others, of which one may be
lost; at first a tenth.
"""
SECONDS_FOR_CACHES = 60.0
"""Until a network filesystem shows what another node has renamed."""
SECONDS_TO_PUBLISH = 60.0
"""For what other nodes do at a SIGTERM. When this process ends, so may the job with all nodes."""


@dataclass(frozen=True)
class Job:
    """One bucket to embed.

    minutes: of walltime from now on, 0 for no limit. arguments: of `plm-embed`, to repeat on other
    nodes. node: which one this is. share: what the store lacks, as the first node has listed it.
    """

    bucket: Path
    weights: Path
    store: Path
    record: Path
    workers: int
    minutes: float = 0.0
    nodes: int = 1
    arguments: tuple[str, ...] = ()
    node: int = 0
    share: Path | None = None


class Task(NamedTuple):
    """What is to be done of a bucket.

    todo: indices of the sequences that the store lacks, longest first; list: the file with them,
    for other nodes; recorded: whether the bucket is done and has its record.
    """

    sequences: Sequences
    store: Store
    todo: NDArray[np.int64]
    list: Path
    recorded: bool = False


def embed_bucket(job: Job, settings: Settings) -> None:
    """Embed what the store lacks of a bucket, and write its completion record.

    Raises PassingError when sequences are left that another attempt may do, NodeError when another
    node may, PlmEmbedError when neither would help. What was finished is in the store then.
    """
    seconds = 60 * job.minutes
    end = time.monotonic() + seconds - min(SECONDS_MARGIN, seconds / 2) if seconds else np.inf
    path = heartbeat_path(job.store, job.bucket.stem)
    if job.share:
        path = _path_of(job.share, job.node)
    beat = new_heartbeat(job.bucket.stem, job.record.parent, job.store, job.node)
    node = Node(beat, path, end)
    energy = Meter(0 if settings.device == "cpu" else job.workers)
    others: list[subprocess.Popen[bytes]] = []

    def stop(*_: object) -> None:
        node.stop()
        for other in others:
            other.terminate()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    try:
        node.start(job.workers, job.weights, job.store, settings)
        task = _task(job, settings, node, path)
        if job.nodes > 1 and not job.share and len(task.todo):
            with atomic_path(task.list) as temporary, temporary.open("wb") as file:
                np.save(file, task.todo)
            others += start_others(job.nodes, [*job.arguments, "--share", str(task.list)])
            if node.stopping:  # a signal came meanwhile
                stop()
        node.run(task.sequences, task.todo[job.node :: job.nodes], task.store)
        if job.node > 0 and not node.finished:
            raise node.error("not all of this node's share is embedded")
        paths = [_path_of(task.list, number) for number in range(1, job.nodes)]
        beats = [] if job.node else _wait(node, others, task, paths)
    except Exception as error:
        node.end("failed", str(error), energy.joules())
        raise
    node.end("complete", "", energy.joules())
    if task.recorded:
        log.info("bucket %s is done already", job.bucket.stem)
    elif job.node == 0:
        write_record(job, task, [node.heartbeat, *beats[1:]])
    if job.node == 0:
        task.list.unlink(missing_ok=True)


def _task(job: Job, settings: Settings, node: Node, path: Path) -> Task:
    """Read the bucket while the workers start, and find out what the store lacks.

    There is one list for all nodes: if each made its own, what was published meanwhile would shift
    their shares.
    """
    check_kind(job.bucket, read_manifest(job.weights).family.alphabet.name, settings.strand)
    sequences = read_sequences(job.bucket)
    store = Store(job.store, node.wait_until_ready())
    fingerprint = store.fingerprint
    ending = f".{fingerprint.id}.npy"
    if job.share:
        if not job.share.name.endswith(ending):
            raise PlmEmbedError("the nodes' devices differ: their vectors would, too")
        return Task(sequences, store, np.load(job.share), job.share)
    listed = path.with_name(path.stem + ending)
    if is_done(job.bucket, job.record, job.store, fingerprint):
        return Task(sequences, store, np.zeros(0, np.int64), listed, recorded=True)
    todo = missing(sequences, store)
    todo = todo[np.argsort(-sequences.lengths[todo], kind="stable")]
    return Task(sequences, store, todo, listed)


def _path_of(share: Path, node: int) -> Path:
    """Return the path of the heartbeat of another node."""
    return share.with_name(f"{share.name.rsplit('.', 2)[0]}-{node}.json")


def _wait(
    node: Node,
    others: Sequence["subprocess.Popen[bytes]"],
    task: Task,
    paths: Sequence[Path],
) -> list[Heartbeat]:
    """Wait for the other nodes, or, as one may be lost, until nothing is missing in the store.

    Returns the heartbeats of all nodes. Raises an error of the node when something is missing.
    """
    checked, until, pause = time.monotonic(), np.inf, SECONDS_TO_CHECK / 10
    while True:
        codes = [other.poll() for other in others]
        running, since = None in codes, time.monotonic() - checked
        if running and since < (SECONDS_TO_PUBLISH if node.stopping else pause):
            time.sleep(0.2)
            continue
        checked, pause = time.monotonic(), min(2 * pause, SECONDS_TO_CHECK)
        ended = [read_heartbeat(ended_path(path)) or read_heartbeat(path) for path in paths]
        beats = [node.heartbeat, *filter(None, ended)]
        skipped = {key for beat in beats for key in beat.results.skipped}
        left = missing(task.sequences, task.store, skipped)
        if not len(left):
            for other in others:
                other.terminate()  # one that hangs is of no more use
            return beats
        if not running or node.stopping:
            until = min(until, checked + (SECONDS_FOR_CACHES if others else 0))
            if not node.finished or any(codes) or checked >= until:
                failed = [code for code in codes if code]
                if failed:
                    words = ", ".join(map(str, failed))
                    node.problems.append(Failed(f"other nodes ended with {words}"))
                raise node.error(f"{len(left):,} sequences are not embedded")
            time.sleep(1)


def write_record(job: Job, task: Task, beats: Sequence[Heartbeat]) -> None:
    """Write the completion record of a bucket of which nothing is missing."""
    sequences, store = task.sequences, task.store
    keys, lengths = sequences.keys, sequences.lengths
    all_results = [beat.results for beat in beats]
    long = too_long(lengths, store.fingerprint.long_sequences)
    reasons = {key.decode(): "too_long" for key in keys[long]}
    for results in all_results:
        reasons |= results.skipped
    kept = ~np.isin(keys, np.array([*reasons], dtype="S64"))
    parts = store.covering(keys[kept])
    devices: set[str] = set()
    for part in parts:
        with read_part(store.parts_folder / part.name) as file:
            devices |= file.devices
    workers = [worker for results in all_results for worker in results.workers]
    present = ~long
    present[task.todo] = False
    found = int(present.sum())
    tokens = sum(results.tokens for results in all_results)
    computed = sum(results.computed for results in all_results)
    worked = sum(results.seconds for results in all_results)
    busy = sum(results.busy_seconds for results in all_results)
    folder, place = job.record.parent.parent.absolute(), job.store.absolute()
    joules = [beat.joules for beat in beats if beat.joules is not None]
    family = read_manifest(job.weights).family
    started, ended = beats[0].started, datetime.now(UTC)
    budgets = [results.toks_per_batch for results in all_results if results.toks_per_batch]
    seconds = (ended - datetime.fromisoformat(started)).total_seconds()
    record = Completion(
        bucket=job.bucket.stem,
        unique=len(keys),
        keys_sha256=keys_sha256(keys),
        fingerprint=store.fingerprint,
        fingerprint_id=store.fingerprint.id,
        parts=tuple(parts),
        skipped=tuple(
            Skipped(key.decode(), int(length), reasons[key.decode()])
            for key, length in zip(keys[~kept], lengths[~kept], strict=True)
        ),
        found=found,
        spared_tokens=family.tokens(int(lengths[present].sum()), int(present.sum())),
        reused_devices=tuple(sorted(devices - {worker.device for worker in workers})),
        computed=computed,
        tokens=tokens,
        tokens_per_second=tokens / worked if worked else None,
        busy=busy / worked if worked else None,
        busy_seconds=busy,
        exact=sum(results.exact for results in all_results) if computed else None,
        toks_per_batch=min(budgets, default=None),
        self_test=next(filter(None, (results.self_test for results in all_results)), None),
        worker=workers[0],
        other_workers=tuple(workers[1:]),
        joules=sum(joules) if joules else None,
        store=str(place.relative_to(folder) if place.is_relative_to(folder) else place),
        versions={
            **{name: version(name) for name in LIBRARIES},
            "plm-embed": __version__,
            "python": platform.python_version(),
        },
        loading_seconds=sum(results.loading_seconds for results in all_results),
        seconds=seconds,
        started=started,
        ended=ended.isoformat(timespec="milliseconds"),
    )
    write_completion(job.record, record)
    log.info(
        "bucket %s: %d sequences, %d already in the store, %d computed, %d skipped, %.1f s%s",
        record.bucket,
        len(keys),
        found,
        computed,
        len(record.skipped),
        seconds,
        f"; {record.tokens_per_second:,.0f} tokens/s on {record.worker.device}"
        if record.tokens_per_second
        else "",
    )
