"""The job of a bucket: what the store lacks is computed, on one node or several; then the
completion record is written.
"""

import logging
import platform
import signal
import time
from dataclasses import dataclass
from datetime import datetime
from importlib.metadata import version
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from plm_embed._version import __version__
from plm_embed.errors import PassingError, PlmEmbedError
from plm_embed.inference.settings import Settings
from plm_embed.io.files import atomic_path
from plm_embed.jobs.bucket import Sequences, is_done, missing, read_sequences, too_long
from plm_embed.jobs.completion_record import Completion, Skipped, write_completion
from plm_embed.jobs.heartbeat import (
    Results,
    ended_path,
    heartbeat_path,
    moment,
    new_heartbeat,
    read_heartbeat,
)
from plm_embed.jobs.node import SECONDS_MARGIN, Node
from plm_embed.jobs.nodes import start_others
from plm_embed.keys import keys_sha256
from plm_embed.models.manifest import read_manifest
from plm_embed.sequences.summary import check_kind
from plm_embed.store.parts import read_part
from plm_embed.store.store import Store

log = logging.getLogger(__name__)
LIBRARIES = ("torch", "fair-esm", "h5py", "numpy")
SECONDS_TO_CHECK = 60.0
"""Longest pause between two looks at the store while the first node waits for others, of which some
may be lost; at first a tenth.
"""
SECONDS_FOR_CACHES = 60.0
"""Time until a network filesystem shows what another node has renamed."""
SECONDS_TO_PUBLISH = 60.0
"""Time that other nodes may take after a SIGTERM. When this process ends, so may the whole job."""


@dataclass(frozen=True)
class Job:
    """One bucket to embed.

    minutes: of walltime from now on, 0 for no limit. arguments: of `plm-embed`, to repeat on other
    nodes. node: which one this is. share: the file of the first node for the others, with the
    indices of the sequences that the store lacks, longest first.
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


def embed_bucket(job: Job, settings: Settings) -> None:
    """Embed what the store lacks of a bucket, and write its completion record.

    Raises PassingError when sequences are left that another attempt may do, NodeError when another
    node may, PlmEmbedError when neither would help. What was finished is in the store then.
    """
    seconds = 60 * job.minutes
    end = time.monotonic() + seconds - min(SECONDS_MARGIN, seconds / 2) if seconds else np.inf
    name = job.bucket.stem
    path = _path_of(job.share, job.node) if job.share else heartbeat_path(job.store, name)
    node = Node(new_heartbeat(name, job.record.parent, job.store, job.node), path, end)

    def stop(*_: object) -> None:
        node.stopping = True

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    try:
        node.start(job.workers, job.weights, job.store, settings)
        # while they start
        check_kind(job.bucket, read_manifest(job.weights).family.alphabet.name, settings.strand)
        sequences = read_sequences(job.bucket)
        store = Store(job.store, node.wait_until_ready())
        if job.share:
            if not job.share.name.endswith(_ending(store)):
                raise PlmEmbedError("the nodes' devices differ: their vectors would, too")
            node.run(sequences, np.load(job.share)[job.node :: job.nodes], store)
            if node.left:
                raise node.error("not all of this node's share is embedded")
        elif is_done(job.bucket, job.record, store):
            log.info("bucket %s is done already", name)
        else:
            _embed_missing(job, node, sequences, store, path)
    except Exception as error:
        node.end("failed", str(error))
        raise
    node.end("complete")


def _embed_missing(job: Job, node: Node, sequences: Sequences, store: Store, path: Path) -> None:
    """Have this node and the others embed what the store lacks, and write the record."""
    todo = missing(sequences, store)
    todo = todo[np.argsort(-sequences.lengths[todo], kind="stable")]
    share = path.with_name(path.stem + _ending(store))
    if job.nodes > 1 and len(todo):
        # one list for all: if each node made its own, what is published meanwhile would shift
        # their shares
        with atomic_path(share) as temporary, temporary.open("wb") as file:
            np.save(file, todo)
        node.others += start_others(job.nodes, [*job.arguments, "--share", str(share)])
    node.run(sequences, todo[:: job.nodes], store)
    results = _wait(node, sequences, store, share)
    write_record(job, sequences, store, todo, results, node.heartbeat.started)
    share.unlink(missing_ok=True)


def _ending(store: Store) -> str:
    """Return how the name of a share of this store ends."""
    return f".{store.fingerprint.id}.npy"


def _path_of(share: Path, node: int) -> Path:
    """Return the path of the heartbeat of another node."""
    return share.with_name(f"{share.name.rsplit('.', 2)[0]}-{node}.json")


def _wait(node: Node, sequences: Sequences, store: Store, share: Path) -> Results:
    """Wait for the other nodes, or, as one may be lost, until nothing is missing in the store.

    Returns what all nodes did. Raises an error of the node when something is missing.
    """
    paths = [_path_of(share, number) for number in range(1, len(node.others) + 1)]
    checked, pause, until = time.monotonic(), SECONDS_TO_CHECK / 10, np.inf
    while True:
        if node.stopping:
            node.pass_on()
        codes = [other.poll() for other in node.others]
        since = time.monotonic() - checked
        if None in codes and since < (SECONDS_TO_PUBLISH if node.stopping else pause):
            time.sleep(0.2)
            continue
        checked, pause = time.monotonic(), min(2 * pause, SECONDS_TO_CHECK)
        beats = [read_heartbeat(ended_path(path)) or read_heartbeat(path) for path in paths]
        results = sum((beat.results for beat in beats if beat), node.heartbeat.results)
        left = missing(sequences, store, results.skipped)
        if not len(left):
            node.pass_on()  # one that hangs is of no more use
            return results
        if None not in codes or node.stopping:
            until = min(until, checked + SECONDS_FOR_CACHES)
            if not paths or node.left or node.stopping or any(codes) or checked >= until:
                if failed := ", ".join(str(code) for code in codes if code):
                    node.problems.append(PassingError(f"other nodes ended with {failed}"))
                raise node.error(f"{len(left):,} sequences are not embedded")
            time.sleep(1)


def write_record(  # noqa: PLR0917
    job: Job,
    sequences: Sequences,
    store: Store,
    todo: NDArray[np.int64],
    results: Results,
    started: str,
) -> None:
    """Write the completion record of a bucket of which nothing is missing. todo: indices of what
    was, when the job began.
    """
    keys, lengths = sequences.keys, sequences.lengths
    long = too_long(lengths, store.fingerprint.long_sequences)
    reasons = {key.decode(): "too_long" for key in keys[long]} | results.skipped
    kept = ~np.isin(keys, np.array([*reasons], dtype="S64"))
    parts = store.covering(keys[kept])
    devices: set[str] = set()
    for part in parts:
        with read_part(store.parts_folder / part.name) as file:
            devices |= file.devices
    present = ~long
    present[todo] = False
    spared = int(lengths[present].sum()), int(present.sum())
    folder, place = job.record.parent.parent.absolute(), job.store.absolute()
    worked, ended = results.seconds, moment()
    record = Completion(
        computed=results.computed,
        tokens=results.tokens,
        tokens_per_second=results.tokens / worked if worked else None,
        busy=results.busy_seconds / worked if worked else None,
        busy_seconds=results.busy_seconds,
        exact=results.exact if results.computed else None,
        toks_per_batch=results.toks_per_batch,
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
        found=int(present.sum()),
        reused_devices=tuple(sorted(devices - {worker.device for worker in results.workers})),
        spared_tokens=read_manifest(job.weights).family.tokens(*spared),
        self_test=results.self_test,
        worker=results.workers[0],
        other_workers=results.workers[1:],
        joules=results.joules,
        store=str(place.relative_to(folder) if place.is_relative_to(folder) else place),
        versions={name: version(name) for name in LIBRARIES}
        | {"plm-embed": __version__, "python": platform.python_version()},
        loading_seconds=results.loading_seconds,
        seconds=(datetime.fromisoformat(ended) - datetime.fromisoformat(started)).total_seconds(),
        started=started,
        ended=ended,
    )
    write_completion(job.record, record)
    speed = f"; {results.tokens / worked:,.0f} tokens/s on {record.worker.device}" if worked else ""
    log.info(
        f"bucket {record.bucket}: {len(keys)} sequences, {record.found} already in the store, "
        f"{record.computed} computed, {len(record.skipped)} skipped, {record.seconds:.1f} s{speed}"
    )
