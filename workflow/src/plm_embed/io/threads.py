"""One thread works while another reads, writes or compresses, which all release Python's lock."""

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from itertools import repeat, takewhile
from typing import Any, TypeVar

import numpy.ma  # noqa: F401  # np.unique loads it at its first call, which fails in two threads

Item = TypeVar("Item")
Result = TypeVar("Result")
_END: Any = object()


def ahead(items: Iterator[Item], count: int) -> Iterator[Item]:
    """Yield the same items, up to `count` of them made in a thread before they are asked for;
    errors come in their place.
    """
    with closing(spread(lambda _: next(items, _END), repeat(None), 1, count)) as results:
        yield from takewhile(lambda item: item is not _END, results)


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
def behind(count: int) -> Iterator[Callable[..., None]]:
    """Yield a function that has calls made one after the other in a thread, at most `count` behind;
    all are made when the block ends, unless it fails.

    The error of a call is raised by a later one, or at the end.
    """
    pool = ThreadPoolExecutor(1)
    waiting: deque[Future[Any]] = deque()

    def call(function: Callable[..., object], *arguments: object) -> None:
        if len(waiting) == count:
            waiting.popleft().result()
        waiting.append(pool.submit(function, *arguments))

    try:
        yield call
        for result in waiting:
            result.result()
    finally:
        pool.shutdown(cancel_futures=True)
