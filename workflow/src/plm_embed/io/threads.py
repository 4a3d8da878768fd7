"""One thread works while another one reads, writes or compresses, which all release Python's lock;
and the number of cores.
"""

import math
import os
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from itertools import repeat
from pathlib import Path
from typing import Any, TypeVar

import numpy.ma  # noqa: F401  # np.unique loads it at its first call, which fails in two threads

Item = TypeVar("Item")
Result = TypeVar("Result")
_END: Any = object()
CGROUPS = Path("/sys/fs/cgroup")
PROC = Path("/proc/self")


def ahead(items: Iterator[Item], count: int) -> Iterator[Item]:
    """Yield the same items, up to `count` of them made in a thread before they are asked for;
    errors come in their place.
    """
    with closing(spread(lambda _: next(items, _END), repeat(None), 1, count)) as results:
        for item in results:
            if item is _END:
                return
            yield item


def spread(
    call: Callable[[Item], Result], items: Iterable[Item], threads: int, count: int = 0
) -> Generator[Result]:
    """Yield the results of a function for each item, in their order, made in threads, at most
    `count` items ahead (two a thread if 0); errors come in their place.
    """
    pool = ThreadPoolExecutor(threads)
    try:
        waiting: deque[Future[Result]] = deque()
        for item in items:
            waiting.append(pool.submit(call, item))
            if len(waiting) > (count or 2 * threads):
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        # A generator that nobody reads to its end may be collected as garbage at any instant, also
        # while a lock is held that its threads need in order to end: to wait here may take for ever
        pool.shutdown(wait=False, cancel_futures=True)


@contextmanager
def behind(count: int) -> Iterator[Callable[..., Future[Any]]]:
    """Yield a function that has calls made one after the other in a thread, at most `count` behind;
    all are made when the block ends, unless it fails.

    The error of a call is raised by a later one, or at the end.
    """
    pool = ThreadPoolExecutor(1)
    waiting: deque[Future[Any]] = deque()

    def call(function: Callable[..., object], *arguments: object) -> Future[Any]:
        if len(waiting) == count:
            waiting.popleft().result()
        waiting.append(pool.submit(function, *arguments))
        return waiting[-1]

    try:
        yield call
        for result in waiting:
            result.result()
    finally:
        pool.shutdown(cancel_futures=True)


def cores() -> int:
    """Return how many CPU cores this process may use: those it may run on, or fewer, where its
    cgroup or one around it (of a container, or of a scheduler) has less time than they have.
    """
    if not hasattr(os, "sched_getaffinity"):
        return os.cpu_count() or 1
    count = len(os.sched_getaffinity(0))
    with suppress(OSError):
        for line in (PROC / "cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            root, names = CGROUPS, ["cpu.max"]
            if controllers:  # version 1, where a quota of -1 is none
                root, names = CGROUPS / "cpu", ["cpu.cfs_quota_us", "cpu.cfs_period_us"]
                if "cpu" not in controllers.split(","):
                    continue
            inside = Path(path.lstrip("/"))
            for group in (inside, *inside.parents):
                with suppress(OSError, ValueError):  # a ValueError for "max"
                    texts = [(root / group / name).read_text() for name in names]
                    quota, period = map(int, " ".join(texts).split())
                    count = min(count, math.ceil(quota / period) if quota > 0 else count)
    return count
