"""Some campaigns under random kills, other ones at each run; benchmarks/README.md has the long
record.
"""

import subprocess
import sys
import time
from pathlib import Path

import pytest

CAMPAIGNS = 5


@pytest.mark.workflow
def test_campaigns_under_random_kills_end_with_a_valid_master() -> None:
    seed = int(time.time()) % 1_000_000
    command = [
        sys.executable,
        str(Path(__file__).with_name("kills.py")),
        str(seed),
        str(seed + CAMPAIGNS - 1),
    ]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=3600)
    assert done.returncode == 0, f"{' '.join(command[1:])}\n{done.stdout}{done.stderr}"
    assert done.stdout.count('"seed"') == CAMPAIGNS
