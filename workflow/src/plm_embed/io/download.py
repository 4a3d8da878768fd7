"""A large file over HTTP: streamed, resumed after an interruption, in place only when it is
whole.
"""

import logging
from dataclasses import dataclass
from pathlib import Path

import requests

from plm_embed.errors import PlmEmbedError
from plm_embed.io.files import sync
from plm_embed.io.json_files import read_sealed, write_sealed
from plm_embed.io.progress import progress

log = logging.getLogger(__name__)

# seconds to connect, and between two blocks: a firewall that drops packets must not hang a run
TIMEOUT = (10, 60)
BLOCK = 1 << 16  # a lost connection costs at most one block that was not yet whole


@dataclass(frozen=True)
class _Note:
    """What is said beside the part of a file that has arrived: of which file it is."""

    url: str
    validator: str | None
    """The server's ETag, or when the file was last changed; None where it says neither."""
    bytes: int
    """Of the whole file."""


def download(url: str, path: Path) -> None:
    """Fetch `url` to `path` through `path.part`, which a later call goes on with.

    A lost connection is taken up again as long as each attempt brings the file further. Raises
    PlmEmbedError when the server cannot be reached, refuses, or sends another length than it says;
    what has arrived stays for the next call.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    while True:
        before = _size(part)
        try:
            _go_on(url, part)
            break
        except requests.RequestException as error:
            if _size(part) <= before:
                kept = (
                    f" {_size(part) / 1e9:.3f} GB have arrived; the same command goes on from "
                    "there."
                    if before
                    else ""
                )
                raise PlmEmbedError(f"{url} cannot be fetched: {_reason(error)}.{kept}") from None
            log.info("connection lost after %.3f GB of %s; going on", _size(part) / 1e9, path.name)
    sync(part)
    part.replace(path)
    sync(path.parent)
    _note_path(part).unlink()


def _go_on(url: str, part: Path) -> None:
    """One request for what `part` still lacks. The note beside it says of which file (url,
    validator, length) it is.
    """
    note = _note(part)
    have = _size(part) if note and note.url == url else 0
    if note and have and have == note.bytes:
        return
    headers = {"Accept-Encoding": "identity"}
    if note and have and note.validator:
        # If-Range: a file that has changed since comes whole instead of being glued to the old
        # beginning.
        headers |= {"Range": f"bytes={have}-", "If-Range": note.validator}
    with requests.get(url, headers=headers, stream=True, timeout=TIMEOUT) as answer:
        if answer.status_code == requests.codes.requested_range_not_satisfiable:
            part.unlink()
            announced = note.bytes if note else have
            raise PlmEmbedError(
                f"{url}: the server has only {have} of the {announced} bytes that it announced."
            )
        if not answer.ok:
            raise PlmEmbedError(
                f"{url} cannot be fetched: HTTP {answer.status_code} {answer.reason}."
            )
        if "Content-Length" not in answer.headers:
            raise PlmEmbedError(
                f"{url} cannot be fetched safely: the server does not say how long the file is."
            )
        resumed = answer.status_code == requests.codes.partial_content
        if not resumed:
            have = 0
        total = have + _length(url, answer.headers["Content-Length"])
        with part.open("ab" if resumed else "wb") as file:
            if not resumed:
                validator = answer.headers.get("ETag") or answer.headers.get("Last-Modified")
                write_sealed(_note_path(part), _Note(url, validator, total))
            with progress(f"download {part.stem}", total / 1e9, "GB") as meter:
                meter.advance(have / 1e9)
                for block in answer.iter_content(BLOCK):
                    file.write(block)
                    meter.advance(len(block) / 1e9)
    if _size(part) != total:
        raise PlmEmbedError(
            f"{url}: {_size(part)} bytes arrived of {total}. Run the same command again to go on."
        )


def _length(url: str, announced: str) -> int:
    if not announced.strip().isdecimal():
        raise PlmEmbedError(
            f"{url} cannot be fetched safely: the server says that the file has "
            f"{announced[:40]!r} bytes."
        )
    return int(announced)


def _note_path(part: Path) -> Path:
    return part.with_name(part.name + ".json")


def _note(part: Path) -> _Note | None:
    """What the note beside `part` says; None when there is none, or it is damaged: the download
    then starts again.
    """
    try:
        return read_sealed(_note_path(part), _Note, "a note of a download", "")
    except PlmEmbedError:
        return None


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _reason(error: requests.RequestException) -> str:
    """The innermost cause, which is what a person can act on: 'Connection refused', 'Name or
    service not known'.
    """
    cause: BaseException = error
    while (inner := cause.__cause__ or cause.__context__) is not None:
        cause = inner
    return str(getattr(cause, "strerror", None) or cause) or type(error).__name__
