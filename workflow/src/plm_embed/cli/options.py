"""Options and types of arguments that several commands share."""

import json
import math
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, get_args

import click
import msgspec

from plm_embed.inference.settings import DeviceName
from plm_embed.io.terminal import printable
from plm_embed.startup import program

Command = TypeVar("Command", bound=Callable[..., Any])


class _Path(click.Path):
    """A path as text that every system can hold; what lies there is a file or a folder."""

    def convert(
        self, value: Any, param: click.Parameter | None, context: click.Context | None
    ) -> Any:
        if re.search("[\0\ud800-\udfff]", str(value)):
            self.fail(f"{value}: this name is not UTF-8; rename it", param, context)
        path = Path(str(super().convert(value, param, context)))
        if os.path.exists(path) and not (path.is_file() or path.is_dir()):  # noqa: PTH110
            self.fail(f"{path}: is a pipe or a device, not a file", param, context)
        return path


class Amount(click.FloatRange):
    """A number that is not NaN, which no bound refuses."""

    def convert(
        self, value: Any, param: click.Parameter | None, context: click.Context | None
    ) -> Any:
        number = super().convert(value, param, context)
        if math.isnan(number):
            self.fail(f"{value} is not a number", param, context)
        return number


class Json(click.ParamType[Any]):
    """JSON of a dataclass, or of a list of them: a block of the configuration.

    leave_out: fields that other options set.
    """

    name = "json"

    def __init__(self, kind: Any, leave_out: Iterable[str] = ()) -> None:
        self._kind, self._leave_out = kind, leave_out

    def convert(
        self, value: Any, param: click.Parameter | None, context: click.Context | None
    ) -> Any:
        if not isinstance(value, str):
            return value
        try:
            plain = json.loads(value)
            block = msgspec.convert(plain, self._kind)
        except ValueError as error:  # of either library
            self.fail(f"{value}: {error}", param, context)
        known = msgspec.to_builtins(block)
        for name in self._leave_out:
            known.pop(name, None)
        for name in _unknown(plain, known):
            self.fail(f"{value}: there is no key {name} here", param, context)
        return block


def _unknown(plain: Any, block: Any) -> Iterator[str]:
    """Yield the keys of a value that the block made of it does not have in the same place."""
    if isinstance(plain, dict):
        yield from plain.keys() - block.keys()
        pairs = [(plain[key], block[key]) for key in plain.keys() & block.keys()]
    else:
        pairs = list(zip(plain, block, strict=True)) if isinstance(plain, list) else []
    for value, part in pairs:
        yield from _unknown(value, part)


PATH, EXISTING, FOLDER = _Path(), _Path(exists=True), _Path(file_okay=False)
AMOUNT = Amount(0)
COUNT, NUMBER = click.IntRange(1), click.IntRange(0)


def choice(*names: str, words: Sequence[str], help: str) -> Callable[[Command], Command]:
    """Return an option that is one of these words, by default the first."""
    return click.option(*names, default=words[0], type=click.Choice(words), help=help)


required = partial(click.option, required=True)
several = partial(click.option, multiple=True)
RESULTS = click.argument("results", type=EXISTING, default=Path("results"))
PROFILE = click.option(
    "--profile", default="", help="Where jobs run: slurm, pbs ..., or a folder; else here."
)
WEIGHTS = required(
    "--weights",
    type=EXISTING,
    help="A campaign's weights.json, or the folder that `plm-embed weights` made.",
)
ID_COLUMN = click.option("--id-column", default="id", help="Column with the ids (tables only).")
SEQUENCE_COLUMN = click.option(
    "--sequence-column", default="sequence", help="Column with the residues (tables only)."
)
DEVICE = choice(
    "--device", words=get_args(DeviceName), help="auto: GPUs where there are any, else the CPU."
)
COLUMN_REMEDIES = {
    **{
        name: f"name yours: --{name}-column {{}}"
        for name in ("id", "sequence", "structure", "partner")
    },
    "keep": "name yours: --keep {}",
}
"""Remedies of `Table` for options that name columns."""


def log_command() -> None:
    """Print the command that repeats this step, as the first line of its log."""
    if not sys.stderr.isatty():
        print("#", program(), printable(shlex.join(sys.argv[1:])), file=sys.stderr)
