"""Dataclasses from plain values: what fits comes back as it was, and of what does not the place is
named.
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest

from plm_embed.typed_json import IF_KNOWN, UnfitError, from_json, from_plain, to_plain


@dataclass(frozen=True)
class Part:
    name: str
    rows: int


@dataclass(frozen=True, kw_only=True)
class Record:
    schema_version: Literal[1] = 1
    parts: tuple[Part, ...]
    speed: float | None
    sound: bool = True
    gpu: str | None = field(default=None, metadata=IF_KNOWN)
    lengths: Counter[int] = field(default_factory=Counter)
    files: dict[str, Part] = field(default_factory=dict)


WHOLE = Record(
    parts=(Part("a", 1), Part("b", 2)),
    speed=None,
    gpu="0",
    lengths=Counter({30: 2}),
    files={"c": Part("c", 3)},
)
PLAIN = {
    "schema_version": 1,
    "parts": [{"name": "a", "rows": 1}, {"name": "b", "rows": 2}],
    "speed": None,
    "sound": True,
    "gpu": "0",
    "lengths": {"30": 2},
    "files": {"c": {"name": "c", "rows": 3}},
}


def test_what_fits_comes_back_as_it_was() -> None:
    assert to_plain(WHOLE) == PLAIN | {"lengths": {30: 2}}  # which JSON writes as text
    assert from_plain(Record, PLAIN) == WHOLE
    assert isinstance(from_plain(Record, PLAIN).lengths, Counter)


def test_a_field_that_is_not_known_is_left_out_and_one_with_a_default_may_be_missing() -> None:
    least = Record(parts=(), speed=1.5)
    assert "gpu" not in to_plain(least)
    assert from_plain(Record, {"parts": [], "speed": 1.5}) == least
    assert from_plain(Record, {"parts": [], "speed": 2}).speed == 2


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"parts": None}, "parts: not a list"),
        ({"parts": [{"name": "a"}]}, "parts.0.rows: missing"),
        ({"parts": [{"name": "a", "rows": 1, "size": 2}]}, "parts.0.size: not known"),
        ({"parts": [[]]}, "parts.0: not an object with keys"),
        ({"parts": [{"name": "a", "rows": 1.0}]}, "parts.0.rows: 1.0 is not a whole number"),
        ({"parts": [{"name": "a", "rows": True}]}, "parts.0.rows: True is not a whole number"),
        ({"speed": "fast"}, "speed: 'fast' is not a number"),
        ({"sound": 1}, "sound: 1 is not true or false"),
        ({"schema_version": 2}, "schema_version: 2 is none of 1"),
        ({"schema_version": True}, "schema_version: True is none of 1"),
        ({"lengths": {"long": 1}}, "lengths: 'long' is not a whole number"),
        ({"lengths": {"30": "2"}}, "lengths.30: '2' is not a whole number"),
        ({"files": []}, "files: not an object with keys"),
        ({"files": {"c": {}}}, "files.c.name: missing"),
        ({"age": 3}, "age: not known"),
    ],
)
def test_what_does_not_fit_is_named_with_its_place(change: dict[str, Any], words: str) -> None:
    with pytest.raises(UnfitError) as error:
        from_plain(Record, PLAIN | change)
    assert str(error.value).startswith(words)


@pytest.mark.parametrize("text", ["", "{", "[]", "7", "null", "[" * 100_000, b"\xff\x00"])
def test_other_text_is_a_value_error(text: str | bytes) -> None:
    with pytest.raises(ValueError):
        from_json(Record, text)
