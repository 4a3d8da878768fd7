"""The threads of the library that multiplies NumPy's matrices, for callers that give each core a
thread of their own.
"""

import ctypes
import importlib
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_NAMES = (
    "scipy_openblas_{}64_",  # NumPy's wheels
    "scipy_openblas_{}",
    "openblas_{}64_",  # those of NumPy 1.26
    "openblas_{}",  # conda's and Linux distributions'
)
_OWN_THREADS = 1
"""What OpenBLAS says of itself when its threads are its own; OpenMP's are not counted here."""


class _Callers:
    """Who wants one thread now, in threads of their own; the last one leaves everything as it
    was.
    """

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
    """While this lasts, a product of matrices stays in the thread that asks for it, in the whole
    process. Says False, and does nothing, where the library is not OpenBLAS.
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
    """How many threads OpenBLAS uses, and how to change it; None where NumPy has another one."""
    try:
        where = importlib.import_module("numpy.linalg._umath_linalg").__file__
        library = ctypes.CDLL(str(where))  # finds names in what it is linked with, too
    except (ImportError, OSError):  # NumPy's own business: it may lie elsewhere one day
        return None
    for name in _NAMES:
        if hasattr(library, name.format("get_parallel")):
            if library[name.format("get_parallel")]() != _OWN_THREADS:
                return None
            return library[name.format("get_num_threads")], library[name.format("set_num_threads")]
    return None
