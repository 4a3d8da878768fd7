"""Options and types of arguments that several commands share."""

import json
import math
import os
import re
import shlex
import sys
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, get_args

import click
import msgspec

from plm_embed.inference.settings import DeviceName
from plm_embed.io.terminal import printable


class _Path(click.Path):
    """A path as text that every system can hold; what lies there is a file or a folder."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if re.search("[\0\ud800-\udfff]", str(value)):
            self.fail(f"{value}: this name is not UTF-8; rename it", param, ctx)
        path = Path(str(super().convert(value, param, ctx)))
        if os.path.exists(path) and not (path.is_file() or path.is_dir()):  # noqa: PTH110
            self.fail(f"{path}: is a pipe or a device, not a file", param, ctx)
        return path


class Amount(click.FloatRange):
    """A number that is not NaN, which no bound refuses."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if math.isnan(number):
            self.fail(f"{value} is not a number", param, ctx)
        return number


def json_block(
    kind: Any, _: click.Context, __: click.Parameter, value: str, leave_out: Iterable[str] = ()
) -> Any:
    """Return JSON as a dataclass, or a list of them: a block of the configuration. Refuse keys that
    have no place there, and those to leave out, which other options set.
    """
    try:
        plain = json.loads(value)
        block = msgspec.convert(plain, kind)
    except ValueError as error:  # of either library
        raise click.BadParameter(f"{value}: {error}") from None
    known = msgspec.to_builtins(block)
    for name in leave_out:
        known.pop(name, None)
    for name in _unknown(plain, known):
        raise click.BadParameter(f"{value}: there is no key {name} here")
    return block


def _unknown(plain: Any, known: Any) -> Iterator[str]:
    """Yield the keys of a value that the known one does not have in the same place."""
    if isinstance(plain, list):
        for pair in zip(plain, known, strict=True):
            yield from _unknown(*pair)
    if isinstance(plain, dict):
        yield from plain.keys() - known.keys()
        for key in plain.keys() & known.keys():
            yield from _unknown(plain[key], known[key])


PATH, EXISTING, FOLDER = _Path(), _Path(exists=True), _Path(file_okay=False)
AMOUNT, COUNT, NUMBER = Amount(0), click.IntRange(1), click.IntRange(0)

required = partial(click.option, required=True)
several = partial(click.option, multiple=True)
optional = partial(click.option, default="", show_default=False)
"""An option whose help says what happens without it."""

RESULTS = click.argument("results", type=EXISTING, default=Path("results"))
PROFILE = optional("--profile", help="Where jobs run: slurm, pbs ..., or a folder; else here.")
WEIGHTS = required(
    "--weights",
    type=EXISTING,
    help="A campaign's weights.json, or the folder that `plm-embed weights` made.",
)
ID_COLUMN = click.option("--id-column", default="id", help="Column with the ids (tables only).")
SEQUENCE_COLUMN = click.option(
    "--sequence-column", default="sequence", help="Column with the residues (tables only)."
)
DEVICE = click.option(
    "--device",
    default="auto",
    type=click.Choice(get_args(DeviceName)),
    help="auto: GPUs where there are any, else the CPU.",
)
COLUMN_REMEDIES = {
    name: f"name yours: --{name}-column {{}}" for name in ("id", "sequence", "structure", "partner")
} | {"keep": "name yours: --keep {}"}
"""Remedies of `Table` for options that name columns."""


def log_command() -> None:
    """Print the command that repeats this step, as the first line of its log."""
    if not sys.stderr.isatty():
        command = click.get_current_context().command_path
        print("#", command, printable(shlex.join(sys.argv[2:])), file=sys.stderr)
