"""The processor, without torch."""

import platform
from pathlib import Path


def cpu_name() -> str:
    """As the system calls it."""
    return _said("model name") or platform.processor() or platform.machine()


def cpu_features() -> str:
    """What code that is compiled for this processor depends on: its name and its instructions."""
    return f"{cpu_name()}: {_said('flags')}"


def _said(name: str) -> str:
    """What Linux says of the first processor; empty if it says nothing."""
    try:
        with Path("/proc/cpuinfo").open(encoding="utf-8") as lines:
            return next(line.split(":", 1)[1].strip() for line in lines if line.startswith(name))
    except (OSError, StopIteration):
        return ""
