"""Parts that commands share: kinds of paths and of options, and the first line of a log."""

import re
import shlex
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, get_args

import click

from plm_embed import startup
from plm_embed.fingerprint import Strand
from plm_embed.io.terminal import printable
from plm_embed.program import program


def is_text(value: object) -> bool:
    """Return whether every system can hold a path with this text."""
    return not re.search("[\0\ud800-\udfff]", str(value))


class _Path(click.Path):
    """A path as text that every system can hold; what has to be there is a file or a folder."""

    def convert(
        self, value: Any, param: click.Parameter | None, context: click.Context | None
    ) -> Any:
        if not is_text(value):
            self.fail(f"{value}: is no text in UTF-8; rename it", param, context)
        path = Path(str(super().convert(value, param, context)))
        if self.exists and not (path.is_file() or path.is_dir()):
            self.fail(f"{path}: is a pipe or a device, not a file", param, context)
        return path


class _Weights(_Path):
    """The folder of prepared weights, by itself or by a campaign's record: then it is made anew
    where it is gone.
    """

    def __init__(self) -> None:
        super().__init__(exists=True)

    def convert(
        self, value: Any, param: click.Parameter | None, context: click.Context | None
    ) -> Any:
        from plm_embed.inference.weights import prepared_folder

        return prepared_folder(super().convert(value, param, context))


PATH = _Path()
EXISTING = _Path(exists=True)
WEIGHTS = partial(
    click.option,
    "--weights",
    "weights_folder",
    type=_Weights(),
    help="Campaign's record (weights.json), or folder, made by `plm-embed weights`.",
)
"""An option of several commands, of some of them required."""
ID_COLUMN = click.option(
    "--id-column", default="id", help="Column with the record id (tables only)."
)
SEQUENCE_COLUMN = click.option(
    "--sequence-column", default="sequence", help="Column with the residues (tables only)."
)
STRAND = click.option(
    "--strand",
    default="as_given",
    type=click.Choice(get_args(Strand)),
    help="Of DNA; canonical: a sequence and its reverse complement are one.",
)


class Columnar(click.Command):
    """A command that makes columns, and needs no pandas for it."""

    def invoke(self, context: click.Context) -> Any:
        startup.keep_pandas_out()
        return super().invoke(context)


class Step(click.Command):
    """A step of the workflow: the first line of its log is the command that repeats it. Who typed
    the command sees it anyway.
    """

    def invoke(self, context: click.Context) -> Any:
        if not sys.stderr.isatty():
            print("#", program(), printable(shlex.join(sys.argv[1:])), file=sys.stderr)
        return super().invoke(context)


class ColumnarStep(Step, Columnar):
    """Both."""


Command = TypeVar("Command", bound=Callable[..., Any])


class Workers(click.ParamType[int]):
    """A number of workers; `all` is 0, which stands for one per visible GPU."""

    name = "workers"

    def convert(
        self, value: Any, param: click.Parameter | None, context: click.Context | None
    ) -> int:
        number: int = 0 if value == "all" else click.IntRange(0).convert(value, param, context)
        return number


def campaign_options(command: Command, required: bool = True) -> Command:
    """The places of a campaign that both gather and validate need."""
    for option in (
        click.option(
            "--records",
            required=required,
            type=PATH,
            help="records.parquet: what became of every input record.",
        ),
        click.option("--index", required=required, type=PATH, help="Parquet index of the master."),
        click.option("--master", required=required, type=PATH, help="Master HDF5 file."),
        click.option("--store", required=required, type=PATH, help="Store of vectors."),
        click.option(
            "--embedded",
            required=required,
            type=PATH,
            help="Folder with the completion records.",
        ),
        click.option(
            "--sequences",
            required=required,
            type=EXISTING,
            help="Folder made by `plm-embed deduplicate`.",
        ),
    ):
        command = option(command)
    return command
