"""One node of a job: its workers, a process for each GPU, and what is left for them to do.

The parent hands chunks of a bucket to its workers as they ask, so that a slow or broken GPU does
not hold up the others. It never touches CUDA. A worker that fails ends its process, and with it
whatever state the device was left in.
"""

import ctypes
import logging
import math
import multiprocessing
import os
import signal
import subprocess
import sys
import time
import traceback
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from multiprocessing import connection
from pathlib import Path
from typing import Any, Literal, NamedTuple

from plm_embed import errors, startup
from plm_embed.accuracy import SelfTest
from plm_embed.errors import ConfigError, NodeError, PassingError, PlmEmbedError
from plm_embed.fingerprint import Fingerprint
from plm_embed.inference.settings import Settings
from plm_embed.io.paths import unusable_path
from plm_embed.io.progress import progress
from plm_embed.io.terminal import log_to_stderr, printable
from plm_embed.jobs.bucket import Sequences, missing
from plm_embed.jobs.completion_record import WorkerInfo, WorkerState
from plm_embed.jobs.gpus import visible_gpus
from plm_embed.jobs.heartbeat import SECONDS_BETWEEN_BEATS, Heartbeat, moment, write_heartbeat
from plm_embed.keys import Keys
from plm_embed.store.parts import PartInfo
from plm_embed.store.store import Store

log = logging.getLogger(__name__)
CONTEXT: Any = multiprocessing.get_context("spawn")
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
ORPHANED = signal.SIGUSR2
"""The signal that a worker gets when its parent process ends. Not SIGTERM: threads of the parent
may keep its end of the pipe open a little longer, so that the pipe does not tell the two apart.
"""
SECONDS_TO_END = 10.0
"""The kernel may never let go of a process that waits for a broken device."""
NO_TIME = "no time left (ask for a longer runtime)"
DIFFERENT = (
    "different devices, so their vectors would differ\n"
    "request GPUs of one type, or set compute_dtype: float32"
)


Chunk = tuple[Keys, list[str], bool]
"""Keys and sequences to embed; True: have them, and all before, in the store before the answer."""


class Message(NamedTuple):
    """A sign of life of a worker, or its answer to a chunk.

    parts and skipped (reasons by key): since the last message; share: of the chunk's tokens that
    are computed, 0 to 1; seconds: that the chunk took, None until it is done.
    """

    fingerprint: Fingerprint
    info: WorkerInfo
    parts: list[PartInfo]
    skipped: dict[str, str]
    self_test: SelfTest | None
    share: float
    seconds: float | None


class WorkerProcess:
    """A worker as its parent knows it: its present process, and what that does.

    state: "idle" asks for a chunk; "ending" was told to publish what it has.
    """

    def __init__(self, name: str, gpu: str | None, *arguments: Any) -> None:
        self.name, self.info, self._arguments = name, WorkerInfo(gpu=gpu), (gpu, *arguments)
        self.state: WorkerState = "ended"
        self.failures = 0  # in a row
        self.rate = 0.0  # residues per second of the last chunk

    def start(self) -> None:
        """Start a process, the first one or in place of one that ended."""
        # a file beside the user's input must not stand in for a module of a library
        os.environ["PYTHONSAFEPATH"] = "1"
        self.pipe, theirs = CONTEXT.Pipe()
        arguments = (theirs, *self._arguments, self.info)
        self.process = CONTEXT.Process(target=serve, args=arguments, daemon=True)
        self.process.start()
        theirs.close()
        self.state, self.since = "starting", time.monotonic()
        self.residues, self.share = 0, 0.0  # of its chunk; how much of that is computed
        self.failure: PlmEmbedError | None = None


def serve(  # noqa: PLR0917
    pipe: connection.Connection, gpu: str | None, weights: Path, store: Path, settings: Settings,
    info: WorkerInfo,
) -> None:  # fmt: skip
    """Run the process of a worker. To the parent go a `Message` when the device works, now and
    then, and for each chunk; and the error that ends it.

    After a SIGTERM what is finished is published, and the process ends.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent too
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if sys.platform == "linux":  # elsewhere the closed pipe must do
        set_parent_death_signal = 1  # PR_SET_PDEATHSIG of prctl(2)
        ctypes.CDLL(None).prctl(set_parent_death_signal, ORPHANED)
    startup.spare_collector()
    log_to_stderr()
    if gpu is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpu
    if "CUDA_VISIBLE_DEVICES" in os.environ:
        # its numbers are those of schedulers and nvidia-smi; CUDA's own begin with the fastest GPU
        os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    worker = failure = None
    orphaned = False
    try:
        from plm_embed.jobs.worker import Worker  # torch: not in the parent

        with Worker(weights, store, settings, info) as worker:
            worker.serve(pipe)
    except BaseException as error:
        orphaned = isinstance(error, (EOFError, BrokenPipeError))
        failure = _failure(error, f"{store} or the scratch folder")
    try:
        for message in (worker and worker.message(), failure):
            if message and not orphaned:
                pipe.send(message)
    except OSError:
        orphaned = True
    if failure and orphaned:  # nobody else says so in the log of the job, which may be tried again
        words = f"plm-embed: unfinished: the job was killed: {failure}"
        print(printable(words), file=sys.stderr, flush=True)
    startup.end_at_once(1 if failure else 0)


def _failure(error: BaseException, written: str) -> PlmEmbedError:
    """Return what ended a worker in words: as a NodeError where the node is to blame, as a
    PassingError where another worker may do better, as a ConfigError where settings or the
    installation are wrong. written: the folders that it writes to.
    """
    if isinstance(error, (EOFError, BrokenPipeError)):
        return PassingError("its parent process has ended")
    if isinstance(error, PlmEmbedError):
        kinds = (NodeError, PassingError, ConfigError, PlmEmbedError)
        return next(kind(str(error)) for kind in kinds if isinstance(error, kind))
    full = errors.no_space(error, written)
    if reason := full or unusable_path(error) or errors.missing_extra(error):
        return PlmEmbedError(reason)
    traceback.print_exc()
    lost = errors.device_lost(error) or errors.out_of_memory(error)
    return (NodeError if lost else PassingError)(f"{type(error).__name__}: {error}")


class Node:
    """Hands chunks of a bucket to the workers of this node as they ask.

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
        self._retired: list[PlmEmbedError] = []
        self._late = self._passed_on = False
        self._queue: deque[int] = deque()  # indices that no worker has had, longest first
        self._queued = self._residues = 0  # residues in the queue: now, and when it was filled
        self._round = 0  # how often it was filled before
        self._beaten = 0.0

    @property
    def _alive(self) -> list[WorkerProcess]:
        return [worker for worker in self.workers if worker.state != "ended"]

    def start(self, count: int, weights: Path, store: Path, settings: Settings) -> None:
        """Start the workers: one per GPU, or `count` on the CPU."""
        settings = replace(settings, threads=max(1, settings.threads // count))
        for number, gpu in enumerate(assign(count, settings)):
            name = f"worker {self.heartbeat.node}.{number}"
            self.workers.append(WorkerProcess(name, gpu, weights, store, settings))
        self._start_workers()

    def _start_workers(self) -> None:
        """Start the workers that are not alive, unless they are retired or of no more use."""
        if self.stopped or self._late or (self.fingerprint and not self._queue):
            return
        for worker in self.workers:
            if worker.state == "ended" and worker.failures < FAILURES_IN_A_ROW:
                worker.start()

    def wait_until_ready(self) -> Fingerprint:
        """Wait for the first worker; return the fingerprint of what this device computes. Raises
        PlmEmbedError when none gets ready.
        """
        while not self.fingerprint and self._alive:
            self._poll()
            self._start_workers()
        if not self.fingerprint:
            raise self.error("no worker started")
        return self.fingerprint

    def run(self, sequences: Sequences, store: Store) -> int:
        """Embed what the store lacks of the sequences, as far as possible; return how many are
        left.
        """
        self._sequences, self._store = sequences, store
        todo = missing(sequences, store)
        total = self.heartbeat.residues_total = int(sequences.lengths[todo].sum())
        with progress("embed", total, "residues") as meter:
            while len(todo):
                self._queue = deque(todo.tolist())
                self._queued = self._residues = int(sequences.lengths[todo].sum())
                while self._hand_out():
                    self._poll()
                    meter.advance(self._done() - meter.done)
                    if time.monotonic() > self._end:
                        self.stop(PassingError(NO_TIME))
                todo = missing(sequences, store, self.heartbeat.skipped)
                if self._queue or self.stopped:
                    break
                self._round += 1
        self._beat()
        return len(todo)

    def stop(self, why: PlmEmbedError) -> None:
        """Have the workers publish what they have, and end, as soon as `_poll` sees it."""
        self.stopped = self.stopped or why

    def error(self, problem: str) -> PlmEmbedError:
        """Return the error to raise for what the node could not do."""
        if self.stopped and not isinstance(self.stopped, PassingError):
            return self.stopped
        stopped = self.stopped or (PassingError(NO_TIME) if self._late else None)
        reasons = [*self._retired, *filter(None, [stopped])]
        words = "\n  ".join([f"{problem}:", *map(str, reasons)])
        only_node = all(isinstance(reason, NodeError) for reason in reasons)
        return NodeError(words) if reasons and only_node else PassingError(words)

    def end(self, outcome: Literal["complete", "failed"], reason: str = "") -> None:
        """End the workers that are left, and write the last heartbeat."""
        for worker in self._alive:
            worker.process.terminate()
        for worker in self.workers:
            worker.process.join(SECONDS_TO_END)
            worker.state = "ended"
        self.heartbeat.outcome, self.heartbeat.reason = outcome, reason
        self.heartbeat.ended = moment()
        self._beat()

    def pass_on(self) -> None:
        """Have the workers and the other nodes publish what they have, and end."""
        if not self._passed_on:  # to mpiexec a second signal may mean to kill
            for process in (*(worker.process for worker in self._alive), *self.remote):
                process.terminate()
        self._passed_on = True

    def _hand_out(self) -> bool:
        """Give each worker that has no chunk one, or its leave; return whether one is alive."""
        self._start_workers()
        for worker in self._alive:
            if worker.state == "starting" and (self.stopped or not self._queue):
                worker.process.terminate()  # nobody waits for it: it may hang
                worker.state = "ended"
            if worker.state != "idle":
                continue
            chunk: Chunk | None = None
            if indices := self._next_chunk(worker):
                # when something was lost, what is done is stored before more is tried: a sequence
                # that ends workers shall not cost them the others again
                texts = [self._sequences.texts[i] for i in indices]
                chunk = (self._sequences.keys[indices], texts, self._round > 0)
            worker.state = "computing" if chunk else "ending"
            with suppress(OSError):  # it has ended, as its pipe will tell
                worker.pipe.send(chunk)
        return bool(self._alive)

    def _next_chunk(self, worker: WorkerProcess) -> list[int]:
        """Take sequences from the queue; none when there is no time for them.

        Chunks shrink towards the end, so that all workers end together, and fit into the time that
        is left. When something was lost a chunk is at most a quarter, so that a sequence that ends
        workers is soon alone.
        """
        if not self._queue or self.stopped:
            return []
        alive = len(self._alive)
        rate = worker.rate or min(filter(None, (w.rate for w in self.workers)), default=0.0)
        least = min(rate * SECONDS_PER_CHUNK, self._queued)
        most = max(1.0, self._residues / 4) if self._round else math.inf
        seconds = self._end - time.monotonic()
        fits = rate * seconds / TIME_MARGIN if rate else math.inf
        if seconds <= 0 or fits < least:
            self._late = True
            return []
        size = min(max(least, self._queued / (2 * alive if alive > 1 else 1)), most, fits)
        chunk: list[int] = []
        while self._queue and worker.residues < size:
            chunk.append(self._queue.popleft())
            worker.residues += int(self._sequences.lengths[chunk[-1]])
        self._queued -= worker.residues
        return chunk

    def _poll(self) -> None:
        """Take the messages of the workers, waiting for one at most a second; pass a signal on."""
        by_pipe: dict[Any, WorkerProcess] = {worker.pipe: worker for worker in self._alive}
        for pipe in connection.wait(list(by_pipe), 1.0):
            try:
                message = by_pipe[pipe].pipe.recv()
            except (EOFError, OSError):
                self._bury(by_pipe[pipe])
            else:
                self._take(by_pipe[pipe], message)
        for worker in by_pipe.values():
            if worker.state == "starting" and time.monotonic() - worker.since > SECONDS_TO_START:
                words = f"its device did not answer within {SECONDS_TO_START:.0f} s"
                worker.failure = NodeError(words)
                worker.process.kill()
        if self.stopped:
            self.pass_on()
        if time.monotonic() - self._beaten > SECONDS_BETWEEN_BEATS:
            self._beat()

    def _take(self, worker: WorkerProcess, message: Message | PlmEmbedError) -> None:
        """Take note of a message."""
        if isinstance(message, PlmEmbedError):
            worker.failure = message
            return
        worker.info, worker.share = message.info, message.share
        self.heartbeat.skipped |= message.skipped
        self.heartbeat.self_test = self.heartbeat.self_test or message.self_test
        for part in message.parts:
            self._store.know(part)
        if worker.state == "starting":
            worker.state = "idle"
        if message.seconds is not None:
            worker.rate = worker.residues / max(message.seconds, 1e-3)
            worker.state, worker.residues, worker.share, worker.failures = "idle", 0, 0.0, 0
        self.fingerprint = self.fingerprint or message.fingerprint
        if message.fingerprint != self.fingerprint:
            self.stop(PlmEmbedError(f"the workers have {DIFFERENT}"))

    def _bury(self, worker: WorkerProcess) -> None:
        """Take note of a process that ended."""
        worker.process.join(SECONDS_TO_END)
        worker.pipe.close()
        code = worker.process.exitcode
        ended_well = worker.state == "ending" and code == 0
        worker.state = "ended"
        if self.stopped or ended_well:
            return
        if worker.failure:
            failure = worker.failure
        elif code is not None and code < 0:
            memory = "; out of memory?" if -code == signal.SIGKILL else ""
            failure = PassingError(f"a worker was killed (signal {-code}{memory})")
        else:
            failure = PassingError(f"a worker ended with {code}")
        if not isinstance(failure, PassingError):  # no worker could go on
            self.stop(failure)
            return
        worker.failures += 1
        log.warning("%s: %s (failure %d in a row)", worker.name, failure, worker.failures)
        if worker.failures == FAILURES_IN_A_ROW:
            self._retired.append(type(failure)(f"{worker.name} is retired: {failure}"))

    def _done(self) -> float:
        """Return the residues that are done."""
        going = sum(worker.residues * (1 - worker.share) for worker in self._alive)
        return (self.heartbeat.residues_total or 0) - self._queued - going

    def _beat(self) -> None:
        self._beaten = time.monotonic()
        beat, rate = self.heartbeat, sum(worker.rate for worker in self._alive)
        beat.residues = int(self._done())
        beat.eta_seconds = ((beat.residues_total or 0) - beat.residues) / rate if rate else None
        for worker in self.workers:
            worker.info.state = worker.state
        beat.workers = tuple(worker.info for worker in self.workers)
        write_heartbeat(self._path, beat)


def assign(count: int, settings: Settings) -> Sequence[str | None]:
    """Return CUDA_VISIBLE_DEVICES for each of so many workers; None leaves it as it is."""
    if count == 1 or settings.device == "cpu":
        return [None] * count
    gpus = visible_gpus()
    if len(gpus) < count and (not gpus or "CUDA_VISIBLE_DEVICES" in os.environ):
        raise PlmEmbedError(
            f"{count} workers for {len(gpus)} visible GPUs ({', '.join(gpus) or 'none'})\n"
            "request as many GPUs as the rule's resource `gpu` says"
        )
    if len(gpus) < count:
        log.warning("this node shows only %d of %d GPUs: going on with those", len(gpus), count)
    return gpus[:count]
