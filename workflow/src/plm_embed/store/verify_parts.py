"""SHA-256 of the parts, computed in a thread a little ahead of whoever reads them, so that both go
on at once.
"""

from collections import deque
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Self

from plm_embed.errors import StoreError
from plm_embed.io.files import sha256_file
from plm_embed.store.parts import PartInfo

AHEAD_BYTES = 1 << 30
"""No further part is begun while so much is hashed that nobody has asked for: it should still be in
memory then.
"""


class HashAhead:
    """Hashes the parts in a folder in the order given, which is that in which they will be read. A
    context manager.
    """

    def __init__(self, folder: Path, parts: Iterable[PartInfo], remedy: str) -> None:
        """`remedy`: what the message about a changed part tells to do."""
        self._folder = folder
        self._remedy = remedy
        self._waiting = deque(dict.fromkeys(parts))
        self._begun: dict[str, Future[str]] = {}
        self._ahead = 0
        self._checked: set[str] = set()
        self._pool = ThreadPoolExecutor(1)

    def __enter__(self) -> Self:
        self._go_ahead()
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)

    def check(self, parts: Iterable[PartInfo]) -> None:
        """Return when each of these parts was found to be what was written. StoreError when one is
        not.
        """
        for part in parts:
            if part.name in self._checked:
                continue
            while part.name not in self._begun:
                # compaction may have replaced a part since the list was made: its successor is not
                # waiting
                self._begin(self._waiting.popleft() if part in self._waiting else part)
            if self._begun.pop(part.name).result() != part.sha256:
                raise StoreError(
                    f"{self._folder / part.name}: its bytes are not those that were written",
                    remedy=self._remedy,
                    path=self._folder / part.name,
                )
            self._ahead -= part.bytes
            self._checked.add(part.name)
        self._go_ahead()

    def _go_ahead(self) -> None:
        while self._waiting and self._ahead < AHEAD_BYTES:
            self._begin(self._waiting.popleft())

    def _begin(self, part: PartInfo) -> None:
        self._begun[part.name] = self._pool.submit(sha256_file, self._folder / part.name)
        self._ahead += part.bytes
