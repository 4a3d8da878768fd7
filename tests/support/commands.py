"""The commands of the command line by name, loaded, and calls of the program in this process."""

import sys

import click
import pytest

from plm_embed.cli.main import group, main

_CONTEXT = click.Context(group)
COMMANDS: dict[str, click.Command] = {
    name: command
    for name in group.list_commands(_CONTEXT)
    if (command := group.get_command(_CONTEXT, name))
}


def status(*words: str) -> int | str | None:
    """Run `plm-embed` with these words; return its exit status."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["plm-embed", *words])
        patch.setattr(sys, "meta_path", [*sys.meta_path])
        try:
            main()
        except SystemExit as end:
            return end.code
    return 0
