"""The workers of one node, and what is left for them to do of a bucket."""

import logging
import os
import signal
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from multiprocessing import connection
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plm_embed.errors import NodeError, PassingError, PlmEmbedError
from plm_embed.fingerprint import Fingerprint
from plm_embed.inference.settings import Settings
from plm_embed.io.progress import progress
from plm_embed.jobs import worker as worker_process
from plm_embed.jobs.bucket import Sequences
from plm_embed.jobs.completion_record import WorkerInfo
from plm_embed.jobs.gpus import visible_gpus
from plm_embed.jobs.heartbeat import (
    SECONDS_BETWEEN_BEATS,
    Heartbeat,
    Published,
    WorkerBeat,
    write_heartbeat,
)
from plm_embed.jobs.worker import Chunk, Computed, Failed, Progress, Ready
from plm_embed.store.store import Store
from plm_embed.wording import now

log = logging.getLogger(__name__)
FAILURES_IN_A_ROW = 3
"""After which a worker is retired."""
FIRST_CHUNK = 200_000
"""Residues, while no speed is known."""
SECONDS_PER_CHUNK = 5.0
"""At least, but for the last ones."""
TIME_MARGIN = 1.3
SECONDS_MARGIN = 120.0
"""No new chunk when less is left of the walltime than 1.3 x its estimate + 2 minutes."""
SECONDS_TO_START = 900.0
"""A worker that has not checked its device by then hangs; libraries on a busy network filesystem
load in minutes.
"""
SECONDS_TO_END = 10.0
"""The kernel may never let go of a process that waits for a broken device."""


class Worker:
    """A worker as its parent knows it: its present process, and what that was given."""

    def __init__(self, name: str, *arguments: Any) -> None:
        """arguments: those of `serve` after the pipe."""
        self.name, self.arguments = name, arguments
        self.failures = 0  # in a row
        self.rate = 0.0  # residues per second of the last chunk
        self.start()

    def start(self) -> None:
        """Start a process, the first one or in place of one that ended."""
        process, self.pipe = worker_process.start(*self.arguments)
        self.process, self.alive, self.began = process, True, time.monotonic()
        self.info: WorkerInfo | None = None  # until it is ready
        self.failure: Failed | None = None
        self.answers = True  # whether it owes no answer to a chunk
        self.chunk: list[int] = []  # indices in the bucket: being computed
        self.given: list[int] = []  # those, and what may not be published yet
        self.residues, self.share = 0, 0.0  # of the chunk; how much of it is computed
        self.loading = 0.0  # seconds
        self.beat = WorkerBeat(pid=process.pid, state="starting", gpu=self.arguments[-1])

    @property
    def idle(self) -> bool:
        return self.alive and self.info is not None and self.answers


class Node:
    """Hands chunks of a bucket to the workers of this node as they ask.

    What a worker that ended has not published is given to another one. A worker that fails three
    times in a row is retired, and the others go on.
    """

    def __init__(self, heartbeat: Heartbeat, path: Path, end: float) -> None:
        """path: of the heartbeat. end: no chunk begins when it is near (monotonic seconds)."""
        self.heartbeat, self._path, self._end = heartbeat, path, end
        self.workers: list[Worker] = []
        self.fingerprint: Fingerprint | None = None
        self.queue: deque[int] = deque()  # indices that no worker has
        self.problems: list[Failed] = []
        self.fatal = ""  # why no worker could do it
        self.stopping = self._late = False
        self._done = self._left = 0  # residues
        self._beaten = 0.0

    def start(self, count: int, weights: Path, store: Path, settings: Settings) -> None:
        """Start the workers: one per GPU, or `count` on the CPU."""
        self._flush = 60 * settings.flush_minutes
        settings = replace(settings, threads=max(1, settings.threads // count))
        for number, gpu in enumerate(assign(count, settings)):
            if not self.stopping:
                name = f"worker {self.heartbeat.node}.{number}"
                self.workers.append(Worker(name, weights, store, settings, gpu))
        self._stop_new()

    def stop(self, *_: object) -> None:
        """Have the workers publish what they have, and end."""
        self.stopping = True
        for worker in self.workers:
            worker.process.terminate()

    def wait_until_ready(self) -> Fingerprint:
        """Wait for the first worker; return the fingerprint of what this device computes. Raises
        PlmEmbedError when none gets ready.
        """
        while self.fingerprint is None and any(worker.alive for worker in self.workers):
            self._poll()
        if self.fingerprint is None:
            raise self.error("no worker started")
        return self.fingerprint

    def run(self, sequences: Sequences, todo: NDArray[np.int64], store: Store) -> None:
        """Embed sequences (indices, longest first) as far as possible; see `finished`."""
        self._sequences, self._store = sequences, store
        self.queue, self._left = deque(todo.tolist()), int(sequences.lengths[todo].sum())
        self.heartbeat.residues_total = self._left
        with progress("embed", self._left, "residues") as meter:
            while True:
                for worker in self.workers:
                    if worker.idle and not self.stopping:
                        self._give(worker)
                can_begin = bool(self.queue) and time.monotonic() < self._end
                if not any(
                    worker.alive and (not worker.answers or (can_begin and worker.info is None))
                    for worker in self.workers
                ):
                    break
                self._poll()
                meter.advance(self._progress() - meter.done)
                if time.monotonic() > self._end and not self.stopping:
                    self._late = True
                    self.stop()  # what is finished of the chunks is published
        late = self._late or any(worker.alive for worker in self.workers)
        for worker in self.workers:
            worker.pipe.close()  # idle ones end
            if worker.info is None:
                worker.process.terminate()
        for worker in self.workers:
            worker.process.join(SECONDS_TO_END)
        if self.queue and not self.fatal and (self._late or not self.stopping):
            reason = "no time left (ask for a longer runtime)" if late else "no working worker left"
            self.problems.append(
                Failed(f"{reason} for {len(self.queue):,} sequences", node=not late)
            )
        elif self.stopping and not self.fatal:
            self.problems.append(Failed("stopped by a signal"))

    @property
    def finished(self) -> bool:
        """Return whether all that was to be done here is in the store."""
        return not self.queue and not self.stopping

    def error(self, problem: str) -> PlmEmbedError:
        """Return the error to raise for what the node could not do."""
        if self.fatal:
            return PlmEmbedError(self.fatal)
        if self.stopping and not self.problems:
            self.problems.append(Failed("stopped by a signal"))
        words = "\n  ".join([f"{problem}:", *(one.reason for one in self.problems)])
        only_node = bool(self.problems) and all(one.node for one in self.problems)
        return NodeError(words) if only_node else PassingError(words)

    def end(self, outcome: Any, reason: str, joules: float | None) -> None:
        """Write the last heartbeat."""
        beat = self.heartbeat
        beat.outcome, beat.reason, beat.joules = outcome, reason, joules
        beat.ended = datetime.now(UTC).isoformat(timespec="milliseconds")
        self._beat()

    def _give(self, worker: Worker) -> None:
        """Hand a worker a chunk; when nothing is left, or no time, have it publish what it has.

        After a failure it publishes after each chunk: one sequence that ends workers shall not cost
        them what they did before.
        """
        begins = time.monotonic() < self._end
        size = self._size(worker) if begins else 0.0
        lengths = self._sequences.lengths
        while self.queue and worker.residues < size:
            worker.chunk.append(self.queue.popleft())
            worker.residues += int(lengths[worker.chunk[-1]])
        self._left -= worker.residues
        worker.given += worker.chunk
        if worker.given:
            chunk = Chunk(
                self._sequences.keys[worker.chunk],
                [self._sequences.texts[i] for i in worker.chunk],
                publish=not worker.chunk or worker.failures > 0,
            )
            worker.answers = False
            with suppress(OSError):  # it has ended, as its pipe will tell
                worker.pipe.send(chunk)

    def _size(self, worker: Worker) -> float:
        """Return the residues of the next chunk; 0 when there is no time for it.

        A chunk takes as long as may pass between two parts; less towards the end, so that all
        workers end together; and so little that it fits into the time that is left. Each failure
        quarters it, so that a sequence that ends workers is soon alone.
        """
        rate = worker.rate or min((one.rate for one in self.workers if one.rate), default=0.0)
        alive = sum(one.alive for one in self.workers)
        size = self._left / (2 * alive) if alive > 1 else float(self._left)
        if not rate:
            return float(max(1.0, min(size, FIRST_CHUNK) / 4**worker.failures))
        least = min(rate * SECONDS_PER_CHUNK, self._left)
        size = min(max(size, least), max(rate * self._flush, least)) / 4**worker.failures
        possible = rate * (self._end - time.monotonic()) / TIME_MARGIN
        return 0.0 if possible < min(size, least) else float(max(1.0, min(size, possible)))

    def _poll(self) -> None:
        """Take the messages of the workers; wait for one at most a second."""
        by_pipe = {worker.pipe: worker for worker in self.workers if worker.alive}
        for pipe in connection.wait(list(by_pipe), 1.0):
            worker = by_pipe[pipe]  # type: ignore[index]
            try:
                self._take(worker, worker.pipe.recv())
            except (EOFError, OSError):
                self._replace(worker)
        for worker in by_pipe.values():
            if worker.info is None and time.monotonic() - worker.began > SECONDS_TO_START:
                worker.failure = Failed(
                    f"its device gave no sign of life within {SECONDS_TO_START:.0f} s", node=True
                )
                worker.process.kill()
        if time.monotonic() - self._beaten > SECONDS_BETWEEN_BEATS:
            self._beat()

    def _take(self, worker: Worker, message: object) -> None:
        """Note what a worker says."""
        results, beat = self.heartbeat.results, worker.beat
        match message:
            case Ready(fingerprint, info):
                worker.info = info
                beat.state, beat.device, beat.gpu = "idle", info.device, info.gpu or beat.gpu
                results.workers = (*results.workers, info)
                self.fingerprint = self.fingerprint or fingerprint
                if fingerprint != self.fingerprint:
                    self._give_up("the workers' devices differ: their vectors would, too")
            case Progress():
                worker.share = message.share
                worker.beat = replace(beat, state="computing", progressed=now(), **message.beat)
            case Published():
                self._store.know(message.part)
                results.add(message)
            case Computed():
                if worker.chunk:
                    loading = message.loading_seconds - worker.loading
                    worker.loading += loading
                    worker.rate = worker.residues / max(message.seconds - loading, 1e-3)
                    results.loading_seconds += loading
                    results.skipped |= message.skipped
                    results.self_test = message.self_test
                    budgets = filter(None, (message.toks_per_batch, results.toks_per_batch))
                    results.toks_per_batch = min(budgets)
                if not worker.chunk or worker.failures:  # all is published
                    worker.given, worker.failures = [], 0
                self._done += worker.residues
                worker.chunk, worker.residues, worker.share, worker.answers = [], 0, 0.0, True
                beat.state, beat.progressed = "idle", now()
            case Failed():
                worker.failure = message

    def _give_up(self, problem: str) -> None:
        """End the job, for no worker could go on."""
        self.fatal = self.fatal or problem
        self.stop()

    def _replace(self, worker: Worker) -> None:
        """Take back what a worker that ended has not published, and start it anew unless it always
        fails.

        What comes back goes to the end of the queue: it shall not keep others from being computed.
        """
        worker.process.join(SECONDS_TO_END)
        worker.pipe.close()
        worker.alive, worker.beat.state = False, "ended"
        if worker.given:
            given = np.sort(worker.given)
            lengths, keys = self._sequences.lengths, self._sequences.keys[given]
            skips = np.array([*self.heartbeat.results.skipped], dtype="S64")
            rest = given[self._store.missing(keys) & ~np.isin(keys, skips)]
            self.queue.extend(rest[np.argsort(-lengths[rest], kind="stable")].tolist())
            taken_back, published = int(lengths[rest].sum()), int(lengths[given].sum())
            self._left += taken_back
            self._done += worker.residues - taken_back
            log.info("%s: %d of %d residues are taken back", worker.name, taken_back, published)
        worker.chunk, worker.given, worker.residues, worker.share = [], [], 0, 0.0
        failure = worker.failure or Failed(_ending(worker.process.exitcode))
        if failure.fatal and not self.stopping:
            self._give_up(failure.reason)
        if self.stopping:
            return
        worker.failures += 1
        log.warning("%s: %s (failure %d in a row)", worker.name, failure.reason, worker.failures)
        if worker.failures == FAILURES_IN_A_ROW:
            reason = f"{worker.name} is retired: {failure.reason}"
            self.problems.append(Failed(reason, node=failure.node))
            return
        try:
            worker.start()
        except OSError as error:  # no memory or process left
            self.problems.append(Failed(f"{worker.name} cannot be started: {error}"))
        self._stop_new()

    def _stop_new(self) -> None:
        """Stop workers that a signal has not met, since it came while they were started."""
        if self.stopping:
            self.stop()

    def _progress(self) -> float:
        return self._done + sum(worker.share * worker.residues for worker in self.workers)

    def _beat(self) -> None:
        self._beaten = time.monotonic()
        rate = sum(worker.rate for worker in self.workers if worker.alive)
        beat = self.heartbeat
        beat.residues = int(self._progress())
        beat.eta_seconds = ((beat.residues_total or 0) - beat.residues) / rate if rate else None
        beat.workers = tuple(worker.beat for worker in self.workers)
        write_heartbeat(self._path, beat)


def assign(count: int, settings: Settings) -> Sequence[str | None]:
    """Return CUDA_VISIBLE_DEVICES for each of so many workers; None leaves it as it is."""
    if count == 1 or settings.device == "cpu":
        return [None] * count
    gpus = visible_gpus()
    if len(gpus) >= count:
        return gpus[:count]
    if gpus and "CUDA_VISIBLE_DEVICES" not in os.environ:
        log.warning("this node shows %d GPUs, not %d: the others are lost to it", len(gpus), count)
        return gpus
    raise PlmEmbedError(
        f"{count} workers for {len(gpus)} visible GPUs ({', '.join(gpus) or 'none'})\n"
        "request as many GPUs as the rule's resource `gpu` says"
    )


def _ending(code: int | None) -> str:
    """Describe how a process ended that said nothing."""
    if code is None or code >= 0:
        return f"a worker ended with {code}"
    memory = "; out of memory?" if -code == signal.SIGKILL else ""
    return f"a worker was killed (signal {-code}{memory})"
