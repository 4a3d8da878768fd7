"""Names for what an export writes, of ids that may not be names."""

import hashlib
import re

_UNSAFE = re.compile(r"[/\\%\x00-\x1f\x7f]")


class FileNames:
    """Gives out names of at most `longest` bytes; remembers them, some 250 bytes each."""

    def __init__(self, longest: int) -> None:
        self._longest = longest
        self._given: dict[str, tuple[int, str]] = {}

    def new(self, id: str, row: int) -> str | None:
        """A name for an id with the vector in `row`: the id itself where it can be; None if that
        pair has one already.

        Slashes, backslashes, control characters and '%' become %2F and the like; what is too long
        keeps its beginning and ends in a hash; an id that other rows have too gets .2, .3 ...
        """
        first = name = self._safe(id)
        count = 1
        while name in self._given:
            if self._given[name] == (row, id):
                return None
            count += 1
            name = f"{first}.{count}"
        self._given[name] = row, id
        return name

    def _safe(self, id: str) -> str:
        name = _UNSAFE.sub(lambda found: f"%{ord(found[0]):02X}", id)
        if name in ("", ".", ".."):
            name = f"%{name}"
        room = self._longest - 8  # for a count
        if len(name.encode()) > room:
            digest = hashlib.sha256(id.encode()).hexdigest()[:16]
            name = f"{name.encode()[: room - 17].decode(errors='ignore')}-{digest}"
        return name
