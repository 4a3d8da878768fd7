"""Work that goes on beside the caller: one thing at a time, in order, and an error is the caller's error."""

import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from typing import ParamSpec, Self

import h5py

from plm_embed.hdf5 import Array, write_bits
from plm_embed.rawio import extents, write_block
from plm_embed.threads import quick_turns

P = ParamSpec("P")


class OneAtATime:
    """A thread that runs one function while the caller goes on; the next `run` waits for it. A context manager."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1)
        self._running: Future[None] | None = None
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        self._stack.enter_context(quick_turns())
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown()
        self._stack.close()

    def run(self, function: Callable[P, None], *args: P.args, **kwargs: P.kwargs) -> None:
        """Start a call when the one before has ended; raises what that one raised."""
        self.wait()
        self._running = self._pool.submit(function, *args, **kwargs)

    def wait(self) -> None:
        """Return when nothing runs; raises what the last call raised."""
        if self._running is not None:
            self._running.result()
            self._running = None


class Aside(OneAtATime):
    """A thread for one long function, which ends early when the caller's block does."""

    def __init__(self) -> None:
        super().__init__()
        self._over = threading.Event()

    def __exit__(self, *error: object) -> None:
        self._over.set()
        super().__exit__(*error)

    def go_on(self) -> None:
        """For the function, now and then: ends it when nobody needs its result any more."""
        if self._over.is_set():
            raise InterruptedError

    def check(self) -> None:
        """For the caller, now and then: raises what the function raised."""
        if self._running is not None and self._running.done():
            self.wait()


class VectorWriter(OneAtATime):
    """Writes blocks of vectors into `/representations` of an HDF5 file while the caller reads the next ones."""

    def __init__(self, file: h5py.File) -> None:
        super().__init__()
        self._datasets: dict[str, h5py.Dataset] = dict(file["representations"].items())
        self._places = {name: extents(dataset) for name, dataset in self._datasets.items()}
        self._descriptor = os.open(file.filename, os.O_WRONLY)

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        os.close(self._descriptor)

    def write(self, name: str, row: int, bits: Array) -> None:
        """Write stored bits (k, D) to rows `row`, ...; they must stay as they are until the write after the next."""
        where = self._places[name]
        if where is None:
            self.wait()
            write_bits(self._datasets[name], row, bits)
        elif bits.size:
            self.run(write_block, self._descriptor, where, row, bits)

    def sync(self) -> None:
        """Begin to wait for the disk, beside the caller."""
        self.run(os.fsync, self._descriptor)
