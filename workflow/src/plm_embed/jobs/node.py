"""The workers of one node, and what is left for them to do of a bucket."""

import logging
import os
import signal
import subprocess
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from multiprocessing import connection
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from plm_embed.errors import NodeError, PassingError, PlmEmbedError
from plm_embed.fingerprint import Fingerprint
from plm_embed.inference.settings import Settings
from plm_embed.io.progress import Meter, progress
from plm_embed.jobs import worker as worker_process
from plm_embed.jobs.bucket import Sequences
from plm_embed.jobs.gpus import visible_gpus
from plm_embed.jobs.heartbeat import (
    SECONDS_BETWEEN_BEATS,
    Heartbeat,
    WorkerBeat,
    moment,
    write_heartbeat,
)
from plm_embed.jobs.worker import Chunk, Report
from plm_embed.store.store import Store

log = logging.getLogger(__name__)
FAILURES_IN_A_ROW = 3
"""After which a worker is retired."""
FIRST_CHUNK = 200_000
"""Residues, while no speed is known."""
SECONDS_PER_CHUNK = 5.0
"""Shortest chunk, but for the last ones."""
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
    """A worker as its parent knows it: its present process, and what that does."""

    def __init__(self, name: str, *arguments: Any) -> None:
        """arguments: those of `serve` after the pipe."""
        self.name, self.arguments = name, arguments
        self.failures = 0  # in a row
        self.rate = 0.0  # residues per second of the last chunk
        self.start()

    def start(self) -> None:
        """Start a process, the first one or in place of one that ended."""
        self.process, self.pipe = worker_process.start(*self.arguments)
        self.alive, self.ready, self.busy = True, False, False
        self.published = True  # all that it has computed
        self.since = time.monotonic()  # it started, or was given its chunk
        self.residues, self.share = 0, 0.0  # of its chunk; how much of that is computed
        self.failure: PlmEmbedError | None = None
        self.beat = WorkerBeat(pid=self.process.pid, state="starting", gpu=self.arguments[-1])


class Node:
    """Hands chunks of a bucket to the workers of this node as they ask.

    A worker that ends is started anew; one that fails three times in a row is retired, and the
    others go on. What a worker that ended has not published is missing in the store, and handed out
    once more.
    """

    def __init__(self, heartbeat: Heartbeat, path: Path, end: float) -> None:
        """path: of the heartbeat. end: no chunk begins when it is near (monotonic seconds)."""
        self.heartbeat, self._path, self._end = heartbeat, path, end
        self.workers: list[Worker] = []
        self.others: list[subprocess.Popen[bytes]] = []
        """Processes that started the other nodes; a signal is passed on to them."""
        self.fingerprint: Fingerprint | None = None
        self.problems: list[PassingError] = []
        self.fatal: PlmEmbedError | None = None  # why no worker could do it
        self.stopping = False
        """Set by a signal, and when no time is left: workers publish what they have, and end."""
        self.left = 0
        """Sequences that could not be embedded."""
        self._late = self._passed_on = False
        self._queue: deque[int] = deque()  # indices that no worker has had
        self._left = self._residues = 0  # residues in the queue: now, and when it was filled
        self._round = 0  # how often it was filled before
        self._beaten = 0.0

    @property
    def _alive(self) -> list[Worker]:
        return [worker for worker in self.workers if worker.alive]

    def start(self, count: int, weights: Path, store: Path, settings: Settings) -> None:
        """Start the workers: one per GPU, or `count` on the CPU."""
        self._flush = 60 * settings.flush_minutes
        settings = replace(settings, threads=max(1, settings.threads // count))
        for number, gpu in enumerate(assign(count, settings)):
            name = f"worker {self.heartbeat.node}.{number}"
            self.workers.append(Worker(name, weights, store, settings, gpu))

    def wait_until_ready(self) -> Fingerprint:
        """Wait for the first worker; return the fingerprint of what this device computes. Raises
        PlmEmbedError when none gets ready.
        """
        while self.fingerprint is None and self._alive:
            self._poll()
        if self.fingerprint is None:
            raise self.error("no worker started")
        return self.fingerprint

    def run(self, sequences: Sequences, todo: NDArray[np.int64], store: Store) -> None:
        """Embed sequences (indices, longest first) as far as possible; see `left`."""
        self._sequences, self._store = sequences, store
        self._residues = self.heartbeat.residues_total = int(sequences.lengths[todo].sum())
        with progress("embed", self._residues, "residues") as meter:
            while len(todo):
                self._queue = deque(todo.tolist())
                self._residues = self._left = int(sequences.lengths[todo].sum())
                self._hand_out(meter)
                skips = np.array([*self.heartbeat.results.skipped], dtype="S64")
                keys = np.sort(sequences.keys[todo])
                keys = np.setdiff1d(keys[store.missing(keys)], skips)
                todo = todo[np.isin(sequences.keys[todo], keys)]
                if self._queue or self.stopping:
                    break
                self._round += 1
        self._close()
        self.left = len(todo)
        if self.left and not self.fatal:
            if self._late or (self._alive and not self.stopping):
                words = f"no time left (ask for a longer runtime) for {self.left:,} sequences"
                self.problems.append(PassingError(words))
            elif not self.stopping:
                words = f"no working worker left for {self.left:,} sequences"
                self.problems.append(NodeError(words))

    def _hand_out(self, meter: Meter) -> None:
        """Have the workers compute what is in the queue, and publish it, as far as possible."""
        while True:
            for worker in self._alive:
                if worker.ready and not worker.busy and not self.stopping:
                    self._give(worker)
            waiting = bool(self._queue) and time.monotonic() < self._end
            if not any(worker.busy or (waiting and not worker.ready) for worker in self._alive):
                return
            self._poll()
            meter.advance(self._progress() - meter.done)
            if time.monotonic() > self._end and not self.stopping:
                self._late = self.stopping = True

    def error(self, problem: str) -> PlmEmbedError:
        """Return the error to raise for what the node could not do."""
        if self.fatal:
            return self.fatal
        if self.stopping and not self._late:
            self.problems.append(PassingError("stopped by a signal"))
        words = "\n  ".join([f"{problem}:", *map(str, self.problems)])
        only_node = self.problems and all(isinstance(error, NodeError) for error in self.problems)
        return NodeError(words) if only_node else PassingError(words)

    def end(self, outcome: Literal["complete", "failed"], reason: str = "") -> None:
        """End the workers, and write the last heartbeat."""
        self._close()
        self.heartbeat.outcome, self.heartbeat.reason = outcome, reason
        self.heartbeat.ended = moment()
        self._beat()

    def pass_on(self) -> None:
        """Have the workers and the other nodes publish what they have, and end."""
        if not self._passed_on:  # to mpiexec a second signal may mean to kill
            for process in (*(worker.process for worker in self._alive), *self.others):
                process.terminate()
        self._passed_on = True

    def _close(self) -> None:
        """End the workers, also those that are of no more use."""
        for worker in self.workers:
            with suppress(OSError):  # it has ended
                worker.pipe.send(None)
            worker.pipe.close()
            if worker.busy or not worker.ready:
                worker.process.terminate()
        for worker in self.workers:
            worker.process.join(SECONDS_TO_END)
            worker.beat.state = "ended"

    def _give(self, worker: Worker) -> None:
        """Hand a worker a chunk; when nothing is left, or no time, have it publish what it has.

        When something was lost it publishes each chunk: one sequence that ends workers shall not
        cost them others again.
        """
        size, chunk = self._size(worker), []
        while self._queue and worker.residues < size:
            chunk.append(self._queue.popleft())
            worker.residues += int(self._sequences.lengths[chunk[-1]])
        self._left -= worker.residues
        if chunk or not worker.published:
            worker.published = not chunk or self._round > 0
            worker.busy, worker.since = True, time.monotonic()
            texts = [self._sequences.texts[i] for i in chunk]
            with suppress(OSError):  # it has ended, as its pipe will tell
                worker.pipe.send(Chunk(self._sequences.keys[chunk], texts, worker.published))

    def _size(self, worker: Worker) -> float:
        """Return the residues of the next chunk; 0 when there is no time for it.

        A chunk takes as long as may pass between two parts; less towards the end, so that all
        workers end together; and so little that it fits into the time that is left. When something
        was lost it is a quarter at most, so that a sequence that ends workers is soon alone.
        """
        seconds = self._end - time.monotonic()
        rate = worker.rate or min((other.rate for other in self.workers if other.rate), default=0.0)
        alive = len(self._alive)
        size = self._left / (2 * alive) if alive > 1 else float(self._left)
        if rate:
            least = min(rate * SECONDS_PER_CHUNK, self._left)
            size = min(max(size, least), max(rate * self._flush, least))
            possible = rate * seconds / TIME_MARGIN
            size = min(size, possible) if possible >= least else 0.0
        else:
            size = min(size, FIRST_CHUNK) if seconds > 0 else 0.0
        return min(size, max(1.0, self._residues / 4)) if self._round else size

    def _poll(self) -> None:
        """Take the messages of the workers, waiting for one at most a second; pass a signal on."""
        by_pipe: dict[Any, Worker] = {worker.pipe: worker for worker in self._alive}
        for pipe in connection.wait(list(by_pipe), 1.0):
            worker = by_pipe[pipe]
            try:
                self._take(worker, worker.pipe.recv())
            except (EOFError, OSError):
                self._replace(worker)
        for worker in by_pipe.values():
            if not worker.ready and time.monotonic() - worker.since > SECONDS_TO_START:
                words = f"its device gave no sign of life within {SECONDS_TO_START:.0f} s"
                worker.failure = NodeError(words)
                worker.process.kill()
        if self.stopping:
            self.pass_on()
        if time.monotonic() - self._beaten > SECONDS_BETWEEN_BEATS:
            self._beat()

    def _take(self, worker: Worker, message: Report | PlmEmbedError) -> None:
        """Note what a worker says."""
        if isinstance(message, PlmEmbedError):
            worker.failure = message
            return
        worker.beat, worker.share = message.beat, message.share
        self.heartbeat.results += message.results
        for part in message.parts:
            self._store.know(part)
        if message.answer:
            if worker.residues:
                seconds = time.monotonic() - worker.since - message.results.loading_seconds
                worker.rate = worker.residues / max(seconds, 1e-3)
            worker.residues, worker.share, worker.busy, worker.failures = 0, 0.0, False, 0
        worker.ready = True
        self.fingerprint = self.fingerprint or message.fingerprint
        if message.fingerprint != self.fingerprint:
            self._give_up(PlmEmbedError("the workers' devices differ: their vectors would, too"))

    def _give_up(self, problem: PlmEmbedError) -> None:
        """End the job, for no worker could go on."""
        self.fatal, self.stopping = self.fatal or problem, True

    def _replace(self, worker: Worker) -> None:
        """Start a worker that ended anew, unless it always fails."""
        worker.process.join(SECONDS_TO_END)
        worker.pipe.close()
        worker.alive, worker.beat.state = False, "ended"
        failure = worker.failure or PassingError(_ending(worker.process.exitcode))
        if self.stopping:
            return
        if not isinstance(failure, PassingError):
            self._give_up(failure)
            return
        worker.failures += 1
        log.warning("%s: %s (failure %d in a row)", worker.name, failure, worker.failures)
        if worker.failures == FAILURES_IN_A_ROW:
            self.problems.append(type(failure)(f"{worker.name} is retired: {failure}"))
            return
        try:
            worker.start()
        except OSError as error:  # no memory or process left
            self.problems.append(PassingError(f"{worker.name} cannot be started: {error}"))

    def _progress(self) -> float:
        """Return the residues that are done."""
        going = sum(worker.residues * (1 - worker.share) for worker in self._alive)
        return (self.heartbeat.residues_total or 0) - self._left - going

    def _beat(self) -> None:
        self._beaten = time.monotonic()
        beat, rate = self.heartbeat, sum(worker.rate for worker in self._alive)
        beat.residues = int(self._progress())
        beat.eta_seconds = ((beat.residues_total or 0) - beat.residues) / rate if rate else None
        beat.workers = tuple(worker.beat for worker in self.workers)
        beat.joules = beat.results.joules
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
