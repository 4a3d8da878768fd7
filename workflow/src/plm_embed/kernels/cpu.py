"""The processor, without torch."""

import platform
from pathlib import Path


def cpu_name() -> str:
    """Return the name of the processor."""
    try:
        with Path("/proc/cpuinfo").open(encoding="utf-8") as lines:
            return next(
                line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")
            )
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
