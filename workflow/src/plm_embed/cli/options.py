"""Options and types of arguments that several commands share."""

import re
import shlex
import sys
from functools import partial
from pathlib import Path
from typing import Any, get_args

import click

from plm_embed.fingerprint import ComputeDtype, Strand
from plm_embed.io.terminal import printable
from plm_embed.program import program


class _Path(click.Path):
    """A path as text that every system can hold; one that must exist is a file or a folder."""

    def convert(
        self, value: Any, param: click.Parameter | None, context: click.Context | None
    ) -> Any:
        if re.search("[\0\ud800-\udfff]", str(value)):
            self.fail(f"{value}: this name is not UTF-8; rename it", param, context)
        path = Path(str(super().convert(value, param, context)))
        if self.exists and not (path.is_file() or path.is_dir()):
            self.fail(f"{path}: is a pipe or a device, not a file", param, context)
        return path


PATH, EXISTING = _Path(), _Path(exists=True)
DTYPE = click.Choice(["auto", *get_args(ComputeDtype)])
DEVICE = click.Choice(["auto", "cpu", "cuda"])

required = partial(click.option, required=True)
several = partial(click.option, multiple=True)
WEIGHTS = partial(
    click.option,
    "--weights",
    type=EXISTING,
    help="A campaign's weights.json, or the folder that `plm-embed weights` made.",
)
ID_COLUMN = click.option("--id-column", default="id", help="Column with the ids (tables only).")
SEQUENCE_COLUMN = click.option(
    "--sequence-column", default="sequence", help="Column with the residues (tables only)."
)
STRAND = click.option(
    "--strand",
    default="as_given",
    type=click.Choice(get_args(Strand)),
    help="DNA only. canonical: treat a sequence and its reverse complement as one.",
)


def log_command() -> None:
    """Print the command that repeats this step, as the first line of its log."""
    if not sys.stderr.isatty():
        print("#", program(), printable(shlex.join(sys.argv[1:])), file=sys.stderr)
