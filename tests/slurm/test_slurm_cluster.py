"""The test-bed itself: nothing of it remains."""

import subprocess
import sys
import time
from pathlib import Path

import cluster as bed


def test_a_killed_session_leaves_nothing(tmp_path: Path) -> None:
    """The command that `session` runs ends when its input does; all the rest must not need to be
    told.
    """
    log = tmp_path / "log"
    submit = f'sbatch -Q -o {log} --wrap "echo started; sleep 4321"'
    command = f"{submit}; until [ -s {log} ]; do sleep 0.1; done; echo $SLURM_CONF; exec cat"
    session = subprocess.Popen(
        [sys.executable, bed.__file__, "sh", "-c", command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert session.stdout is not None
    configuration = Path(session.stdout.readline().strip())
    assert configuration.exists()
    processes = [
        process for process in bed.descendants(session.pid) if bed.process_name(process) != "cat"
    ]
    assert {"slurmctld", "slurmdbd", "mariadbd", "munged", "slurmd", "sleep"} <= {
        bed.process_name(p) for p in processes
    }
    session.kill()
    session.communicate()
    end = time.monotonic() + 300
    while any(map(bed.process_name, processes)) and time.monotonic() < end:
        time.sleep(0.05)
    assert not any(map(bed.process_name, processes))
    bed.remove_abandoned()
    assert not configuration.parents[1].exists()
