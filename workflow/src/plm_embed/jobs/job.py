"""The job of a bucket: what the store lacks is computed, on one node or several; then the
completion record is written.
"""

import logging
import os
import platform
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
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
    Heartbeat,
    ended_path,
    heartbeat_path,
    moment,
    read_heartbeat,
)
from plm_embed.jobs.node import DIFFERENT, SECONDS_MARGIN, Node
from plm_embed.keys import keys_sha256
from plm_embed.models.weights import read_manifest
from plm_embed.sequences.summary import check_kind
from plm_embed.store.parts import read_part
from plm_embed.store.store import Store
from plm_embed.wording import count

log = logging.getLogger(__name__)
LIBRARIES = ("torch", "fair-esm", "h5py", "numpy")
SECONDS_TO_CHECK = 60.0
"""Longest pause between two looks at the store while the first node waits for the others, of which
some may be lost; at first a tenth.
"""
SECONDS_FOR_CACHES = 60.0
"""Time until a network filesystem shows what another node has renamed."""
SECONDS_TO_PUBLISH = 60.0
"""Time that the other nodes may take after a SIGTERM. When this process ends, so may the job."""
PASSED_ON = (
    *("PATH", "PYTHONPATH", "PYTHONSAFEPATH", "LD_LIBRARY_PATH", "PBS_JOBID", "TMPDIR"),
    *("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "TRITON_CACHE_DIR"),
)
"""Environment that remote shells do not have by themselves: pbs_tmrsh starts with
PATH=/bin:/usr/bin.
"""
RANKS = ("PALS_RANKID", "PMI_RANK")
"""Variables in which mpiexec numbers its processes, from 0 on."""


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

    @property
    def number(self) -> int:
        """Return which node of the job this is; 0: the first."""
        if not self.share:
            return 0
        if self.node is not None:
            return self.node
        return 1 + next(int(os.environ[name]) for name in RANKS if name in os.environ)


def embed_bucket(job: Job, settings: Settings) -> None:
    """Embed what the store lacks of a bucket, and write its completion record.

    Raises PassingError when sequences are left that another attempt may do, NodeError when another
    node may, PlmEmbedError when neither would help. What was finished is in the store then.
    """
    seconds = 60 * job.minutes
    end = time.monotonic() + seconds - min(SECONDS_MARGIN, seconds / 2) if seconds else np.inf
    name, number = job.bucket.stem, job.number
    new = heartbeat_path(job.record.parent, name)
    path = _beat_path(job.share, number) if job.share else new
    node = Node(Heartbeat(bucket=name, node=number), path, end)

    def stop(*_: object) -> None:
        node.stop(PassingError("stopped by a signal"))

    for signal_number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signal_number, stop)
    try:
        node.start(job.workers, job.weights, job.store, settings)
        # while they start
        alphabet = read_manifest(job.weights).family.alphabet.name
        alphabet = "protein_pair" if settings.linker else alphabet
        check_kind(job.bucket, alphabet, settings.strand)
        sequences = read_sequences(job.bucket)
        store = Store(job.store, node.wait_until_ready())
        ending = f".{store.fingerprint.id}.npy"
        if job.share:
            if not job.share.name.endswith(ending):
                raise PlmEmbedError(f"the nodes have {DIFFERENT}")
            if left := node.run(sequences.take(np.load(job.share)[number :: job.nodes]), store):
                raise node.error(f"{count(left, 'sequence')} not embedded")
        else:
            _embed_missing(job, node, sequences, store, path.with_name(path.stem + ending))
    except Exception as error:
        node.end("failed", str(error))
        raise
    node.end("complete")


def _embed_missing(job: Job, node: Node, sequences: Sequences, store: Store, share: Path) -> None:
    """Have this node and the others embed what the store lacks, and write the record."""
    todo = missing(sequences, store)
    if not len(todo) and is_done(job.bucket, job.record, job.store, store.fingerprint):
        log.info("bucket %s is done already", job.bucket.stem)
        return
    remote: list[Path] = []
    if job.nodes > 1 and len(todo):
        # one list for all: if each node made its own, what is published meanwhile would shift
        # their shares
        with atomic_path(share) as temporary, temporary.open("wb") as file:
            np.save(file, todo)
        node.remote += start_nodes(job.nodes, [*job.arguments, "--share", str(share)])
        remote = [_beat_path(share, number) for number in range(1, job.nodes)]
    left = node.run(sequences.take(todo[:: job.nodes]), store)
    patience = SECONDS_FOR_CACHES if remote and not left else 0.0
    beats = _wait(node, remote, sequences, store, patience)
    write_record(job, sequences, store, todo, beats)
    share.unlink(missing_ok=True)


def _beat_path(share: Path, number: int) -> Path:
    """Return the path of the heartbeat of another node."""
    return share.with_name(f"{share.name.rsplit('.', 2)[0]}-{number}.json")


def _wait(
    node: Node, paths: Sequence[Path], sequences: Sequences, store: Store, patience: float
) -> list[Heartbeat]:
    """Wait for the other nodes, or, as one may be lost, until nothing is missing in the store.

    paths: of their heartbeats. Returns those of all nodes. Raises an error of the node when
    something is missing, `patience` seconds after all have ended well.
    """
    checked, pause, until = time.monotonic(), SECONDS_TO_CHECK / 10, np.inf
    while True:
        if node.stopped:
            node.pass_on()
        codes = [process.poll() for process in node.remote]
        since = time.monotonic() - checked
        if None in codes and since < (SECONDS_TO_PUBLISH if node.stopped else pause):
            time.sleep(0.2)
            continue
        checked, pause = time.monotonic(), min(2 * pause, SECONDS_TO_CHECK)
        remote = [read_heartbeat(ended_path(path)) or read_heartbeat(path) for path in paths]
        beats = [node.heartbeat, *(beat for beat in remote if beat)]
        left = missing(sequences, store, {key for beat in beats for key in beat.skipped})
        if not len(left):
            node.pass_on()  # one that hangs is of no more use
            return beats
        if None in codes and not node.stopped:
            continue
        until = min(until, checked + patience)
        if any(codes) or node.stopped or checked >= until:
            failed = ", ".join(str(code) for code in codes if code)
            ends = f"; other nodes ended with {failed}" if failed else ""
            raise node.error(f"{count(len(left), 'sequence')} not embedded{ends}")
        time.sleep(1)


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
    present = ~long
    present[todo] = False
    spared, found = int(lengths[present].sum()), int(present.sum())
    parts = store.covering(keys[~skipped])
    devices: set[str] = set()
    for part in parts:
        with read_part(store.parts_folder / part.name) as file:
            devices |= file.devices
    workers = tuple(worker for beat in beats for worker in beat.workers if worker.device)
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
        found=found,
        spared_tokens=read_manifest(job.weights).family.tokens(spared, found),
        reused_devices=tuple(sorted(devices - {worker.device for worker in workers})),
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
    write_completion(job.record, record)
    speed = f"; {tokens / worked:,.0f} tokens/s on {workers[0].device}" if worked else ""
    log.info(
        f"bucket {record.bucket}: {count(len(keys), 'sequence')}, {found:,} already in the store, "
        f"{record.computed:,} computed, {len(record.skipped):,} skipped, {seconds:.1f} s{speed}"
    )


def start_nodes(nodes: int, arguments: Sequence[str]) -> list["subprocess.Popen[bytes]"]:
    """Run `plm-embed ARGUMENTS` on the other `nodes` - 1 nodes of a PBS job, in this folder; return
    what to wait for.

    PALS mpiexec (Cray, Polaris) does it where it is, else pbs_tmrsh host by host. Each process
    learns from `--node`, or from mpiexec, which node it is. Raises PlmEmbedError when the job has
    fewer nodes, and when nothing can start processes on them.
    """
    try:
        lines = Path(os.environ["PBS_NODEFILE"]).read_text().split()
    except (KeyError, OSError):
        lines = []
    hosts = list(dict.fromkeys(lines))
    if len(hosts) < nodes:
        raise PlmEmbedError(
            f"the job has {len(hosts)} of {nodes} nodes "
            f"({', '.join(hosts) or 'PBS_NODEFILE is not set'})\n"
            "a job over several nodes runs in PBS; elsewhere set the resource nodes to 1"
        )
    name = socket.gethostname().split(".")[0]
    first = next((host for host in hosts if host.split(".")[0] == name), hosts[0])
    hosts = [host for host in hosts if host != first][: nodes - 1]
    command = [sys.executable, "-P", "-m", "plm_embed", *arguments]
    if _has_pals():
        # told not to end the others with one. PALS gives each rank a TMPDIR that is too long for
        # Unix sockets (107 bytes); `env` puts ours back
        temporary = ["env", f"TMPDIR={os.environ['TMPDIR']}"] if "TMPDIR" in os.environ else []
        words = ["mpiexec", "--no-abort-on-failure", "-n", str(len(hosts)), "--ppn", "1"]
        words += ["--hosts", ",".join(hosts), "--cpu-bind", "none", *temporary, *command]
        return [subprocess.Popen(words)]
    if not shutil.which("pbs_tmrsh"):
        tools = "neither mpiexec (PALS) nor pbs_tmrsh"
        raise PlmEmbedError(f"cannot start a process on {hosts[0]}: {tools}")
    variables = [f"{name}={os.environ[name]}" for name in PASSED_ON if name in os.environ]
    processes = []
    for number, host in enumerate(hosts, 1):
        words = ["env", *variables, *command, "--node", str(number)]
        script = f"cd {shlex.quote(str(Path.cwd()))} && exec {shlex.join(words)}"
        processes.append(subprocess.Popen(["pbs_tmrsh", host, "/bin/sh", "-c", script]))
    return processes


def _has_pals() -> bool:
    """Tell whether mpiexec is one that can leave the other ranks alone when one fails."""
    with suppress(OSError, subprocess.TimeoutExpired):
        command = ["mpiexec", "--help"]
        answer = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        return "--no-abort-on-failure" in answer.stdout + answer.stderr
    return False
