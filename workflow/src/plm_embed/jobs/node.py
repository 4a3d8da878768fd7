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
from plm_embed.io.progress import progress
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
from plm_embed.jobs.worker import Chunk, Failed, Report
from plm_embed.store.store import Store

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
        self.process, self.pipe = worker_process.start(*self.arguments)
        self.alive, self.ready, self.busy = True, False, False
        self.since = time.monotonic()  # it started, or was given its chunk
        self.failure: Failed | None = None
        self.given: list[int] = []  # indices in the bucket: what it may not have published
        self.residues, self.share = 0, 0.0  # of its chunk; how much of that is computed
        self.beat = WorkerBeat(pid=self.process.pid, state="starting", gpu=self.arguments[-1])


class Node:
    """Hands chunks of a bucket to the workers of this node as they ask.

    What a worker that ended has not published is given to another one. A worker that fails three
    times in a row is retired, and the others go on.
    """

    def __init__(self, heartbeat: Heartbeat, path: Path, end: float) -> None:
        """path: of the heartbeat. end: no chunk begins when it is near (monotonic seconds)."""
        self.heartbeat, self._path, self._end = heartbeat, path, end
        self.workers: list[Worker] = []
        self.others: list[subprocess.Popen[bytes]] = []
        """What started the other nodes; a signal is passed on to them."""
        self.fingerprint: Fingerprint | None = None
        self.queue: deque[int] = deque()  # indices that no worker has
        self.problems: list[Failed] = []
        self.fatal = ""  # why no worker could do it
        self.stopping = False
        """Set by a signal, and when no time is left: workers publish what they have, and end."""
        self._left = 0  # residues in the queue
        self._beaten = 0.0

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
        late = False
        with progress("embed", self._left, "residues") as meter:
            while True:
                for worker in self.workers:
                    if worker.alive and worker.ready and not worker.busy and not self.stopping:
                        self._give(worker)
                waiting = bool(self.queue) and time.monotonic() < self._end
                if not any(w.alive and (w.busy or (waiting and not w.ready)) for w in self.workers):
                    break
                self._poll()
                meter.advance(self._progress() - meter.done)
                if time.monotonic() > self._end and not self.stopping:
                    late = self.stopping = True
        self._close()
        if self.queue and not self.fatal and (late or not self.stopping):
            late = late or any(worker.alive for worker in self.workers)
            reason = "no time left (ask for a longer runtime)" if late else "no working worker left"
            reason = f"{reason} for {len(self.queue):,} sequences"
            self.problems.append(Failed(reason, node=not late))
        elif self.stopping and not self.fatal:
            self.problems.append(Failed("stopped by a signal"))

    def pass_on(self) -> None:
        """Have what runs for this node, and the other nodes, publish what they have, and end."""
        for process in (*(one.process for one in self.workers if one.alive), *self.others):
            process.terminate()

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
        words = "\n  ".join([f"{problem}:", *(failed.reason for failed in self.problems)])
        only_node = bool(self.problems) and all(failed.node for failed in self.problems)
        return NodeError(words) if only_node else PassingError(words)

    def end(self, outcome: Literal["complete", "failed"], reason: str = "") -> None:
        """End the workers, and write the last heartbeat."""
        self._close()
        self.heartbeat.outcome, self.heartbeat.reason = outcome, reason
        self.heartbeat.ended = moment()
        self._beat()

    def _close(self) -> None:
        """End the workers, which are idle or of no use."""
        for worker in self.workers:
            worker.pipe.close()
            if not worker.ready:
                worker.process.terminate()
        for worker in self.workers:
            worker.process.join(SECONDS_TO_END)
            worker.beat.state = "ended"

    def _give(self, worker: Worker) -> None:
        """Hand a worker a chunk; when nothing is left, or no time, have it publish what it has.

        After a failure it publishes after each chunk: one sequence that ends workers shall not cost
        them what they did before.
        """
        size, chunk = self._size(worker), []
        while self.queue and worker.residues < size:
            chunk.append(self.queue.popleft())
            worker.residues += int(self._sequences.lengths[chunk[-1]])
        self._left -= worker.residues
        worker.given += chunk
        if worker.given:
            texts = [self._sequences.texts[i] for i in chunk]
            publish = not chunk or worker.failures > 0
            worker.busy, worker.since = True, time.monotonic()
            with suppress(OSError):  # it has ended, as its pipe will tell
                worker.pipe.send(Chunk(self._sequences.keys[chunk], texts, publish))

    def _size(self, worker: Worker) -> float:
        """Return the residues of the next chunk; 0 when there is no time for it.

        A chunk takes as long as may pass between two parts; less towards the end, so that all
        workers end together; and so little that it fits into the time that is left. Each failure
        quarters it, so that a sequence that ends workers is soon alone.
        """
        seconds = self._end - time.monotonic()
        rate = worker.rate or min((one.rate for one in self.workers if one.rate), default=0.0)
        alive = sum(one.alive for one in self.workers)
        size = self._left / (2 * alive) if alive > 1 else float(self._left)
        if rate:
            least = min(rate * SECONDS_PER_CHUNK, self._left)
            size = min(max(size, least), max(rate * self._flush, least))
            possible = rate * seconds / TIME_MARGIN
            size = min(size, possible) if possible >= least else 0.0
        else:
            size = min(size, FIRST_CHUNK) if seconds > 0 else 0.0
        return max(1.0, size / 4**worker.failures) if size else 0.0

    def _poll(self) -> None:
        """Take the messages of the workers, waiting for one at most a second; pass a signal on."""
        by_pipe: dict[Any, Worker] = {one.pipe: one for one in self.workers if one.alive}
        for pipe in connection.wait(list(by_pipe), 1.0):
            try:
                self._take(by_pipe[pipe], by_pipe[pipe].pipe.recv())
            except (EOFError, OSError):
                self._replace(by_pipe[pipe])
        for worker in by_pipe.values():
            if not worker.ready and time.monotonic() - worker.since > SECONDS_TO_START:
                words = f"its device gave no sign of life within {SECONDS_TO_START:.0f} s"
                worker.failure = Failed(words, node=True)
                worker.process.kill()
        if self.stopping:
            self.pass_on()
        if time.monotonic() - self._beaten > SECONDS_BETWEEN_BEATS:
            self._beat()

    def _take(self, worker: Worker, message: Report | Failed) -> None:
        """Note what a worker says."""
        if isinstance(message, Failed):
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
            if not worker.residues or worker.failures:  # all is published
                worker.given, worker.failures = [], 0
            worker.residues, worker.share, worker.busy = 0, 0.0, False
        worker.ready = True
        self.fingerprint = self.fingerprint or message.fingerprint
        if message.fingerprint != self.fingerprint:
            self._give_up("the workers' devices differ: their vectors would, too")

    def _give_up(self, problem: str) -> None:
        """End the job, for no worker could go on."""
        self.fatal, self.stopping = self.fatal or problem, True

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
            self._left += int(lengths[rest].sum())
            log.info("%s: %d of %d sequences come back", worker.name, len(rest), len(given))
        worker.given, worker.residues, worker.share = [], 0, 0.0
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

    def _progress(self) -> float:
        """Return the residues that are done."""
        going = sum(worker.residues * (1 - worker.share) for worker in self.workers)
        return (self.heartbeat.residues_total or 0) - self._left - going

    def _beat(self) -> None:
        self._beaten = time.monotonic()
        beat, rate = self.heartbeat, sum(worker.rate for worker in self.workers if worker.alive)
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
