"""The job of a bucket: what the store lacks is computed, on one node or several; then the
completion record is written.
"""

import asyncio
import logging
import platform
import signal
import time
from collections.abc import Sequence
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
from plm_embed.io.json_files import write_sealed
from plm_embed.jobs.completion_record import Completion, Skipped, is_done
from plm_embed.jobs.heartbeat import Heartbeat, heartbeat_path, moment, read_heartbeat
from plm_embed.jobs.node import (
    DIFFERENT,
    SECONDS_MARGIN,
    Node,
    Sequences,
    missing,
    read_sequences,
)
from plm_embed.jobs.other_nodes import node_number, start_nodes
from plm_embed.keys import keys_sha256
from plm_embed.models.weights import read_manifest
from plm_embed.sequence_windows import too_long
from plm_embed.sequences.summary import check_kind
from plm_embed.store.parts import Part
from plm_embed.store.store import Store
from plm_embed.wording import count

log = logging.getLogger(__name__)
LIBRARIES = ("torch", "fair-esm", "h5py", "numpy")
SECONDS_FOR_CACHES = 60.0
"""Time until a network filesystem shows what another node has renamed."""


@dataclass(frozen=True)
class Job:
    """One bucket to embed.

    minutes: of walltime from now on, 0 for no limit. arguments: of `plm-embed`, to repeat on the
    other nodes. share: the file of the first node for the others, with the indices of the sequences
    that the store lacks, longest first. node: which of the others this is; None: as mpiexec says.
    """

    bucket: Path
    weights: Path
    store: Path
    record: Path
    workers: int
    minutes: float = 0.0
    nodes: int = 1
    arguments: tuple[str, ...] = ()
    share: Path | None = None
    node: int | None = None


def embed_bucket(job: Job, settings: Settings) -> None:
    """Embed what the store lacks of a bucket, and write its completion record.

    Raises PassingError when sequences are left that another attempt may do, NodeError when another
    node may, PlmEmbedError when neither would help. What was finished is in the store then.
    """
    seconds = 60 * job.minutes
    end = time.monotonic() + seconds - min(SECONDS_MARGIN, seconds / 2) if seconds else np.inf
    number, path = 0, heartbeat_path(job.record.parent, job.bucket.stem)
    if job.share:
        number = node_number() if job.node is None else job.node
        path = _beat_path(job.share, number)
    node = Node(Heartbeat(bucket=job.bucket.stem, node=number), path, end)
    for signal_number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signal_number, lambda *_: node.stop(PassingError("stopped by a signal")))
    try:
        asyncio.run(_embed(job, settings, node, path))
    except Exception as error:
        node.end("failed", str(error))
        raise
    node.end("complete")


async def _embed(job: Job, settings: Settings, node: Node, path: Path) -> None:
    """Embed the share of this node; on the first one, see to the others and write the record."""
    await node.start(job.workers, job.weights, job.store, settings)
    # while the workers start
    family = read_manifest(job.weights).as_model.family
    kind = "protein_pair" if settings.linker else family.alphabet.name
    check_kind(job.bucket, kind, settings.strand)
    sequences = read_sequences(job.bucket)
    store = Store(job.store, await node.wait_until_ready())
    ending = f".{store.fingerprint.id}.npy"
    if job.share:
        if not job.share.name.endswith(ending):
            raise PlmEmbedError(f"the nodes have {DIFFERENT}")
        todo = np.load(job.share)[node.heartbeat.node :: job.nodes]
        if left := await node.run(sequences.take(todo), store, family):
            raise node.error(f"{count(left, 'sequence')} not embedded")
        return
    todo = missing(sequences, store)
    if not len(todo) and is_done(job.bucket, job.record, job.store, store.fingerprint):
        log.info("bucket %s is done already", job.bucket.stem)
        return
    share, remote = path.with_name(path.stem + ending), range(1, job.nodes if len(todo) else 1)
    if remote:
        # one list for all: if each node made its own, what is published meanwhile would shift
        # their shares
        with atomic_path(share) as temporary, temporary.open("wb") as file:
            np.save(file, todo)
        node.remote += start_nodes(job.nodes, [*job.arguments, "--share", str(share)])
    tokens = family.token_counts(sequences.lengths, store.fingerprint)
    stored = int(tokens.sum() - tokens[todo].sum())
    left = await node.run(sequences.take(todo[:: job.nodes]), store, family, stored)
    await node.wait(lambda: all(process.poll() is not None for process in node.remote))
    codes = [process.poll() for process in node.remote]
    answers = [read_heartbeat(_beat_path(share, number)) for number in remote]
    beats = [node.heartbeat, *filter(None, answers)]
    skipped = {key for beat in beats for key in beat.skipped}
    # what others have renamed may not show at once
    patience = SECONDS_FOR_CACHES if remote and not left and not any(codes) else 0.0
    until = time.monotonic() + patience
    while absent := len(missing(sequences, store, skipped)):
        if node.stopped or time.monotonic() >= until:
            failed = ", ".join(str(code) for code in codes if code)
            ends = f"; other nodes ended with {failed}" if failed else ""
            raise node.error(f"{count(absent, 'sequence')} not embedded{ends}")
        await asyncio.sleep(1)
    write_record(job, sequences, store, todo, beats)
    share.unlink(missing_ok=True)


def _beat_path(share: Path, number: int) -> Path:
    """Return the path of the heartbeat of another node."""
    return share.with_name(f"{share.name.rsplit('.', 2)[0]}-{number}.json")


def write_record(
    job: Job,
    sequences: Sequences,
    store: Store,
    todo: NDArray[np.int64],
    beats: Sequence[Heartbeat],
) -> None:
    """Write the completion record of a bucket of which nothing is missing.

    todo: indices of the sequences that were missing when the job began; beats: of its nodes.
    """
    keys, lengths, fingerprint = sequences.keys, sequences.lengths, store.fingerprint
    long = too_long(lengths, fingerprint.long_sequences)
    reasons = {key.decode(): "too_long" for key in keys[long]}
    for beat in beats:
        reasons |= beat.skipped
    skipped = np.isin(keys, np.array([*reasons], dtype="S64"))
    parts = store.covering(keys[~skipped])
    workers = tuple(worker for beat in beats for worker in beat.workers if worker.device)
    devices = set[str]()
    for part in parts:
        with Part(store.parts_folder / part.name) as file:
            devices.add(file.provenance.get("device", ""))
    devices -= {"", *(worker.device for worker in workers)}
    tokens, worked = sum(w.tokens for w in workers), sum(w.seconds for w in workers)
    folder, place = job.record.parent.parent.absolute(), job.store.absolute()
    started, ended = beats[0].started, moment()
    seconds = (datetime.fromisoformat(ended) - datetime.fromisoformat(started)).total_seconds()
    versions = {name: version(name) for name in LIBRARIES}
    record = Completion(
        bucket=job.bucket.stem,
        unique=len(keys),
        keys_sha256=keys_sha256(keys),
        fingerprint=fingerprint,
        fingerprint_id=fingerprint.id,
        parts=tuple(parts),
        skipped=tuple(
            Skipped(key.decode(), int(length), reasons[key.decode()])
            for key, length in zip(keys[skipped], lengths[skipped], strict=True)
        ),
        found=len(keys) - int(long.sum()) - len(todo),
        reused_devices=tuple(sorted(devices)),
        computed=sum(worker.computed for worker in workers),
        tokens=tokens,
        tokens_per_second=tokens / worked if worked else None,
        self_test=next((beat.self_test for beat in beats if beat.self_test), None),
        worker=workers[0],
        other_workers=workers[1:],
        store=str(place.relative_to(folder) if place.is_relative_to(folder) else place),
        versions=versions | {"plm-embed": __version__, "python": platform.python_version()},
        seconds=seconds,
        started=started,
        ended=ended,
    )
    write_sealed(job.record, record)
    speed = f"; {tokens / worked:,.0f} tokens/s on {workers[0].device}" if worked else ""
    log.info(
        f"bucket {record.bucket}: {count(len(keys), 'sequence')}, {record.found:,} already in the "
        f"store, {record.computed:,} computed, {len(record.skipped):,} skipped, "
        f"{seconds:.1f} s{speed}"
    )
