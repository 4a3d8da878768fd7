"""What the commands have in common: kinds of paths, and the first line of a step's log."""

import re
import shlex
import sys
from pathlib import Path
from typing import Any

import click

from plm_embed.terminal import printable


class _Path(click.Path):
    """A path as text that every system can hold; what has to be there is a file or a folder."""

    def convert(self, value: Any, param: click.Parameter | None, context: click.Context | None) -> Any:
        if re.search("[\0\ud800-\udfff]", str(value)):
            self.fail(f"{value}: is no text in UTF-8; rename it", param, context)
        path = Path(str(super().convert(value, param, context)))
        if self.exists and not (path.is_file() or path.is_dir()):
            self.fail(f"{path}: is a pipe or a device, not a file", param, context)
        return path


FOLDER = _Path()
EXISTING = _Path(exists=True)


class Step(click.Command):
    """A step of the workflow: the first line of its log is the command that repeats it."""

    def invoke(self, context: click.Context) -> Any:
        print("#", printable(shlex.join(["plm-embed", *sys.argv[1:]])), file=sys.stderr)
        return super().invoke(context)
