"""The end that SLURM announces to a job by SIGTERM, passed on to the job's rule.

With `proctrack/cgroup` SLURM tells only what slurmstepd itself has started, the job's Snakemake.
That one waits for its rule, which knows nothing and is killed `KillWait` later, with all its work
of that time. Where SLURM tells all processes, the rule is told twice.
"""

import os
import signal
import threading
from contextlib import suppress

import psutil  # type: ignore[import-untyped]


def pass_on_sigterm() -> None:
    """From now on, whatever handler of SIGTERM this process gets; called in its main thread.

    Python writes the number of each signal that has a handler to the file that it wakes up with.
    """
    ours, pythons = os.pipe()
    os.set_blocking(pythons, False)
    signal.set_wakeup_fd(pythons, warn_on_full_buffer=False)
    threading.Thread(target=_pass_on, args=(ours,), daemon=True).start()


def _pass_on(signals: int) -> None:
    """To what runs below this process, but in sessions of its own, as the job's watching shell.

    Children first: when its shell ends, so does the job's Snakemake, and with it this thread.
    """
    while numbers := os.read(signals, 64):
        if signal.SIGTERM in numbers:
            for process in reversed(psutil.Process().children(recursive=True)):
                with suppress(psutil.Error, OSError):
                    if os.getsid(process.pid) == os.getsid(0):
                        process.terminate()
