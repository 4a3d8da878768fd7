"""What PBS says of the server that this machine submits to: its queues."""

import re
import subprocess
from collections.abc import Iterator

from plm_embed.errors import ConfigError

PATIENCE = 30.0
"""Seconds in which qstat has to answer."""


def queues() -> list[str]:
    """Names of the queues that take jobs and start them. ConfigError without an answer."""
    try:
        done = subprocess.run(
            ["qstat", "-Q", "-f"], capture_output=True, text=True, check=False, timeout=PATIENCE
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigError(
            f"qstat -Q -f: {error}", key="site", remedy="run it where you submit"
        ) from None
    if done.returncode:
        raise ConfigError(
            f"qstat -Q -f says: {done.stderr.strip() or done.returncode}",
            key="site",
            remedy="try again later",
        )
    return [
        name
        for name, attributes in _queues(done.stdout)
        if attributes.get("queue_type") in ("Execution", "Route")
        and attributes.get("enabled") == attributes.get("started") == "True"
    ]


def _queues(text: str) -> Iterator[tuple[str, dict[str, str]]]:
    """Names and attributes. Long values are folded: their lines go on after a tab."""
    unfolded = text.replace("\n\t", "")
    for block in re.split(r"^Queue: ", unfolded, flags=re.MULTILINE)[1:]:
        name, *lines = block.splitlines()
        pairs = (line.strip().partition(" = ") for line in lines)
        yield name.strip(), {key: value for key, _, value in pairs if key}
