"""What the commands have in common: kinds of paths, and the first line of a step's log."""

import shlex
import sys
from pathlib import Path
from typing import Any

import click

from plm_embed.terminal import printable

FOLDER = click.Path(path_type=Path)
EXISTING = click.Path(exists=True, path_type=Path)


class Step(click.Command):
    """A step of the workflow: the first line of its log is the command that repeats it."""

    def invoke(self, context: click.Context) -> Any:
        print("#", printable(shlex.join(["plm-embed", *sys.argv[1:]])), file=sys.stderr)
        return super().invoke(context)
