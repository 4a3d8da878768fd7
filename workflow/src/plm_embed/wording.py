"""Numbers, times and names in words."""

from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from difflib import get_close_matches


def did_you_mean(
    word: str, known: Iterable[str], most: int = 1, called: Callable[[str], str] = str
) -> str:
    """Return '; did you mean NAME or NAME?' for the nearest known words, at most `most`, or ''.

    `called`: the name to show for a known word.
    """
    words = list(known)
    meant = "cuda" if word.lower() == "gpu" and "cuda" in words else word
    names = dict.fromkeys(map(called, get_close_matches(meant, words, n=most)))
    return f"; did you mean {' or '.join(names)}?" if names else ""


def duration(seconds: float) -> str:
    """Return a time in words, in two units at most: '35 s', '12 min', '3 h 20 min', '2 d 5 h'."""
    minutes = round(seconds / 60)
    if seconds < 90:
        return f"{seconds:.0f} s"
    if minutes < 60:
        return f"{minutes} min"
    if minutes < 48 * 60:
        return f"{minutes // 60} h {minutes % 60} min"
    hours = round(minutes / 60)
    return f"{hours // 24} d {hours % 24} h"


def count(number: int, noun: str) -> str:
    """Return '1 record', '2,000 records'."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def now() -> str:
    """Return the present time for records: ISO 8601, with its zone, in seconds."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def short(text: str) -> str:
    """Return a text, cut where it is longer than any name."""
    return text if len(text) <= 200 else f"{text[:200]}..."


def some(names: list[str]) -> str:
    """Return the first few of many names as text."""
    return ", ".join(map(short, names[:5])) + (
        f" and {len(names) - 5:,} more" if len(names) > 5 else ""
    )


def readable(size: float) -> str:
    """Return bytes in powers of ten: '2.3 GB'."""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if size < 1000 or unit == "TB":
            return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    raise AssertionError
