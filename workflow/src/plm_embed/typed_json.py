"""Dataclasses to plain JSON values and back: what a file holds is checked once, where it is read.

A file on disk has one dataclass, in the module that writes and reads it. Its fields may be text,
numbers, truth values, None, Literal, other dataclasses, and tuples, dictionaries, Counters and
unions of these.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from types import MappingProxyType, NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")
Read = Callable[[Any], Any]

IF_KNOWN: Mapping[str, bool] = MappingProxyType({"if_known": True})
"""Metadata of a field that is left out of the file while it has its default: None, or what was so
before there was a choice.
"""

_WORDS: dict[Any, tuple[tuple[type, ...], str]] = {
    str: ((str,), "text"),
    int: ((int,), "a whole number"),
    float: ((int, float), "a number"),
    bool: ((bool,), "true or false"),
    NoneType: ((NoneType,), "null"),
}


class UnfitError(ValueError):
    """A value that does not fit its type: `where` in the file, by keys, and what is wrong there."""

    def __init__(self, what: str, where: tuple[str, ...] = ()) -> None:
        super().__init__(f"{'.'.join(where)}: {what}" if where else what)
        self.what = what
        self.where = where


def to_plain(value: Any) -> Any:
    """A dataclass as a dictionary, its tuples as lists, and so on: what JSON can hold."""
    if is_dataclass(value):
        return {
            field.name: to_plain(found)
            for field in fields(value)
            if (found := getattr(value, field.name)) != field.default
            or "if_known" not in field.metadata
        }
    if isinstance(value, Mapping):
        return {name: to_plain(found) for name, found in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain(found) for found in value]
    return value


def from_plain(kind: type[T], value: Any) -> T:
    """The dataclass that `to_plain` made a value from.

    UnfitError, with the keys that lead there, when one is missing or not known, or its value is of
    another type. Fields with a default may be missing.
    """
    read: Read = _reader(kind)  # type: ignore[arg-type]
    found: T = read(value)
    return found


def from_json(kind: type[T], text: str | bytes) -> T:
    """`from_plain`, of JSON. ValueError when it is not JSON, UnfitError when it does not fit."""
    try:
        value = json.loads(text)
    except RecursionError:
        raise UnfitError("nested too deeply") from None
    return from_plain(kind, value)


@cache
def _reader(kind: Any) -> Read:
    """What checks and converts values of a type."""
    origin, arguments = get_origin(kind), get_args(kind)
    if is_dataclass(kind):
        return _dataclass(kind)
    if origin is Literal:
        return _literal(arguments)
    if origin in (Union, UnionType):
        return _union(tuple(map(_reader, arguments)))
    if origin is tuple:
        return _sequence(_reader(arguments[0]))
    if origin is dict:
        return _mapping(arguments[0], arguments[1], dict)
    if origin is Counter:
        return _mapping(arguments[0], int, Counter)
    return _scalar(*_WORDS[kind])


def _dataclass(kind: Any) -> Read:
    hints = get_type_hints(kind)
    readers = {field.name: _reader(hints[field.name]) for field in fields(kind)}
    required = {
        field.name
        for field in fields(kind)
        if field.default is MISSING and field.default_factory is MISSING
    }

    def read(value: Any) -> Any:
        if not isinstance(value, dict):
            raise UnfitError("not an object with keys")
        if not required <= value.keys() <= readers.keys():
            for name in sorted(required - value.keys()):
                raise UnfitError("missing", (name,))
            raise UnfitError("not known", (min(value.keys() - readers.keys()),))
        made, name = {}, ""
        try:
            for name, found in value.items():
                made[name] = readers[name](found)
        except UnfitError as error:
            raise UnfitError(error.what, (name, *error.where)) from None
        return kind(**made)

    return read


def _literal(allowed: tuple[Any, ...]) -> Read:
    def read(value: Any) -> Any:
        if not any(value == one and type(value) is type(one) for one in allowed):
            raise UnfitError(f"{value!r} is none of {', '.join(map(repr, allowed))}")
        return value

    return read


def _union(readers: Iterable[Read]) -> Read:
    def read(value: Any) -> Any:
        wrong = []
        for reader in readers:
            try:
                return reader(value)
            except UnfitError as error:
                wrong.append(error)
        raise max(wrong, key=lambda error: len(error.where))  # of the one that fits best

    return read


def _sequence(reader: Read) -> Read:
    def read(value: Any) -> Any:
        if not isinstance(value, list):
            raise UnfitError("not a list")
        return tuple([_at(str(place), reader, found) for place, found in enumerate(value)])

    return read


def _mapping(key: Any, kind: Any, make: Any) -> Read:
    reader = _reader(kind)

    def read(value: Any) -> Any:
        if not isinstance(value, dict):
            raise UnfitError("not an object with keys")
        return make({_key(key, name): _at(name, reader, found) for name, found in value.items()})

    return read


def _key(kind: Any, name: str) -> Any:
    try:
        return kind(name)
    except ValueError:
        raise UnfitError(f"{name!r} is not {_WORDS[kind][1]}") from None


def _scalar(types: tuple[type, ...], words: str) -> Read:
    def read(value: Any) -> Any:
        if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
            raise UnfitError(f"{value!r} is not {words}")
        return value

    return read


def _at(name: str, reader: Read, value: Any) -> Any:
    try:
        return reader(value)
    except UnfitError as error:
        raise UnfitError(error.what, (name, *error.where)) from None
