"""Ways to let one thread work while another one reads, writes or compresses, which all release
Python's lock; and how many threads multiply NumPy's matrices.
"""

import ctypes
import importlib
import math
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")
_END: Any = object()
_OPENBLAS = (
    "scipy_openblas_{}64_",  # NumPy's wheels
    "scipy_openblas_{}",
    "openblas_{}64_",  # those of NumPy 1.26
    "openblas_{}",  # conda's and Linux distributions'
)
CGROUPS = Path("/sys/fs/cgroup")
PROC = Path("/proc/self")
_OWN_THREADS = 1
"""Answer of OpenBLAS when its threads are its own; OpenMP's are not counted here."""


@contextmanager
def quick_turns() -> Iterator[None]:
    """Threads that make short calls of the system wait 0.2 ms, not 5 ms each, for a busy one to
    give way.
    """
    interval = sys.getswitchinterval()
    sys.setswitchinterval(2e-4)
    try:
        yield
    finally:
        sys.setswitchinterval(interval)


def ahead(items: Iterator[Item], count: int) -> Iterator[Item]:
    """Yield the same items, up to `count` of them made in a thread before they are asked for;
    errors come in their place.
    """
    pool = ThreadPoolExecutor(1)
    try:
        waiting = deque(pool.submit(next, items, _END) for _ in range(count))
        while (item := waiting.popleft().result()) is not _END:
            waiting.append(pool.submit(next, items, _END))
            yield item
    finally:
        give_up(pool)


def spread(call: Callable[[Item], Result], items: Iterable[Item], threads: int) -> Iterator[Result]:
    """Yield the results of a function for each item, in their order, made in threads, which are at
    most two items each ahead; errors come in their place.
    """
    pool = ThreadPoolExecutor(threads)
    try:
        waiting: deque[Future[Result]] = deque()
        for item in items:
            if len(waiting) == 2 * threads:
                yield waiting.popleft().result()
            waiting.append(pool.submit(call, item))
        while waiting:
            yield waiting.popleft().result()
    finally:
        give_up(pool)


def give_up(pool: ThreadPoolExecutor) -> None:
    """Let the calls that have begun end by themselves, and make no other: for pools of generators.

    A generator that nobody reads to its end may be collected as garbage at any instant, also while
    a lock is held that its threads need to go on, or to end: where another pool takes a call, or
    another thread starts. Who waits there for them waits for ever.
    """
    pool.shutdown(wait=False, cancel_futures=True)


def cores() -> int:
    """CPU cores that this process may use: those it may run on, or fewer, where a cgroup (of a
    container, or of a scheduler) has less time than they have.
    """
    own = hasattr(os, "sched_getaffinity")
    count = len(os.sched_getaffinity(0)) if own else os.cpu_count() or 1
    return min([count, *(max(1, math.ceil(quota)) for quota in _quotas())])


def _quotas() -> Iterator[float]:
    """Cores' worth of time that this process's cgroup and those around it may take, where they are
    limited.
    """
    try:
        lines = (PROC / "cgroup").read_text().splitlines()
    except OSError:  # not Linux
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        root = CGROUPS / "cpu" if controllers else CGROUPS
        inside = Path(path.lstrip("/"))
        for folder in (root / each for each in (inside, *inside.parents)):
            with suppress(OSError, ValueError, ZeroDivisionError):
                if controllers:
                    period = int((folder / "cpu.cfs_period_us").read_text())
                    quota = int((folder / "cpu.cfs_quota_us").read_text())
                else:
                    words = (folder / "cpu.max").read_text().split()
                    quota, period = int(words[0].replace("max", "-1")), int(words[1])
                if quota > 0:
                    yield quota / period


class Behind:
    """Makes calls one after the other in a thread, at most `count` behind; a context manager.

    After a call that fails none is made any more, and the error is raised by the next `do` or at
    the end.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._pool = ThreadPoolExecutor(1)
        self._waiting: deque[Future[None]] = deque()
        self._failed = False

    def do(self, call: Callable[..., object], *arguments: Any) -> None:
        if len(self._waiting) == self._count:
            self._waiting.popleft().result()
        self._waiting.append(self._pool.submit(self._make, call, *arguments))

    def wait(self) -> None:
        """Return when all calls are made; raises what one raised."""
        while self._waiting:
            self._waiting.popleft().result()

    def _make(self, call: Callable[..., object], *arguments: Any) -> None:
        if self._failed:
            return
        try:
            call(*arguments)
        except BaseException:
            self._failed = True
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._failed = self._failed or kind is not None
        self._pool.shutdown()
        if kind is None:
            self.wait()


class _Callers:
    """Counts who wants a single BLAS thread now; the last one that leaves sets the number back."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._now = self._before = 0

    def enter(self, count: Callable[[], int], set_count: Callable[[int], object]) -> None:
        with self._lock:
            if not self._now:
                self._before = count()
                set_count(1)
            self._now += 1

    def leave(self, set_count: Callable[[int], object]) -> None:
        with self._lock:
            self._now -= 1
            if not self._now:
                set_count(self._before)


_CALLERS = _Callers()


@contextmanager
def one_blas_thread() -> Iterator[bool]:
    """Keep a product of matrices in the thread that asks for it, in the whole process, while this
    lasts. Yield False, and do nothing, where the library is not OpenBLAS.
    """
    found = _openblas()
    if found is None:
        yield False
        return
    count, set_count = found
    _CALLERS.enter(count, set_count)
    try:
        yield True
    finally:
        _CALLERS.leave(set_count)


def _openblas() -> tuple[Callable[[], int], Callable[[int], object]] | None:
    """Return how many threads OpenBLAS uses, and how to change it; None where NumPy has another
    one.
    """
    try:
        where = importlib.import_module("numpy.linalg._umath_linalg").__file__
        library = ctypes.CDLL(str(where))  # finds names in what it is linked with, too
    except (ImportError, OSError):  # NumPy's own business: it may lie elsewhere one day
        return None
    for name in _OPENBLAS:
        if hasattr(library, name.format("get_parallel")):
            if library[name.format("get_parallel")]() != _OWN_THREADS:
                return None
            return library[name.format("get_num_threads")], library[name.format("set_num_threads")]
    return None
