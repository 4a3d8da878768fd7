"""Checks of a campaign: each a function with a name and a meaning, and the problems they report."""

from collections.abc import Callable
from dataclasses import replace
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
    """Note a problem, with the remedy."""

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

    A file that cannot be read is a problem and ends the check, which then returns None; the
    validation goes on. A check that runs piece by piece counts as one.
    """

    def declare(
        function: Callable[Concatenate[Problem, P], R],
    ) -> Callable[Concatenate[Findings, P], R | None]:
        @wraps(function)
        def run(findings: Findings, /, *args: P.args, **kwargs: P.kwargs) -> R | None:
            def problem(text: str, remedy: str = "") -> None:
                outcome = findings.checks[name]
                findings.checks[name] = replace(
                    outcome,
                    result="failed",
                    problems=outcome.problems + 1,
                    listed=(*outcome.listed, text)[:LISTED],
                )
                findings.remedy = findings.remedy or remedy

            findings.checks.setdefault(name, Check(check=name, meaning=meaning))
            try:
                return function(problem, *args, **kwargs)
            except PlmEmbedError as error:
                problem(error.message, error.remedy)
            except (*DAMAGES, LookupError, pa.ArrowException) as error:
                problem(str(error))
            return None

        return run

    return declare
