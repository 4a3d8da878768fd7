"""What a validation has looked at and what it has found wrong, in words."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pyarrow as pa

from plm_embed.errors import PlmEmbedError
from plm_embed.master.validation_record import Check
from plm_embed.store.hdf5 import DAMAGES

LISTED = 20
"""Problems of one check that are spelled out; the rest is counted."""

Problem = Callable[[str], None]


class Findings:
    """Checks by name, each with its problems."""

    def __init__(self) -> None:
        self._problems: dict[str, list[str]] = {}
        self._count: dict[str, int] = {}

    @contextmanager
    def check(self, name: str) -> Iterator[Problem]:
        """Run one check; the block calls what is yielded with every problem that it finds.

        A file that cannot be read ends the check, and is itself a problem, but does not end the
        validation.
        """
        self._problems.setdefault(name, [])
        self._count.setdefault(name, 0)

        def problem(text: str) -> None:
            self._count[name] += 1
            if len(self._problems[name]) < LISTED:
                self._problems[name].append(text)

        try:
            yield problem
        except (*DAMAGES, PlmEmbedError, LookupError, pa.ArrowException) as error:
            problem(str(error))

    @property
    def problems(self) -> list[str]:
        """One line per problem, each with the name of its check."""
        lines = []
        for name, listed in self._problems.items():
            lines += [f"{name}: {text}" for text in listed]
            if self._count[name] > len(listed):
                lines.append(f"{name}: and {self._count[name] - len(listed):,} more")
        return lines

    def checks(self) -> tuple[Check, ...]:
        """Every check with its result."""
        return tuple(
            Check(
                check=name,
                result="failed" if count else "passed",
                problems=count,
                listed=tuple(self._problems[name]),
            )
            for name, count in self._count.items()
        )


def text(key: bytes) -> str:
    """A key as it can be printed, whatever a damaged file says it is."""
    return key.decode("ascii", "backslashreplace")
