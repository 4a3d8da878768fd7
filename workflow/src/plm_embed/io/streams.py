"""One input file as a byte stream: decompressed, counted and hashed while it is read once."""

import bz2
import codecs
import gzip
import hashlib
import io
import lzma
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import IO, Any, cast

from backports import zstd

from plm_embed.errors import InputError

_MAGIC = {
    b"\x1f\x8b": "gzip",
    b"BZh": "bzip2",
    b"\xfd7zXZ\x00": "xz",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"\x50\x2a\x4d\x18": "zstd",  # the skippable frame that parallel zstd writes first
}
_READ_BYTES = 1 << 20
_FEED_BYTES = 1 << 16  # what is left of them at the end of a stream is copied
DAMAGE = (EOFError, zlib.error, lzma.LZMAError, zstd.ZstdError, OSError)
"""What damaged or unreadable data raise; of bz2 and gzip an OSError without a number."""


def _as_latin1(error: UnicodeError) -> tuple[str, int]:
    """Decode the bytes that are not UTF-8 as Latin-1, so that any header is text and can be written
    as UTF-8.
    """
    if not isinstance(error, UnicodeDecodeError):
        raise error
    return error.object[error.start : error.end].decode("latin-1"), error.end


class _HashingFile(io.RawIOBase):
    """Hashes and counts the bytes that are read of a file, and closes it."""

    def __init__(self, file: io.FileIO) -> None:
        self._file = file
        self._sha256 = hashlib.sha256()
        self.count = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        count = self._file.readinto(buffer)
        self._sha256.update(memoryview(buffer)[:count])
        self.count += count
        return count

    def hexdigest(self) -> str:
        return self._sha256.hexdigest()

    def close(self) -> None:
        self._file.close()
        super().close()


class _Streams(io.RawIOBase):
    """Compressed streams, one after the other to the end of the file, as what they hold.

    Python's own readers of bz2 and xz take a damaged stream behind a whole one for the end of the
    data. Here everything that follows a stream is another one, but for the zeros that may follow
    one of xz.
    """

    def __init__(
        self,
        file: io.BufferedReader,
        start: Callable[[], bz2.BZ2Decompressor | lzma.LZMADecompressor],
        padding: bytes,
    ) -> None:
        self._file, self._start, self._padding = file, start, padding
        self._stream = start()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        room = memoryview(buffer).cast("B")
        data = b""
        while room and not data:
            more = self._stream.unused_data if self._stream.eof else b""
            if self._stream.eof:
                while not (more := more.lstrip(self._padding)):
                    if not (more := self._file.read1(_FEED_BYTES)):
                        return 0
                self._stream = self._start()
            elif self._stream.needs_input and not (more := self._file.read1(_FEED_BYTES)):
                raise EOFError
            data = self._stream.decompress(more, len(room))
        room[: len(data)] = data
        return len(data)


_OPEN: dict[str, Callable[[Any], Any]] = {
    "none": lambda file: file,
    "gzip": gzip.open,
    "bzip2": lambda file: io.BufferedReader(_Streams(file, bz2.BZ2Decompressor, b""), _READ_BYTES),
    "xz": lambda file: io.BufferedReader(
        _Streams(file, partial(lzma.LZMADecompressor, lzma.FORMAT_XZ), b"\0"), _READ_BYTES
    ),
    "zstd": zstd.open,
}


def line_blocks(read: Callable[[int], bytes], size: int, longest: int) -> Iterator[bytes]:
    """The bytes that `read(n)` gives: the first line, then blocks of at least `size` bytes, and
    what is left. Each ends where a line does, but a line of more than `longest` bytes is cut.

    `read` returns up to n bytes and nothing at the end. When it raises, the whole lines before come
    first. A line ends with LF, CR or both.
    """
    block, least = b"", 1
    while True:
        parts, length = [block], len(block)
        try:
            while length < least and (data := read(_READ_BYTES)):
                parts.append(data)
                length += len(data)
        except Exception:
            block = b"".join(parts)
            yield block[: _lines_end(block)]
            raise
        block = b"".join(parts)
        if length < least:
            yield block
            return
        first = block.find(b"\n") + 1 if least == 1 else 0
        if end := first or _lines_end(block) or length * (length > longest):
            yield block[:end]
            block, least = block[end:], size
        else:
            least = 2 * length


def _lines_end(text: bytes) -> int:
    """Where the last line ends, of which it is known that it does: a CR may be half an end."""
    return max(text.rfind(b"\n"), text.rfind(b"\r", 0, -1)) + 1


def as_utf8(text: bytes) -> bytes:
    """Return text as UTF-8; bytes that are not UTF-8 are read as Latin-1."""
    return text if text.isascii() else text.decode("utf-8", "plm_embed.latin1").encode()


def as_text(handle: IO[bytes], newline: str | None) -> io.TextIOWrapper:
    """Bytes as text: a byte order mark dropped, bytes that are not UTF-8 read as Latin-1."""
    return io.TextIOWrapper(
        handle, encoding="utf-8-sig", errors="plm_embed.latin1", newline=newline
    )


class Stream:
    """The decompressed bytes of a file; a context manager.

    `compression` (none, gzip, bzip2, xz, zstd) is told by the first bytes, not by the name.
    `bytes_read` counts the file's own bytes; `finish` reads what is left of them and returns their
    SHA-256.
    """

    def __init__(self, path: Path) -> None:
        self._raw = _HashingFile(path.open("rb", buffering=0))
        buffered = io.BufferedReader(self._raw, _READ_BYTES)
        head = buffered.peek(8)
        self.compression = next(
            (name for magic, name in _MAGIC.items() if head.startswith(magic)), "none"
        )
        self._file = buffered
        self.handle = cast(IO[bytes], _OPEN[self.compression](buffered))

    @property
    def bytes_read(self) -> int:
        return self._raw.count

    def read1(self, count: int) -> bytes:
        """Up to `count` bytes, nothing at the end; what precedes damage is returned before the
        error is raised.
        """
        data: bytes = self.handle.read1(count)  # type: ignore[attr-defined]
        return data

    def head(self, count: int) -> tuple[bytes, Exception | None]:
        """Up to `count` bytes from where the stream is, and the error that ended them."""
        data = bytearray()
        try:
            while len(data) < count and (part := self.read1(count - len(data))):
                data += part
        except DAMAGE as error:
            return bytes(data), error
        return bytes(data), None

    def finish(self) -> str:
        while self._file.read(_READ_BYTES):
            pass
        return self._raw.hexdigest()

    def __enter__(self) -> "Stream":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.handle.close()
        self._file.close()


@contextmanager
def named_errors(path: Path, complete: Callable[[], int] | None = None) -> Iterator[None]:
    """Turn what an unreadable or damaged file raises into an InputError that names it and says how
    far it was read.

    `complete` tells how many records had been read whole by then; without it, that is not said.
    """
    try:
        yield
    except EOFError:
        problem = "the compressed data end too early, the file is cut short"
    except (zlib.error, lzma.LZMAError, zstd.ZstdError, gzip.BadGzipFile) as error:
        problem = f"the compressed data are damaged ({error})"
    except OSError as error:
        if error.errno is not None:
            raise _unreadable(path, "cannot be read", complete, end=f": {error.strerror}") from None
        problem = f"the compressed data are damaged ({error})"  # so says bz2
    else:
        return
    raise _unreadable(path, problem, complete, remedy="fetch or copy the file again")


def _unreadable(
    path: Path,
    problem: str,
    complete: Callable[[], int] | None,
    *,
    end: str = "",
    remedy: str = "",
) -> InputError:
    before = complete() if complete else None
    after = "" if before is None else so_far(before)
    record = None if before is None else before + 1
    return InputError(f"{path}: {problem}{after}{end}", path=path, record=record, remedy=remedy)


def so_far(records: int) -> str:
    """How many records an error comes after, for its message."""
    return f" after {records:,} complete records"


codecs.register_error("plm_embed.latin1", _as_latin1)
