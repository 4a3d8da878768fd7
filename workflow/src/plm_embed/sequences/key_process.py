"""Keys of many sequences, computed by a second process.

Python hashes short texts under the lock that all its threads share, for as long as all other work
on them takes. That process starts in little time, since this module needs neither NumPy nor Arrow.
"""

import hashlib
import mmap
import os
import struct
import subprocess
import sys
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from itertools import pairwise
from typing import IO, Self

from plm_embed.errors import PassingError

AHEAD = 2
"""Batches that may wait for their keys while another one is put."""
WORTH_IT = 1 << 26
"""Bytes of input from which on the start of a process pays."""

_SLOT = (
    1 << 23
    # bytes for a batch's text, the ends of its sequences and their digests; a larger batch is
    # hashed here
)
_MESSAGE = struct.Struct("<QQQ")  # slot, bytes of text, sequences
_END_BYTES = 8
_KEY_BYTES = hashlib.sha256().digest_size


class Hasher:
    """Takes batches and gives their digests back in the same order; a context manager.

    Below `WORTH_IT` bytes of input, and where the system has no anonymous files, all is done in
    this process.
    """

    def __init__(self, input_bytes: int) -> None:
        self._waiting: deque[bytes | tuple[int, int, int]] = deque()
        self._number = 0
        self._process: subprocess.Popen[bytes] | None = None
        if input_bytes >= WORTH_IT and hasattr(os, "memfd_create"):
            with suppress(OSError):  # not allowed here: then without
                self._start()

    def _start(self) -> None:
        size = _SLOT * (AHEAD + 1)
        file = os.memfd_create("plm-embed")
        os.truncate(file, size)
        self._memory = memoryview(mmap.mmap(file, size))
        command = [sys.executable, "-m", "plm_embed.sequences.key_process", str(file)]
        pipe = subprocess.PIPE
        # a session of its own: Ctrl-C is for this process, and the other one ends when its pipe
        # does
        self._process = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, bufsize=0, pass_fds=[file], start_new_session=True
        )
        os.close(file)

    def put(self, text: bytes | memoryview, ends: Sequence[int]) -> None:
        """Begin a batch, at most AHEAD + 1 of them before the first is got."""
        if self._process is None or len(text) + len(ends) * (_END_BYTES + _KEY_BYTES) > _SLOT:
            self._waiting.append(digests(text, ends))
            return
        message = self._number % (AHEAD + 1), len(text), len(ends)
        slot = _slot(self._memory, message[0])
        slot[: len(text)] = text
        struct.pack_into(f"<{len(ends)}q", slot, len(text), *ends)
        self._number += 1
        self._talk(_MESSAGE.pack(*message))
        self._waiting.append(message)

    def get(self) -> bytes:
        """The digests of the batch that has waited longest. PassingError when the other process
        was killed.
        """
        oldest = self._waiting.popleft()
        if isinstance(oldest, bytes):
            return oldest
        self._talk()
        slot, characters, count = oldest
        start = characters + count * _END_BYTES
        return bytes(_slot(self._memory, slot)[start : start + count * _KEY_BYTES])

    def _talk(self, message: bytes = b"") -> None:
        """Send a message, or else wait for an answer."""
        assert self._process is not None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            answered = (
                self._process.stdin.write(message) if message else self._process.stdout.read(1)
            )
        except BrokenPipeError:
            answered = None
        if not answered:
            raise PassingError(
                f"the process that computes keys ended early (exit code {self._process.wait()}; "
                "-9: killed, perhaps "
                "for memory); run again"
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()


def _slot(memory: memoryview, number: int) -> memoryview:
    return memory[number * _SLOT : (number + 1) * _SLOT]


def digests(text: bytes | memoryview, ends: Sequence[int]) -> bytes:
    """The keys, 32 bytes each, of the normalized sequences that `text` holds one after the other;
    `ends`: where each of them ends.
    """
    view = memoryview(text)
    sha256 = hashlib.sha256
    return b"".join([sha256(view[start:end]).digest() for start, end in pairwise([0, *ends])])


def _serve(file: int, messages: IO[bytes], answers: IO[bytes]) -> None:
    """Hash the batches that messages announce, until there are no more."""
    memory = memoryview(mmap.mmap(file, _SLOT * (AHEAD + 1)))
    while message := messages.read(_MESSAGE.size):
        number, characters, count = _MESSAGE.unpack(message)
        slot = _slot(memory, number)
        ends = struct.unpack_from(f"<{count}q", slot, characters)
        found = digests(slot[:characters], ends)
        start = characters + count * _END_BYTES
        slot[start : start + len(found)] = found
        answers.write(b".")
        answers.flush()


if __name__ == "__main__":
    _serve(int(sys.argv[1]), sys.stdin.buffer, sys.stdout.buffer)
