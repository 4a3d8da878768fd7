"""One input file as pieces of bytes: decompressed, counted and hashed while it is read once."""

import bz2
import codecs
import hashlib
import lzma
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from threading import RLock
from typing import Any, Self

from backports import zstd

from plm_embed.errors import InputError

BOM = codecs.BOM_UTF8
_MAGIC = {
    b"\x1f\x8b": "gzip",
    b"BZh": "bzip2",
    b"\xfd7zXZ\x00": "xz",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"\x50\x2a\x4d\x18": "zstd",  # the skippable frame that parallel zstd writes first
}
BLOCK = 1 << 22
"""Bytes of a file, decompressed, that are parsed at a time."""
_PIECE = 1 << 20
_FEED = 1 << 16  # compressed bytes; what is left of them at the end of a stream is copied
_LOST = 1 << 16  # decompressed bytes that may be lost before damage
_DECOMPRESSORS: dict[str, tuple[Callable[[], Any], bytes]] = {  # and what may lie behind a stream
    "gzip": (partial(zlib.decompressobj, 31), b"\0"),
    "bzip2": (bz2.BZ2Decompressor, b""),
    "xz": (partial(lzma.LZMADecompressor, lzma.FORMAT_XZ), b"\0"),
    "zstd": (zstd.ZstdDecompressor, b""),
}
DAMAGE = (EOFError, zlib.error, lzma.LZMAError, zstd.ZstdError, OSError)
"""Errors that damaged or unreadable data raise; bz2 raises an OSError without a number."""


class Stream:
    """The bytes of a file; a context manager.

    `compression` (none, gzip, bzip2, xz, zstd) is told by the first bytes, not by the name.
    `pieces` yields the decompressed bytes; what precedes damage comes before the error. `raw`
    yields the file's own bytes, of which `bytes_read` have come so far.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("rb", buffering=0)
        # a file that is closed while another thread reads it would take bytes of the next one
        self._lock = RLock()
        self._sha256 = hashlib.sha256()
        self.bytes_read = 0
        head = self._file.read(8)
        self._file.seek(0)
        self.compression = next(
            (name for magic, name in _MAGIC.items() if head.startswith(magic)), "none"
        )
        self.raw = iter(partial(self._read, _PIECE), b"")
        self.pieces = self.raw
        if self.compression != "none":
            compressed = iter(partial(self._read, _FEED), b"")
            self.pieces = _decompressed(compressed, *_DECOMPRESSORS[self.compression])

    def _read(self, count: int) -> bytes:
        with self._lock:
            data = self._file.read(count)
        self._sha256.update(data)
        self.bytes_read += len(data)
        return data

    def head(self, count: int) -> tuple[bytes, Exception | None]:
        """Return at least `count` bytes from where the stream is, and the error that ended them."""
        data = bytearray()
        try:
            while len(data) < count and (piece := next(self.pieces, b"")):
                data += piece
        except DAMAGE as error:
            return bytes(data), error
        return bytes(data), None

    def finish(self) -> str:
        """Read what is left of the file and return its SHA-256."""
        for _ in self.raw:
            pass
        return self._sha256.hexdigest()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._file.close()


def _decompressed(
    compressed: Iterator[bytes], start: Callable[[], Any], padding: bytes
) -> Iterator[bytes]:
    """Yield what compressed streams hold, one after the other to the end of the file.

    Python's own readers of bz2 and xz take a damaged stream behind a whole one for the end of the
    data. Here everything that follows a stream is another one, but for `padding`.
    """
    stream = start()
    for fed in compressed:
        data = fed
        while data:
            if stream.eof:
                if not (data := data.lstrip(padding) if padding else data):
                    break
                stream = start()
            if piece := stream.decompress(data, _LOST):
                yield piece
            while not (stream.eof or getattr(stream, "needs_input", True)):
                if piece := stream.decompress(b"", _LOST):
                    yield piece
            # zlib's keeps what it has not taken itself
            data = stream.unused_data if stream.eof else getattr(stream, "unconsumed_tail", b"")
    if not stream.eof:
        raise EOFError


def blocks(
    pieces: Iterator[bytes], size: int, last_end: Callable[[bytes], int], most: int
) -> Iterator[tuple[bytes, bool]]:
    """Cut bytes where something ends, such as lines, into blocks for each of which at least `size`
    bytes are read; `last_end` returns the last such place in a block, or 0.

    Where nothing ends in more than `most` bytes, a block is cut all the same, and comes with False.
    When reading fails, what is whole comes before the error.
    """
    rest, ended = b"", False
    error: Exception | None = None
    while not (ended or error):
        parts, length = [rest], 0
        try:
            while length < size and (data := next(pieces, b"")):
                parts.append(data)
                length += len(data)
            ended = length < size
        except Exception as raised:
            error = raised
        block = b"".join(parts)
        end = len(block) if ended else last_end(block)
        whole = ended or end > 0
        if not whole and len(block) > most:
            end = len(block) - 1  # the last byte may be half of an end
        if end:
            yield block[:end], whole
        rest = block[end:]
    if error:
        raise error


def _as_latin1(error: UnicodeError) -> tuple[str, int]:
    """Decode the bytes that are not UTF-8 as Latin-1, so that any header is text and can be written
    as UTF-8.
    """
    if not isinstance(error, UnicodeDecodeError):
        raise error
    return error.object[error.start : error.end].decode("latin-1"), error.end


codecs.register_error("plm_embed.latin1", _as_latin1)


def as_text(data: bytes) -> str:
    """Decode UTF-8; bytes that are not UTF-8 are read as Latin-1."""
    return data.decode("utf-8", "plm_embed.latin1")


def as_utf8(text: bytes) -> bytes:
    """Return text as UTF-8; bytes that are not UTF-8 are read as Latin-1."""
    return text if text.isascii() else as_text(text).encode()


@contextmanager
def named_errors(path: Path, complete: Callable[[], int] | None = None) -> Iterator[None]:
    """Turn what an unreadable or damaged file raises into an InputError that names it and says how
    far it was read.

    `complete` tells how many records had been read whole by then; without it, that is not said.
    """
    end, remedy = "", "fetch or copy the file again"
    try:
        yield
        return
    except EOFError:
        problem = "the compressed data end too early, the file is cut short"
    except DAMAGE as error:
        problem = f"the compressed data are damaged ({error})"
        if isinstance(error, OSError) and error.errno is not None:
            problem, end, remedy = "cannot be read", f": {error.strerror}", ""
    after, record = (so_far(complete()), complete() + 1) if complete else ("", None)
    raise InputError(f"{path}: {problem}{after}{end}", path=path, record=record, remedy=remedy)


def so_far(records: int) -> str:
    """Return how many records an error comes after, for its message."""
    return f" after {records:,} complete records"
