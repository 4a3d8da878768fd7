"""Whatever a file argument of a command names, the answer is one line, not a traceback."""

import os
import socket
from collections.abc import Callable
from pathlib import Path

import click
import pytest

from support.commands import COMMANDS, status

ARGUMENTS = [
    (name, parameter.name or "")
    for name, command in sorted(COMMANDS.items())
    for parameter in command.params
    if isinstance(parameter.type, click.Path)
]
KINDS: dict[str, Callable[[Path], object]] = {
    "loop": lambda path: path.symlink_to(path.name),
    "dangling": lambda path: path.symlink_to("nowhere"),
    "folder": Path.mkdir,
    "pipe": os.mkfifo,
    "socket": lambda path: socket.socket(socket.AF_UNIX).bind(str(path)),
    "text": lambda path: path.write_text("neither JSON nor anything else\n", encoding="utf-8"),
    "empty": Path.touch,
    "a_file/below": lambda path: path.parent.touch(),
    300 * "x": str,
    "no_text\udc80": str,
}


def call(name: str, wrong: str, odd: str) -> int | str | None:
    """Call a command on which all is right but one path; return what it exits with."""
    options, places = ["--once"] if name == "watch" else [], []
    for parameter in COMMANDS[name].params:
        if parameter.name == wrong:
            value = odd
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
    return status(name, *options, "--", *places)


@pytest.mark.workflow
@pytest.mark.parametrize(("name", "wrong"), [pair for pair in ARGUMENTS if pair[0] != "embed"])
def test_a_path_that_is_no_use(
    name: str,
    wrong: str,
    short_tmp: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    for number, (odd, make) in enumerate(KINDS.items()):
        (short_tmp / str(number) / "there").mkdir(parents=True)
        monkeypatch.chdir(short_tmp / str(number))
        make(Path(odd))
        answer = str(call(name, wrong, odd))
        assert answer in ("0", "1", "3"), (odd, answer)
        captured = capfd.readouterr()
        assert "Traceback" not in captured.err + captured.out


def test_a_path_for_embed_that_is_no_use(
    short_tmp: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Commands that would start a worker are left out: it takes seconds."""
    monkeypatch.chdir(short_tmp)
    Path("there").mkdir()
    os.mkfifo("pipe")
    for wrong in (wrong for name, wrong in ARGUMENTS if name == "embed"):
        assert call("embed", wrong, "no_text\udc80") == 1
        assert "this name is not UTF-8" in capsys.readouterr().err
    for wrong in ("bucket", "weights"):
        answer = f"{call('embed', wrong, 'pipe')} {capsys.readouterr().err}"
        assert "pipe: " in answer and "Traceback" not in answer
