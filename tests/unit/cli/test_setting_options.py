from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import click
import pytest
from click.testing import CliRunner

from plm_embed.cli.setting_options import settings_of
from plm_embed.setting import Setting


@dataclass(frozen=True)
class Inner:
    depth: Annotated[int, Setting("How deep.", least=0, most=9)] = 3


@dataclass(frozen=True)
class Outer:
    sides: Annotated[tuple[int, ...], Setting("Which.", option="side")] = (1,)
    inner: Inner = Inner()
    metal: Annotated[Literal["any", "tin"], Setting("Of what.")] = "any"
    hours: Annotated[float, Setting("How long.", above=0)] = 1.5
    note: Annotated[str, Setting("What else.")] = ""
    places: Annotated[tuple[Path, ...], Setting("Where.")] = ()


BETWEEN = click.option("--between", is_flag=True, help="Not a setting.")


@click.command()
@click.argument("name")
@settings_of("outer", Outer, without=["note"], before={"metal": [BETWEEN]})
def step(*, name: str, outer: Outer, between: bool) -> None:
    """Do a step."""
    print(name, outer, between)


def run(*words: str) -> tuple[int, str]:
    done = CliRunner().invoke(step, words)
    return done.exit_code, done.output


def test_a_command_gets_the_dataclass() -> None:
    assert run("x") == (0, f"x {Outer()} False\n")
    made = Outer((2, 3), Inner(0), "tin", 0.1, places=(Path(),))
    words = ("--side=2", "--side", "3", "--depth=0", "--metal=tin", "--hours=0.1", "--places=.")
    assert run("x", *words, "--between") == (0, f"x {made} True\n")


def test_options_stand_in_the_order_of_the_fields() -> None:
    names = ["name", "side", "depth", "between", "metal", "hours", "places"]
    assert [one.name for one in step.params] == names


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("--depth=10", "10 is not in the range 0<=x<=9"),
        ("--depth=1.5", "'1.5' is not a valid integer range"),
        ("--hours=0", "0.0 is not in the range x>0"),
        ("--metal=lead", "'lead' is not one of 'any', 'tin'"),
        ("--places=absent", "'absent' does not exist"),
        ("--note=x", "No such option '--note'"),
    ],
)
def test_what_a_setting_may_be_is_checked(wrong: str, said: str) -> None:
    code, output = run("x", wrong)
    assert code == 2 and said in output
