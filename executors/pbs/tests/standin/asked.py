"""What `-l` asks for: resources, chunks, amounts, times, and the nodes that have room for them."""

import re
from collections.abc import Iterable

from .model import RESOURCES, Config, Job

_SIZE = re.compile(r"(\d+)([kmgt]?)(b?)", re.IGNORECASE)
_UNITS = {"": 1 / 1048576, "k": 1 / 1024, "m": 1, "g": 1024, "t": 1048576}


class RefusalError(Exception):
    """A refusal as (exit code, stderr)."""

    def __init__(self, code: int, words: str) -> None:
        super().__init__(words)
        self.code = code
        self.words = words


def amount(key: str, value: str) -> int:
    """A resource as a number; sizes in MiB. Raises RefusalError for what PBS does not take."""
    if key == "mem":
        match = _SIZE.fullmatch(value)
        if match is None:
            raise RefusalError(166, "qsub: Illegal attribute or resource value select.mem\n")
        return int(int(match[1]) * _UNITS[match[2].lower()])
    return int(value)


def read_resources(values: list[str]) -> dict[str, str]:
    resources: dict[str, str] = {}
    for value in values:
        for part in [value] if value.startswith(("select=", "place=")) else value.split(","):
            key, _, text = part.partition("=")
            if key not in RESOURCES:
                raise RefusalError(187, f"qsub: Unknown resource Resource_List.{key}\n")
            resources[key] = text
    mixed = next(
        (key for key in ("ncpus", "ngpus", "mem") if key in resources and "select" in resources),
        None,
    )
    if mixed:
        raise RefusalError(
            5,
            f'qsub: "-lresource=" cannot be used with "select" or "place", resource is: {mixed}\n',
        )
    return resources


def read_chunks(resources: dict[str, str]) -> list[tuple[int, dict[str, str]]]:
    if "select" not in resources:
        return [
            (
                1,
                {
                    key: value
                    for key, value in resources.items()
                    if key in {"ncpus", "ngpus", "mem"}
                },
            )
        ]
    chunks = []
    for text in resources["select"].split("+"):
        first, *parts = text.split(":")
        count = int(first) if first.isdigit() else 1
        if count < 1:
            raise RefusalError(166, "qsub: Illegal attribute or resource value\n")
        asked = {}
        for part in parts if first.isdigit() else [first, *parts]:
            key, equals, value = part.partition("=")
            if not equals:
                raise RefusalError(
                    166, "qsub: Illegal attribute or resource value Resource_List.select\n"
                )
            if key not in RESOURCES:
                raise RefusalError(187, f"qsub: Unknown resource: {key}\n")
            amount(key, value) if key in {"ncpus", "ngpus", "mem"} else None
            asked[key] = value
        chunks.append((count, asked))
    return chunks


def read_seconds(text: str) -> int:
    fields = text.split(":")
    if len(fields) > 3 or not all(field.isdigit() for field in fields):
        raise RefusalError(
            166, "qsub: Illegal attribute or resource value Resource_List.walltime\n"
        )
    return sum(int(field) * 60**power for power, field in enumerate(reversed(fields)))


def place(
    job: Job, others: Iterable[Job], config: Config, down: set[int]
) -> tuple[list[tuple[int, dict[str, int]]] | None, str]:
    """Nodes for a job's chunks beside those of `others`, or None and what is short."""
    limits = {"ncpus": config.ncpus, "ngpus": config.ngpus, "mem": config.mem_mb}
    free = {node: dict(limits) for node in range(config.nodes) if node not in down}
    for other in others:
        if other.state in {"R", "E"}:
            for node, amounts in other.where:
                for key, value in amounts.items():
                    if node in free and key in limits:
                        free[node][key] -= value
    where: list[tuple[int, dict[str, int]]] = []
    short = "host"
    scatter = "scatter" in job.resources.get("place", "")
    for count, asked in job.chunks:
        amounts = {"ncpus": 1} | {
            key: amount(key, value) for key, value in asked.items() if key in limits
        }
        for _ in range(count):
            taken = {node for node, _ in where} if scatter else set()
            found = None
            for node, left in free.items():
                lacking = next((key for key, value in amounts.items() if left[key] < value), None)
                if lacking is None and node not in taken:
                    found = node
                    break
                short = lacking or short
            if found is None:
                return None, short
            for key, value in amounts.items():
                free[found][key] -= value
            where.append((found, amounts))
    return where, ""
