"""The commands of the command line by name, loaded."""

import click

from plm_embed.cli.main import group

_CONTEXT = click.Context(group)
COMMANDS: dict[str, click.Command] = {
    name: command
    for name in group.list_commands(_CONTEXT)
    if (command := group.get_command(_CONTEXT, name))
}
