"""Whatever a file argument of a command names, the answer is one line, not a traceback."""

import os
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pytest

from plm_embed.cli.main import main
from support.commands import COMMANDS


def loop(path: Path) -> Path:
    path.symlink_to(path.name)
    return path


def dangling(path: Path) -> Path:
    path.symlink_to("nowhere")
    return path


def folder(path: Path) -> Path:
    path.mkdir()
    return path


def pipe(path: Path) -> Path:
    os.mkfifo(path)
    return path


def a_socket(path: Path) -> Path:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))
    return path


def text(path: Path) -> Path:
    path.write_text("neither JSON nor anything else\n", encoding="utf-8")
    return path


def empty(path: Path) -> Path:
    path.touch()
    return path


def below_a_file(path: Path) -> Path:
    path.touch()
    return path / "below"


def too_long(path: Path) -> Path:
    return path.with_name("x" * 300)


def with_nul(path: Path) -> Path:
    return Path(f"{path}\0")


def no_text(path: Path) -> Path:
    return Path(f"{path}\udc80")


KINDS: list[Callable[[Path], Path]] = [
    *(
        loop,
        dangling,
        folder,
        pipe,
        a_socket,
        text,
        empty,
        below_a_file,
        too_long,
        with_nul,
        no_text,
    ),
]


def arguments() -> Iterator[tuple[str, str]]:
    """Every command with each of its parameters that is a path."""
    for name, command in sorted(COMMANDS.items()):
        for parameter in command.params:
            if isinstance(parameter.type, click.Path):
                yield name, parameter.name or ""


def call(name: str, wrong: str, odd: Path) -> list[str]:
    """A command line on which all is right but one path."""
    options, places = ["plm-embed", name, *(["--once"] if name == "watch" else [])], []
    for parameter in COMMANDS[name].params:
        if parameter.name == wrong:
            value = str(odd)
        elif isinstance(parameter.type, click.Path):
            value = "there" if parameter.type.exists else "new"
        elif parameter.required:
            value = {"model": "esm2_t3_untrained", "to": "npy"}.get(parameter.name or "", "0")
        else:
            continue
        if isinstance(parameter, click.Argument):
            places.append(value)
        else:
            options += [parameter.opts[0], value]
    return [*options, "--", *places]


@pytest.mark.workflow
@pytest.mark.parametrize(("name", "wrong"), [pair for pair in arguments() if pair[0] != "embed"])
def test_a_path_that_is_no_use(
    name: str,
    wrong: str,
    short_tmp: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    for kind in KINDS:
        folder = short_tmp / kind.__name__
        (folder / "there").mkdir(parents=True)
        monkeypatch.chdir(folder)
        monkeypatch.setattr(sys, "argv", call(name, wrong, kind(folder / "odd")))
        said = "0"
        try:
            main()
        except SystemExit as stopped:
            said = str(stopped.code)
        assert said.startswith(("plm-embed: error: ", "Usage: ", "Invalid value")) or said in (
            "0",
            "1",
            "3",
        ), (kind, said)
        captured = capfd.readouterr()
        assert "Traceback" not in captured.err + captured.out


def test_a_path_for_embed_that_is_no_use(
    short_tmp: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What would start a worker is left out: it takes seconds."""
    monkeypatch.chdir(short_tmp)
    Path("there").mkdir()
    for wrong in (wrong for name, wrong in arguments() if name == "embed"):
        for odd in (pipe(Path(f"pipe_{wrong}")), with_nul(Path("x")), no_text(Path("x"))):
            monkeypatch.setattr(sys, "argv", call("embed", wrong, odd))
            if odd.is_fifo() and wrong in ("store", "record", "share"):
                continue
            with pytest.raises(SystemExit) as ended:
                main()
            words = f"{ended.value.code}\n{capsys.readouterr().err}"
            assert "this name is not UTF-8" in words or "is a pipe or a device" in words
