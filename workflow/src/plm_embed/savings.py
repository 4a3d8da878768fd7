"""What a campaign did not have to compute: vectors found in its store, or taken from earlier results."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any


@dataclass(frozen=True)
class Savings:
    """Sequences found in the store and reused; hours: of one device, estimated from its speed; None if it is unknown.

    What an interrupted job of the same campaign has computed counts as found when it is run again.
    """

    found: int
    reused: int
    hours: float | None

    def __str__(self) -> str:
        """'3 sequences found in the store, 40 taken from earlier results (about 0.5 device-hours)', '' for none."""
        counts = {"found in the store": self.found, "taken from earlier results": self.reused}
        words = ", ".join(f"{count:,} {where}" for where, count in counts.items() if count)
        return words + (f" (about {self.hours:.1f} device-hours)" if words and self.hours is not None else "")


def savings(records: Iterable[Mapping[str, Any]]) -> Savings:
    """Add up the completion records of a campaign."""
    found, reused, tokens = 0, 0, 0
    speeds = []
    for record in records:
        found += record.get("found", 0)
        reused += record.get("reused", 0)
        tokens += record.get("spared_tokens", 0)
        if record.get("tokens_per_second"):
            speeds.append(record["tokens_per_second"])
    return Savings(found, reused, tokens / median(speeds) / 3600 if speeds else None)
