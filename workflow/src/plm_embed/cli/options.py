"""Options and types of arguments that several commands share."""

import math
import os
import re
import shlex
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, get_args

import click

from plm_embed.fingerprint import (
    SCORES,
    ComputeDtype,
    LongPolicy,
    LongSequences,
    Pooling,
    StorageDtype,
    Strand,
)
from plm_embed.inference.settings import DeviceName, Settings
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


class _Amount(click.FloatRange):
    """A number that is not NaN, which no bound refuses."""

    def convert(
        self, value: Any, param: click.Parameter | None, context: click.Context | None
    ) -> Any:
        number = super().convert(value, param, context)
        if math.isnan(number):
            self.fail(f"{value} is not a number", param, context)
        return number


PATH, EXISTING = _Path(), _Path(exists=True)
AMOUNT = _Amount(0)
DTYPE = click.Choice(["auto", *get_args(ComputeDtype)])
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
_KINDS: dict[str, tuple[Any, str]] = {
    "layers": (int, "0 to the number of layers, -1: last (repeatable)."),
    "pooling": (click.Choice(get_args(Pooling)), "The vectors to store (repeatable)."),
    "scores": (click.Choice(SCORES), "Scores to store beside them (repeatable)."),
    "compute_dtype": (DTYPE, "auto: bfloat16 from compute capability 8.0 on, else float32."),
    "storage_dtype": (click.Choice(get_args(StorageDtype)), "Number format on disk."),
    "strand": (
        click.Choice(get_args(Strand)),
        "DNA only. canonical: treat a sequence and its reverse complement as one.",
    ),
    "policy": (click.Choice(get_args(LongPolicy)), "The policy above --max-residues."),
    "max_residues": (NUMBER, "Longest piece for the model; 0: no limit."),
    "overlap": (NUMBER, "Residues that neighboring windows share."),
    "linker": (str, "Residues between the chains of pairs (deduplicate --alphabet protein_pair)."),
    "device": (click.Choice(get_args(DeviceName)), "auto: GPUs where there are any, else the CPU."),
    "threads": (COUNT, "CPU threads, shared by the workers."),
    "toks_per_batch": (NUMBER, "Tokens per batch; 0: the device's default."),
    "scratch": (str, "Node-local folder; auto: find one; '': write beside the store."),
    "flush_minutes": (_Amount(0, min_open=True), "A kill loses at most this much work."),
    "per_residue_limit_gb": (AMOUNT, "Refuse a bucket with more per-residue output."),
}
"""Settings with their types and meanings; `policy` is that of long sequences."""
_DEFAULTS = vars(Settings()) | vars(LongSequences())
SETTINGS = {
    name: click.option(
        "--long-sequences" if name == "policy" else f"--{name.replace('_', '-')}",
        name,
        default=_DEFAULTS[name],
        multiple=isinstance(_DEFAULTS[name], tuple),
        type=kind,
        help=text,
    )
    for name, (kind, text) in _KINDS.items()
}
"""An option for each setting."""
COLUMN_REMEDIES = {
    **{
        name: f"name yours: --{name}-column {{}}"
        for name in ("id", "sequence", "structure", "partner")
    },
    "keep": "name yours: --keep {}",
}
"""Remedies of `Table` for options that name columns."""


def all_settings(command: Command) -> Command:
    """Add the options of all settings."""
    for option in reversed(SETTINGS.values()):
        command = option(command)
    return command


def log_command() -> None:
    """Print the command that repeats this step, as the first line of its log."""
    if not sys.stderr.isatty():
        print("#", program(), printable(shlex.join(sys.argv[1:])), file=sys.stderr)
