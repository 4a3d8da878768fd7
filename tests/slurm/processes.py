"""Processes of this machine: names, command lines, what is below one, and their end."""

import contextlib
import os
import signal
from pathlib import Path


def process_name(process: int) -> str:
    """Return a process's name, or nothing when it has ended."""
    try:
        stat = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return ""
    name, state = stat.split("(", 1)[1].rsplit(")", 1)
    return "" if state.split()[0] in "ZX" else name


def descendants(process: int) -> list[int]:
    """Return all processes below this one."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{process}/task").iterdir():
            for child in (task / "children").read_text().split():
                found += [int(child), *descendants(int(child))]
    return found


def command_line(process: int) -> list[str]:
    """Return a process's command line; nothing when it has ended."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{process}/cmdline").read_text().split("\0")
    return []


def kill(processes: list[int]) -> None:
    """SIGKILL for each of some processes; there must be one."""
    assert processes
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
