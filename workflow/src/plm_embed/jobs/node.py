"""One node of a job: its workers, a process for each GPU, and what is left for them to do.

Each worker gets chunks of the bucket as it asks, so that a slow or broken GPU does not hold up the
others.
"""

import asyncio
import logging
import math
import signal
import subprocess
import time
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from plm_embed.errors import NodeError, PassingError, PlmEmbedError
from plm_embed.fingerprint import Fingerprint
from plm_embed.inference.settings import Settings
from plm_embed.io.terminal import progress
from plm_embed.jobs.gpus import assign
from plm_embed.jobs.heartbeat import SECONDS_BETWEEN_BEATS, Heartbeat, moment, write_heartbeat
from plm_embed.jobs.process import Chunk, Message, WorkerProcess
from plm_embed.keys import Keys, key_array
from plm_embed.models.family import Family
from plm_embed.sequence_windows import too_long
from plm_embed.sequences.summary import bucket_table
from plm_embed.store.store import Store

log = logging.getLogger(__name__)
FAILURES_IN_A_ROW = 3
"""After which a worker is retired."""
SECONDS_PER_CHUNK = 5.0
"""Shortest chunk, but for the last one."""
TIME_MARGIN = 1.3
SECONDS_MARGIN = 120.0
"""No new chunk when less is left of the walltime than 1.3 x its estimate + 2 minutes."""
SECONDS_TO_START = 900.0
"""A worker that has not checked its device by then hangs; libraries on a busy network filesystem
load in minutes.
"""
SECONDS_TO_END = 10.0
"""The kernel may never let go of a process that waits for a broken device."""
SECONDS_BETWEEN_LOOKS = 0.05
NO_TIME = "no time left (ask for a longer runtime)"
DIFFERENT = (
    "different devices, so their vectors would differ\n"
    "request GPUs of one type, or set compute_dtype: float32"
)


class Sequences(NamedTuple):
    """Sequences of a bucket, sorted by key. keys: S64 (n,); lengths: int32 (n,), in residues."""

    keys: Keys
    texts: list[str]
    lengths: NDArray[np.int32]

    def take(self, places: NDArray[np.int64]) -> "Sequences":
        """Return some of the sequences, by index in any order."""
        places = np.sort(places)
        texts = [self.texts[i] for i in places]
        return Sequences(self.keys[places], texts, self.lengths[places])


def read_sequences(path: Path) -> Sequences:
    """Read a bucket file. StoreError where a key is not the SHA-256 of its sequence."""
    table = bucket_table(path, ["key", "sequence", "length"])
    lengths = table["length"].to_numpy()
    return Sequences(key_array(table["key"]), table["sequence"].to_pylist(), lengths)


def missing(sequences: Sequences, store: Store, skipped: Collection[str] = ()) -> NDArray[np.int64]:
    """Return the indices of the sequences that should have a vector and have none in the store,
    longest first.

    skipped: keys for which the device had no memory, or the model no positions.
    """
    absent = store.missing(sequences.keys)
    absent &= ~too_long(sequences.lengths, store.fingerprint.long_sequences)
    absent &= ~np.isin(sequences.keys, np.array([*skipped], dtype="S64"))
    todo = np.flatnonzero(absent)
    return todo[np.argsort(-sequences.lengths[todo], kind="stable")]


class Node:
    """Hands chunks of a bucket to the workers of this node, each of which has a coroutine here.

    A worker that fails is started again; one that fails three times in a row is retired, and the
    others go on. What it has not published is missing in the store, and is handed out once more
    when all others are done.
    """

    def __init__(self, heartbeat: Heartbeat, path: Path, end: float) -> None:
        """path: of the heartbeat. end: no chunk begins when it is near (monotonic seconds)."""
        self.heartbeat, self._path, self._end = heartbeat, path, end
        self.workers: list[WorkerProcess] = []
        self.remote: list[subprocess.Popen[bytes]] = []
        """Processes that started the other nodes; a signal is passed on to them."""
        self.fingerprint: Fingerprint | None = None
        self.stopped: PlmEmbedError | None = None
        """Why the workers publish what they have, and end: a signal, no time, or a fatal error."""
        self._passed_on = False
        self._retired: list[PlmEmbedError] = []
        self._tasks: list[asyncio.Task[None]] = []  # by worker
        self._listed = asyncio.Event()
        self._queue: deque[int] = deque()  # indices that no worker has had, longest first
        self._queued = 0  # tokens of these
        self._round = 0  # how often the queue was filled
        self._beaten = 0.0

    async def start(self, count: int, weights: Path, store: Path, settings: Settings) -> None:
        """Start the workers: one per GPU, or `count` on the CPU."""
        settings = replace(settings, threads=max(1, settings.threads // count))
        for number, gpu in enumerate(assign(count, settings)):
            name = f"worker {self.heartbeat.node}.{number}"
            self.workers.append(WorkerProcess(name, gpu, weights, store, settings))
        self._start_workers()
        await asyncio.sleep(0)  # now, and not only when the caller waits for something

    def _start_workers(self) -> None:
        self._tasks = [asyncio.create_task(self._keep_busy(worker)) for worker in self.workers]

    async def wait_until_ready(self) -> Fingerprint:
        """Wait for the first worker; return the fingerprint of what this device computes. Raises
        PlmEmbedError when none gets ready.
        """
        await self.wait(lambda: self.fingerprint is not None or self._idle())
        if not self.fingerprint:
            raise self.error("no worker started")
        return self.fingerprint

    async def run(self, sequences: Sequences, store: Store, family: Family, stored: int = 0) -> int:
        """Embed what the store lacks of the sequences, as far as possible; return how many are
        left. stored: tokens of the bucket that are in the store.
        """
        self._sequences, self._store = sequences, store
        self._tokens = tokens = family.token_counts(sequences.lengths, store.fingerprint)
        todo = missing(sequences, store)
        self._queued = int(tokens[todo].sum())
        self.heartbeat.tokens_total = stored + self._queued
        with progress("embed", self._queued, "tokens") as meter:

            def ended() -> bool:
                meter.advance(self._done() - stored - meter.done)
                return self._idle()

            while len(todo) and not (self._queue or self.stopped):
                self._queue = deque(todo.tolist())
                self._round += 1
                self._listed.set()
                if self._round > 1:
                    self._start_workers()
                await self.wait(ended)
                todo = missing(sequences, store, self.heartbeat.skipped)
                self._queued = int(tokens[todo].sum())
        self._beat()
        return len(todo)

    async def wait(self, ended: Callable[[], bool]) -> None:
        """Wait; write heartbeats meanwhile, and pass on a signal or the end of the time."""
        while not ended():
            if self._round and time.monotonic() > self._end:
                self.stop(PassingError(NO_TIME))
            if self.stopped and not self._passed_on:  # to mpiexec a second one may mean to kill
                self._passed_on = True
                living = [worker.process for worker in self.workers if worker.state != "ended"]
                for process in (*living, *self.remote):
                    process.terminate()
            if self.stopped or (self._round and not self._queue):
                for worker, task in zip(self.workers, self._tasks, strict=True):
                    if worker.state == "starting":
                        task.cancel()  # nobody waits for it: it may hang
            if time.monotonic() - self._beaten > SECONDS_BETWEEN_BEATS:
                self._beat()
            await asyncio.sleep(SECONDS_BETWEEN_LOOKS)

    def stop(self, why: PlmEmbedError) -> None:
        """Have the workers and the other nodes publish what they have, and end, as soon as `wait`
        sees it.
        """
        self.stopped = self.stopped or why

    def error(self, problem: str) -> PlmEmbedError:
        """Return the error to raise for what the node could not do."""
        if self.stopped and not isinstance(self.stopped, PassingError):
            return self.stopped
        reasons = [*self._retired, *filter(None, [self.stopped])]
        words = "\n  ".join([f"{problem}:", *map(str, reasons)])
        only_node = all(isinstance(reason, NodeError) for reason in reasons)
        return NodeError(words) if reasons and only_node else PassingError(words)

    def end(self, outcome: Literal["complete", "failed"], reason: str = "") -> None:
        """Wait for the workers, which all have been told to end, and write the last heartbeat."""
        for worker in self.workers:
            if worker.process:
                worker.process.join(SECONDS_TO_END)
            worker.state = "ended"
        self.heartbeat.outcome, self.heartbeat.reason = outcome, reason
        self.heartbeat.ended = moment()
        self._beat()

    def _idle(self) -> bool:
        """Tell whether no worker is alive. Raises what a bug raised."""
        ended = [task for task in self._tasks if task.done()]
        for task in ended:
            if not task.cancelled():
                task.result()
        return len(ended) == len(self._tasks)

    async def _keep_busy(self, worker: WorkerProcess) -> None:
        """Run a worker until nothing is left for it to do, in one process after another."""
        while not self.stopped and (self._queue or not self._round):
            if worker.failures == FAILURES_IN_A_ROW:
                return
            failure = await self._run_process(worker)
            if self.stopped or not failure:
                continue
            if not isinstance(failure, PassingError):  # no worker could go on
                self.stop(failure)
                continue
            worker.failures += 1
            log.warning("%s: %s (failure %d in a row)", worker.name, failure, worker.failures)
            if worker.failures == FAILURES_IN_A_ROW:
                self._retired.append(type(failure)(f"{worker.name} is retired: {failure}"))

    async def _run_process(self, worker: WorkerProcess) -> PlmEmbedError | None:
        """Run a process of a worker to its end; return its failure, if any."""
        worker.start()
        failure = None
        try:
            message = await asyncio.wait_for(worker.receive(), SECONDS_TO_START)
            while isinstance(message, Message):
                self._take(worker, message)
                if message.idle:
                    await self._listed.wait()
                    worker.pipe.send(self._next_chunk(worker))
                message = await worker.receive()
            failure = message
        except TimeoutError:
            words = f"its device did not answer within {SECONDS_TO_START:.0f} s"
            failure = NodeError(words)
            worker.process.kill()
        except (EOFError, OSError):
            pass
        except asyncio.CancelledError:
            worker.process.terminate()
            worker.state = "ended"
            raise
        worker.process.join(SECONDS_TO_END)
        worker.pipe.close()
        code, ending, worker.state = worker.process.exitcode, worker.state == "ending", "ended"
        if failure or (ending and code == 0):
            return failure
        if code is not None and code < 0:
            memory = "; out of memory?" if -code == signal.SIGKILL else ""
            return PassingError(f"a worker was killed (signal {-code}{memory})")
        return PassingError(f"a worker ended with {code}")

    def _take(self, worker: WorkerProcess, message: Message) -> None:
        """Take note of a message."""
        worker.info, worker.share = message.info, message.share
        if message.idle and worker.state == "computing":
            worker.tokens, worker.failures = 0, 0
        self.heartbeat.skipped |= message.skipped
        self.heartbeat.self_test = self.heartbeat.self_test or message.self_test
        for part in message.parts:
            self._store.know(part)
        self.fingerprint = self.fingerprint or message.fingerprint
        if message.fingerprint != self.fingerprint:
            self.stop(PlmEmbedError(f"the workers have {DIFFERENT}"))

    def _next_chunk(self, worker: WorkerProcess) -> Chunk | None:
        """Take sequences from the queue; None when there are none, or no time for them.

        Chunks shrink towards the end, so that all workers end together, and fit into the time that
        is left. When something was lost a chunk is a quarter at most, so that a sequence that ends
        workers is soon alone; and what is done is stored before more is tried, so that it does not
        cost them the others again.
        """
        rate = worker.rate or min(filter(None, (w.rate for w in self.workers)), default=0.0)
        least = min(rate * SECONDS_PER_CHUNK, self._queued)
        seconds = self._end - time.monotonic()
        fits = rate * seconds / TIME_MARGIN if rate else math.inf
        if self._queue and fits < least:
            self.stop(PassingError(NO_TIME))
        worker.state = "ending"
        if not self._queue or self.stopped:
            return None
        alive = sum(worker.state != "ended" for worker in self.workers)
        size = min(max(least, self._queued / (2 * alive if alive > 1 else 1)), fits)
        if again := self._round > 1:
            size = min(size, self._queued / 4)
        indices: list[int] = []
        while self._queue and worker.tokens < size:
            indices.append(self._queue.popleft())
            worker.tokens += int(self._tokens[indices[-1]])
        self._queued -= worker.tokens
        worker.state = "computing"
        texts = [self._sequences.texts[i] for i in indices]
        return self._sequences.keys[indices], texts, again

    def _done(self) -> float:
        """Return the tokens that are done."""
        alive = [worker for worker in self.workers if worker.state != "ended"]
        going = sum(worker.tokens * (1 - worker.share) for worker in alive)
        return (self.heartbeat.tokens_total or 0) - self._queued - going

    def _beat(self) -> None:
        """Write the heartbeat."""
        self._beaten = time.monotonic()
        beat = self.heartbeat
        rate = sum(worker.rate for worker in self.workers if worker.state != "ended")
        beat.tokens = int(self._done())
        beat.eta_seconds = ((beat.tokens_total or 0) - beat.tokens) / rate if rate else None
        for worker in self.workers:
            worker.info.state = worker.state
        beat.workers = tuple(worker.info for worker in self.workers)
        write_heartbeat(self._path, beat)
