import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from plm_embed.io.threads import ahead, behind, spread


def numbers(stop: int) -> Iterator[int]:
    yield from range(stop)
    raise KeyError("end")


def test_items_and_errors_come_in_their_order() -> None:
    seen = []
    with pytest.raises(KeyError, match="end"):
        for item in ahead(numbers(4), 2):
            seen.append(item)
    assert seen == [0, 1, 2, 3]


ABANDONED = """
import gc
import time
from concurrent.futures import ThreadPoolExecutor

from plm_embed.io.threads import ahead

def slowly():
    for number in range(100):
        time.sleep(0.002)
        yield number

def abandon():
    items = ahead(ahead(slowly(), 4), 4)
    next(items)
    cycle = [items]
    cycle.append(cycle)  # as tracebacks are

gc.set_threshold(3)
with ThreadPoolExecutor(1) as pool:
    for _ in range(300):
        abandon()
        pool.submit(int)
"""


def test_what_is_abandoned_may_be_collected_at_any_instant() -> None:
    """Also while a thread pool takes work, under a lock that all pools share."""
    subprocess.run([sys.executable, "-c", ABANDONED], check=True, timeout=300)


def test_what_several_threads_make_comes_in_order_and_not_too_early() -> None:
    made: list[int] = []

    def make(number: int) -> int:
        if number == 50:
            raise KeyError("fifty")
        made.append(number)
        return number

    items = iter(range(100))
    results = spread(make, items, 3)
    assert next(results) == 0 and len([*items]) == 93
    results = spread(make, range(100), 3)
    assert next(results) == 0
    with pytest.raises(KeyError, match="fifty"):
        for expected in range(1, 51):
            assert next(results) == expected
    assert list(spread(make, [], 3)) == []


def test_calls_are_made_in_order_in_one_other_thread() -> None:
    seen: list[tuple[int, int]] = []
    with behind(2) as in_thread:
        for number in range(20):
            in_thread(lambda number: seen.append((number, threading.get_ident())), number)
    (thread,) = {thread for _, thread in seen}
    assert [number for number, _ in seen] == list(range(20)) and thread != threading.get_ident()


def test_an_error_of_a_call_is_raised_later_on_or_at_the_end() -> None:
    def fail(number: int) -> None:
        if number == 3:
            raise KeyError(number)

    for count, made in ((2, 6), (9, 9)):
        calls: list[int] = []
        with pytest.raises(KeyError), behind(count) as in_thread:
            for number in range(9):
                calls.append(number)
                in_thread(fail, number)
        assert len(calls) == made
    with pytest.raises(ValueError, match="mine"), behind(9) as in_thread:
        in_thread(fail, 3)
        raise ValueError("mine")


def test_no_thread_is_the_first_to_need_a_lazy_module_of_numpy() -> None:
    """`np.unique` loads it; two threads that did so at once met a RecursionError."""
    code = "import plm_embed.io.threads, numpy; print('ma' in vars(numpy))"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout == "True\n"
