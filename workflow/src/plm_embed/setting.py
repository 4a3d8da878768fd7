"""A setting: a field of a dataclass that says of itself what people read of it, what it may be, and
where the configuration has it.

    toks_per_batch: Annotated[int, Setting("Tokens per batch.", key="speed.toks_per_batch")] = 0

Options of commands, what rules hand over, and what is taken from the configuration follow from such
fields. A test holds the schema, config.yaml and the manual to them.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cache
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args, get_origin

T = TypeVar("T")


@dataclass(frozen=True)
class Setting:
    """What a field says of itself. `kind` and `default` are filled in: the type and the default of
    the field.
    """

    help: str
    key: str = ""
    """Where the configuration has it, as in `speed.scratch`; empty: nowhere."""
    option: str = ""
    """Of a command, without dashes; empty: as the field is called."""
    least: int | None = None
    above: int | None = None
    most: int | None = None
    kind: Any = None
    default: Any = None

    @property
    def parameter(self) -> str:
        """The option as a name in Python."""
        return self.option.replace("-", "_")

    @property
    def repeated(self) -> bool:
        return get_origin(self.kind) is tuple

    @property
    def each(self) -> Any:
        """The type of one value."""
        return get_args(self.kind)[0] if self.repeated else self.kind

    @property
    def words(self) -> list[str]:
        """The words of a Literal or of a union of them, in their order; none of another type."""
        inside = [get_args(one) or (one,) for one in get_args(self.each)]
        return [word for words in inside for word in words]


def settings(kind: Any, only: Collection[str] | None = None) -> Iterator[Setting]:
    """The settings among the fields of a dataclass, and of dataclasses in it, in their order.

    only: names of fields, of which the others are left out.
    """
    for name, part in _parts(kind).items():
        if only is None or name in only:
            yield from [part] if isinstance(part, Setting) else settings(part)


def make(kind: type[T], given: Mapping[str, Any]) -> T:
    """The dataclass with these values of its settings, by their parameters; the others have their
    defaults.
    """
    found = {}
    for name, part in _parts(kind).items():  # type: ignore[arg-type]
        if not isinstance(part, Setting):
            found[name] = make(part, given)
        elif part.parameter in given:
            found[name] = given[part.parameter]
    return kind(**found)


def from_config(kind: type[T], config: Mapping[str, Any], **known: Any) -> T:
    """The dataclass that a configuration asks for; `known` goes before it, by parameters."""
    given = {}
    for one in settings(kind):
        value: Any = config
        for step in one.key.split("."):
            value = value.get(step) if isinstance(value, Mapping) else None
        if value is not None:
            if one.repeated:
                value = tuple(Path(each) if one.each is Path else each for each in value)
            given[one.parameter] = value
    return make(kind, given | known)


def as_options(made: Any, only: Collection[str] | None = None) -> list[str]:
    """The settings of a dataclass as a command takes them: ['--layers=6', '--layers=12'].

    only: names of fields, of which the others are left out.
    """
    found = []
    kind: Any = type(made)
    for name, part in _parts(kind).items():
        value = getattr(made, name)
        if only is not None and name not in only:
            continue
        if isinstance(part, Setting):
            found += [f"--{part.option}={each}" for each in (value if part.repeated else [value])]
        else:
            found += as_options(value)
    return found


@cache
def _parts(kind: Any) -> dict[str, Any]:
    """Fields by name, each as a setting or as the dataclass that it holds. Others are left out."""
    found: dict[str, Any] = {}
    for one in fields(kind):
        if is_dataclass(one.type):
            found[one.name] = one.type
        elif get_origin(one.type) is Annotated:
            own, said = get_args(one.type)
            option = said.option or one.name.replace("_", "-")
            found[one.name] = replace(said, option=option, kind=own, default=one.default)
    return found
