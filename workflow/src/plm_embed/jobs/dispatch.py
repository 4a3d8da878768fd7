"""Handing out the buckets of a submission to the workers of one node.

Largest first. Parents on other nodes may work on the same list: claims keep them off each other's
buckets. A failed bucket or a broken GPU does not stop the others.
"""

import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from plm_embed.errors import PlmEmbedError, no_space
from plm_embed.inference.settings import Settings
from plm_embed.io.paths import unusable_path
from plm_embed.jobs.claims import Claim
from plm_embed.jobs.gpus import visible_gpus
from plm_embed.jobs.worker import Worker, WorkerError

log = logging.getLogger(__name__)
FAILURES_PER_BUCKET = 2
FAILURES_IN_A_ROW = 3
"""A GPU whose worker failed this often in a row is retired."""
TIME_MARGIN = 1.3
SECONDS_MARGIN = 120.0
"""No new bucket when less is left of the walltime than 1.3 x its estimate + 2 minutes."""
SECONDS_BETWEEN_SIGNALS = 0.2
"""Within which the handler of a signal runs."""
SECONDS_BETWEEN_LOOKS = 1.0
"""At the folders of records and claims, while there is nothing to take."""
SECONDS_BETWEEN_ATTEMPTS = 60.0
"""To take a bucket that another holds: whether its claim is stale costs a network filesystem
several requests.
"""


@dataclass(frozen=True)
class Plan:
    """What a submission is asked to do. `records` is the folder for completion records and
    claims.
    """

    buckets: tuple[Path, ...]
    weights: Path
    store: Path
    records: Path
    workers: int
    minutes: float
    """Walltime from now on; 0: no limit."""


class Dispatch:
    """The state that the threads, one per worker, share."""

    def __init__(self, plan: Plan, settings: Settings) -> None:
        self.plan = plan
        self.settings = replace(
            settings, threads=max(1, settings.threads // plan.workers), bar=plan.workers == 1
        )
        self.problems: list[str] = []
        self.passing = False  # whether another attempt may solve a problem
        self._unusable = ""  # what is wrong with the folder of records and claims, or a disk
        self._gpus = self._assign()
        self._sizes = {bucket: bucket.stat().st_size for bucket in plan.buckets}
        self._pending = sorted(plan.buckets, key=lambda bucket: (-self._sizes[bucket], bucket))
        self.began = datetime.now(UTC)
        self._recorded = self._records()
        # when to try for a claimed bucket: at once if it was claimed before the start, by an owner
        # that may be dead
        self._attempt_at = dict.fromkeys(self._claimed(), 0.0)
        self._failures: Counter[Path] = Counter()
        self._broken: list[str] = []  # what retired devices said
        self._users_turn = False  # whether no device will work before a user has mended something
        self._bytes = self._seconds = 0.0  # of what was computed here of the bucket files
        self._workers: dict[int, Worker] = {}
        self._changed = threading.Condition()
        self._active = 0
        self._stopping = False
        self._end = time.monotonic() + 60 * plan.minutes if plan.minutes else float("inf")

    def run(self) -> None:
        threads = [
            threading.Thread(target=self._drive, args=(slot,)) for slot in range(len(self._gpus))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            # The kernel may give a signal to any thread, and its handler runs in this one, but not
            # while it waits for a lock. A job that was stopped (SIGSTOP, scontrol suspend) and ends
            # would miss the end that is announced.
            while thread.is_alive():
                thread.join(SECONDS_BETWEEN_SIGNALS)
        if self._unusable:
            self.problems.append(self._unusable)
            return
        if self._stopping:
            self.problems.append(
                "stopped by a signal; run it again: only the rest will be computed"
            )
        left = ", ".join(bucket.stem for bucket in self._pending)
        if left and self._time_is_short(self._pending[-1]):
            self.problems += [
                *self._broken,
                f"no time left for {left}; run it again, or ask for a longer runtime",
            ]
        elif left and not self._stopping:
            self.problems += [*self._broken, f"no working device left for {left}"]
        self.passing = self.passing or (bool(left) and not self._users_turn) or self._stopping

    def stop(self) -> None:
        """Take no new bucket and ask the workers to publish what they have."""
        self._stopping = True
        for worker in list(self._workers.values()):
            worker.terminate()

    def _assign(self) -> Sequence[str | None]:
        if self.plan.workers == 1 or self.settings.device == "cpu":
            return [None] * self.plan.workers
        gpus = visible_gpus()
        if gpus and len(gpus) < self.plan.workers and "CUDA_VISIBLE_DEVICES" not in os.environ:
            log.warning(
                "this node shows %d GPUs, not %d: the others are lost to it",
                len(gpus),
                self.plan.workers,
            )
        elif len(gpus) < self.plan.workers:
            raise PlmEmbedError(
                f"{self.plan.workers} workers for {len(gpus)} visible GPUs "
                f"({', '.join(gpus) or 'none'})\n"
                "request as many GPUs as the rule's resource `gpu` says"
            )
        return gpus[: self.plan.workers]

    def _drive(self, slot: int) -> None:
        """One worker's life: bucket after bucket, started anew after a failure, until nothing is
        left to do.
        """
        in_a_row = 0
        while in_a_row < FAILURES_IN_A_ROW and self._work_may_come():
            taken, began, share, failure = None, time.monotonic(), 0.0, None
            try:
                worker = self._worker(slot)
                taken = self._next()
                if taken is None:
                    break
                began = time.monotonic()
                share = worker.embed(taken[0], self.plan.records / f"{taken[0].stem}.json")
                in_a_row = 0
            except Exception as error:
                # whatever it was (a process that could not be started, for one), the bucket is not
                # done
                failure = WorkerError.of(error)
                self._workers.pop(slot, None)
                if failure.blames == "disk":  # of all workers: none would do any bucket
                    self._unusable = self._unusable or str(failure)
                    self.stop()
                final = failure.blames == "device" or (failure.blames == "user" and not taken)
                in_a_row = FAILURES_IN_A_ROW if final else in_a_row + 1
                log.warning(
                    "worker %d: %s%s", slot, f"bucket {taken[0].stem}: " if taken else "", failure
                )
            if taken:
                taken[1].release()
                self._note(taken[0], time.monotonic() - began, share, failure)
            elif failure and in_a_row >= FAILURES_IN_A_ROW and not self._stopping:
                self._broken.append(str(failure))
                self._users_turn = self._users_turn or failure.blames == "user"
        if slot in self._workers:
            self._workers.pop(slot).close()

    def _worker(self, slot: int) -> Worker:
        """The slot's worker, started if there is none and checked before it claims anything; raises
        WorkerError.
        """
        if slot not in self._workers:
            self._workers[slot] = Worker(
                self.plan.weights, self.plan.store, self.settings, self._gpus[slot]
            )
            if self._stopping:  # the signal came before there was a worker to tell
                self._workers[slot].terminate()
            self._workers[slot].wait_until_ready()
        return self._workers[slot]

    def _work_may_come(self) -> bool:
        """Whether a bucket is left; waits while the workers here may still fail theirs."""
        with self._changed:
            while not self._stopping and not self._pending and self._active:
                self._changed.wait(SECONDS_BETWEEN_LOOKS)
            return not self._stopping and bool(self._pending)

    def _next(self) -> tuple[Path, Claim] | None:
        """The next bucket; None when there is none, or when records and claims cannot be read or
        written any more.
        """
        try:
            return self._next_free()
        except OSError as error:
            where = error.filename2 or error.filename or self.plan.records
            said = no_space(error) or unusable_path(error)
            self.passing = not said
            self._unusable = said or f"{where}: {error.strerror}; mend that and run it again"
            self.stop()
            return None

    def _next_free(self) -> tuple[Path, Claim] | None:
        """The largest bucket that nobody has, claimed. Waits while others, here or elsewhere, may
        still fail theirs.
        """
        with self._changed:
            while not self._stopping and (self._pending or self._active):
                self._drop_what_others_did()
                if self._pending and self._time_is_short(self._pending[-1]):
                    break
                held, now = self._claimed(), time.monotonic()
                for bucket in self._pending:
                    soonest = now + SECONDS_BETWEEN_ATTEMPTS
                    if (
                        bucket.stem in held
                        and self._attempt_at.setdefault(bucket.stem, soonest) > now
                    ):
                        continue
                    if self._time_is_short(bucket):
                        continue
                    claim = Claim.take(self.plan.records / "claims" / bucket.stem)
                    if claim is not None:
                        self._attempt_at.pop(bucket.stem, None)
                        self._pending.remove(bucket)
                        self._active += 1
                        return bucket, claim
                    self._attempt_at[bucket.stem] = soonest
                self._changed.wait(SECONDS_BETWEEN_LOOKS)
        return None

    def _drop_what_others_did(self) -> None:
        """Forget pending buckets whose completion record was written since the start: its writer
        has just checked it.

        Older records are left to a worker, which compares them with the bucket, the settings and
        the store.
        """
        new = {name for name, stamp in self._records().items() if self._recorded.get(name) != stamp}
        self._pending = [
            bucket for bucket in self._pending if bucket.stem not in new or bucket in self._failures
        ]

    def _records(self) -> dict[str, int]:
        """Inode of each completion record by bucket: records are replaced by rename, never written
        in place.
        """
        with suppress(FileNotFoundError), os.scandir(self.plan.records) as entries:
            return {
                entry.name[:-5]: entry.inode() for entry in entries if entry.name.endswith(".json")
            }
        return {}

    def _claimed(self) -> set[str]:
        """Names of the buckets that somebody holds, by one request to the filesystem."""
        with suppress(FileNotFoundError):
            return {path.name for path in (self.plan.records / "claims").iterdir()}
        return set()

    def _note(
        self, bucket: Path, seconds: float, share: float, failure: WorkerError | None
    ) -> None:
        """Take down how a bucket ended, and the share of it that was computed; one that failed is
        tried again unless it or its user is to blame.
        """
        with self._changed:
            self._active -= 1
            if failure is None and share:
                # of a bucket that an earlier attempt began, the rest
                self._bytes += share * self._sizes[bucket]
                self._seconds += seconds
            elif failure is None:
                pass  # it was complete already, and says nothing about the speed
            elif not self._stopping:
                self._failures[bucket] += {"device": 0, "": 1}.get(
                    failure.blames, FAILURES_PER_BUCKET
                )
                if self._failures[bucket] < FAILURES_PER_BUCKET:
                    self._pending.insert(0, bucket)
                else:
                    self.problems.append(f"bucket {bucket.stem}: {failure}")
                    self.passing = self.passing or failure.blames != "user"
                if failure.blames == "device":
                    self._broken.append(str(failure))
            self._changed.notify_all()

    def _time_is_short(self, bucket: Path) -> bool:
        if not self._bytes:
            return time.monotonic() > self._end
        needed = TIME_MARGIN * self._sizes[bucket] * self._seconds / self._bytes + SECONDS_MARGIN
        return time.monotonic() + needed > self._end
