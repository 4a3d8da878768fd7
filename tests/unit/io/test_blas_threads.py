"""NumPy's BLAS in one thread, and as it was after that."""

import threading
from collections.abc import Callable

import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from plm_embed.io import threads as io_threads
from plm_embed.io.threads import one_blas_thread


def numpy_threads() -> int | None:
    """Of OpenBLAS; None where NumPy has another library."""
    path = str(np.__path__[0])
    for library in threadpool_info():
        beside = library["filepath"].startswith((path, f"{path}.libs"))
        if library["internal_api"] == "openblas" and beside:
            return int(library["num_threads"])
    return None


def test_it_is_left_as_it_was_by_the_last_caller() -> None:
    with threadpool_limits(3, user_api="blas"):
        before = numpy_threads()
        if before is None:
            pytest.skip("NumPy has another library")
        first, second = one_blas_thread(), one_blas_thread()
        assert first.__enter__() and numpy_threads() == 1
        assert second.__enter__()
        first.__exit__(None, None, None)
        assert numpy_threads() == 1  # for the second, which began when it was so
        second.__exit__(None, None, None)
        assert numpy_threads() == before
        with pytest.raises(KeyError), one_blas_thread():
            raise KeyError
        assert numpy_threads() == before


def test_another_library_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(io_threads, "_OPENBLAS", ("no_such_{}",))
    with one_blas_thread() as alone:
        assert not alone


def test_products_in_many_threads_are_those_of_one() -> None:
    draw = np.random.default_rng(1)
    left, right = draw.standard_normal((2, 200, 200)).astype(np.float32)
    with one_blas_thread():
        expected = left @ right
        found: list[np.ndarray] = []
        work: Callable[[], None] = lambda: found.append(left @ right)  # noqa: E731
        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(found) == 8 and all(np.array_equal(each, expected) for each in found)
