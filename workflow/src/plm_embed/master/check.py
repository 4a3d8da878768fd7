"""Checks of a campaign: each a function with a name and a meaning, and what they find wrong."""

from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec, Protocol, TypeVar

import pyarrow as pa

from plm_embed.errors import PlmEmbedError
from plm_embed.master.validation_record import Check
from plm_embed.store.hdf5 import DAMAGES

LISTED = 20
"""Problems of a check that are spelled out; the rest is counted."""

P = ParamSpec("P")
R = TypeVar("R")


class Problem(Protocol):
    """Take note of a problem, with the remedy."""

    def __call__(self, text: str, remedy: str = "") -> None: ...


class Findings:
    """Checks in the order in which they ran, each with its problems.

    remedy: of the first problem that has one; all that depends on what it deletes is made again.
    """

    def __init__(self) -> None:
        self.checks: dict[str, Check] = {}
        self.remedy = ""


def check(
    name: str, meaning: str
) -> Callable[[Callable[Concatenate[Problem, P], R]], Callable[Concatenate[Findings, P], R | None]]:
    """Make a function a check, which its caller gives `Findings` in place of a `Problem`.

    A file that cannot be read ends the check, and is a problem, but does not end the validation:
    then the check returns None. A check that runs bucket by bucket counts as one.
    """

    def declare(
        function: Callable[Concatenate[Problem, P], R],
    ) -> Callable[Concatenate[Findings, P], R | None]:
        @wraps(function)
        def run(findings: Findings, /, *args: P.args, **kwargs: P.kwargs) -> R | None:
            def problem(text: str, remedy: str = "") -> None:
                outcome = findings.checks[name]
                listed = (*outcome.listed, text) if len(outcome.listed) < LISTED else outcome.listed
                findings.checks[name] = Check(
                    check=name,
                    meaning=meaning,
                    result="failed",
                    problems=outcome.problems + 1,
                    listed=listed,
                )
                findings.remedy = findings.remedy or remedy

            passed = Check(check=name, meaning=meaning, result="passed", problems=0, listed=())
            findings.checks.setdefault(name, passed)
            try:
                return function(problem, *args, **kwargs)
            except PlmEmbedError as error:
                problem(error.message, error.remedy)
            except (*DAMAGES, LookupError, pa.ArrowException) as error:
                problem(str(error))
            return None

        return run

    return declare


def text(key: bytes) -> str:
    """Return a key as it can be printed, whatever a damaged file says it is."""
    return key.decode("ascii", "backslashreplace")
