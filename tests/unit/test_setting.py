from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import pytest

from plm_embed.setting import Setting, as_options, from_config, make, settings

Metal = Literal["tin", "lead"]


@dataclass(frozen=True)
class Inner:
    depth: Annotated[int, Setting("How deep.", key="inner.depth", least=0)] = 3


@dataclass(frozen=True)
class Outer:
    """It has a field that is no setting, and one that no configuration has."""

    metal: Annotated[Literal["any"] | Metal, Setting("Of what.", key="metal")] = "any"
    inner: Inner = field(default_factory=Inner)
    sides: Annotated[tuple[int, ...], Setting("Which.", key="block.sides", option="side")] = (1,)
    places: Annotated[tuple[Path, ...], Setting("Where.", key="places")] = ()
    worker_count: Annotated[int, Setting("How many.")] = 1
    quiet: bool = False


def test_settings_say_what_their_fields_are() -> None:
    found = {one.option: one for one in settings(Outer)}
    assert list(found) == ["metal", "depth", "side", "places", "worker-count"]
    assert found["metal"].words == ["any", "tin", "lead"] and found["depth"].words == []
    assert (found["side"].each, found["side"].repeated, found["side"].default) == (int, True, (1,))
    assert found["worker-count"].parameter == "worker_count"
    assert [one.option for one in settings(Outer, ["inner", "places"])] == ["depth", "places"]


def test_what_is_not_given_has_its_default() -> None:
    assert make(Outer, {}) == from_config(Outer, {}) == Outer()
    assert make(Outer, {"side": (2, 3), "depth": 0}) == Outer(sides=(2, 3), inner=Inner(0))


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"metal": "tin", "inner": {"depth": 0}}, Outer("tin", Inner(0))),
        ({"block": {"sides": [2]}, "places": ["a b"]}, Outer(sides=(2,), places=(Path("a b"),))),
        ({"block": None, "metal": None, "worker_count": 9, "depth": 9}, Outer()),
    ],
)
def test_a_configuration_is_asked_by_key(config: dict[str, object], expected: Outer) -> None:
    assert from_config(Outer, config) == expected


def test_what_is_known_goes_before_the_configuration() -> None:
    assert from_config(Outer, {"metal": "tin"}, metal="lead", worker_count=2) == Outer(
        "lead", worker_count=2
    )


def test_options_are_words_of_a_command() -> None:
    made = Outer(sides=(-1, 2), places=(Path("a b"),))
    assert as_options(made) == [
        *("--metal=any", "--depth=3", "--side=-1", "--side=2", "--places=a b", "--worker-count=1"),
    ]
    assert as_options(made, {"inner"}) == ["--depth=3"]
