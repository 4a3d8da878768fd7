"""What one embed job asks for at a site: nodes, GPUs, cores, memory and time, from the
site's data.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Shape:
    """One submission. gpus, cores and memory_gb are of each node; None: the rule's own reckoning.

    minutes: what the site's file says to ask for; longest_minutes: the most that the queue gives to
    so many nodes.
    """

    queue: str
    nodes: int
    gpus: int
    cores: int | None
    memory_gb: int | None
    minutes: int | None
    longest_minutes: int | None

    @property
    def workers(self) -> int:
        return self.nodes * self.gpus

    def __str__(self) -> str:
        said = [
            f"{count(self.nodes, 'node')} x {count(self.gpus, 'GPU')}"
            if self.workers > 1
            else "1 GPU",
            count(self.cores, "core") if self.cores else "",
            f"{self.memory_gb} GB" if self.memory_gb else "",
            f"{self.minutes // 60}:{self.minutes % 60:02d} h" if self.minutes else "",
        ]
        return ", ".join(filter(None, said))


def shape(site: Mapping[str, Any], queue: str = "", nodes: int = 0, gpus: int = 0) -> Shape:
    """A submission to a queue of a site ('' : its default one), with other numbers of nodes and
    GPUs where given.
    """
    name = queue or site.get("default_queue") or ""
    limits: Mapping[str, Any] = (site.get("queues") or {}).get(name, {})
    wanted = {**site.get("submission", {}), **limits.get("submission", {})}
    nodes = nodes or wanted.get("nodes", 1)
    longest = [
        minutes(entry["walltime"][1])
        for entry in limits.get("ranges", [])
        if entry["nodes"][0] <= nodes <= entry["nodes"][1]
    ]
    return Shape(
        queue=name,
        nodes=nodes,
        gpus=gpus or wanted.get("gpus", 1),
        cores=wanted.get("cores"),
        memory_gb=wanted.get("memory_gb"),
        minutes=minutes(wanted["walltime"]) if "walltime" in wanted else None,
        longest_minutes=max(longest, default=None),
    )


def minutes(clock: str) -> int:
    """Whole minutes of 'H:MM:SS'."""
    hours, rest, _ = map(int, clock.split(":"))
    return 60 * hours + rest


def count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
