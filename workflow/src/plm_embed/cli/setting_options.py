"""Options of a command from the settings of a dataclass, which the command gets in one piece."""

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import wraps
from pathlib import Path
from typing import Any

import click

from plm_embed.cli.options import EXISTING
from plm_embed.setting import Setting, make, settings

Command = Callable[..., None]
Decorator = Callable[[Command], Command]


def settings_of(
    name: str,
    kind: type[Any],
    *,
    only: Sequence[str] | None = None,
    without: Collection[str] = (),
    before: Mapping[str, Sequence[Decorator]] | None = None,
) -> Decorator:
    """Give a command an option for each setting of `kind`, and the dataclass as parameter `name`.

    only: names of fields, of which the others are left out. without: parameters that keep their
    defaults. before: other options that --help lists before one of these.
    """
    mine = [one for one in settings(kind, only) if one.parameter not in without]

    def decorate(command: Command) -> Command:
        @wraps(command)
        def call(**given: Any) -> None:
            values = {one.parameter: given.pop(one.parameter) for one in mine}
            command(**given, **{name: make(kind, values)})

        with_options: Command = call
        for one in reversed(mine):
            for add in (_option(one), *reversed((before or {}).get(one.parameter, ()))):
                with_options = add(with_options)
        return with_options

    return decorate


def _option(one: Setting) -> Decorator:
    return click.option(
        f"--{one.option}",
        multiple=one.repeated,
        type=_type(one),
        default=one.default,
        help=one.help,
    )


def _type(one: Setting) -> Any:
    """What click checks values by."""
    if one.words:
        return click.Choice(one.words)
    if one.least is None and one.above is None:
        return EXISTING if one.each is Path else one.each
    if one.each is int:
        return click.IntRange(one.least, one.most)
    least, above = one.least, one.above
    return click.FloatRange(above if least is None else least, one.most, min_open=least is None)
