"""The start of a process: settings of libraries before they are loaded, and how it was called."""

import atexit
import gc
import logging
import os
import shlex
import shutil
import sys
from pathlib import Path
from typing import NoReturn

KEEP_MEMORY = {"MIMALLOC_PURGE_DELAY": "-1"}
"""Arrow gives no memory back to the system, which would clear it when it is taken again."""
NO_HUGE_PAGES = {"MIMALLOC_ALLOW_THP": "0", "NUMPY_MADVISE_HUGEPAGE": "0"}
"""A huge page is cleared as a whole when it is taken, and most buffers of text fill a part of one.
Together with KEEP_MEMORY this spares a sixth of the time of deduplicate; where few large buffers
are used again and again, as in gather, huge pages are faster.
"""
ONE_BLAS_THREAD = {"OPENBLAS_NUM_THREADS": "1"}
"""For steps that multiply no matrices: each thread of the library for that spins when it starts,
which takes 0.1 s of processor time.
"""
WAIT_IN_SLEEP = {"OMP_WAIT_POLICY": "passive"}
"""Threads of torch that wait for work leave the processor to others at once. A step that computes
few sequences one by one, beside other work, then takes 3.3 s of processor time instead of 4 to 8.
"""
WAIT_BRIEFLY = {"GOMP_SPINCOUNT": "10000"}
"""Threads that keep a processor while they wait keep each other from working where others work
too: on two cores with one of them taken, 25 proteins took the 8M model over a minute, 7.7 s with
30,000 turns, 4.9 with 10,000 and 2.8 with 1,000; with both free 1.57, 1.66, 1.67 and 1.87 s.
"""
STEPS = {
    "deduplicate": KEEP_MEMORY | NO_HUGE_PAGES | ONE_BLAS_THREAD,
    "gather": KEEP_MEMORY,
    "embed": WAIT_BRIEFLY,
    "weights": WAIT_IN_SLEEP,
    "validate": WAIT_IN_SLEEP,
    **{name: {} for name in ("run", "search", "import")},  # they, or what they start, use all cores
}
"""Variables for the commands that multiply matrices, and for deduplicate."""
USERS_PATH = "PLM_EMBED_PATH"
"""The variable in which the workflow keeps the user's PATH, to which it adds for its jobs."""


def set_up(step: str) -> None:
    """Set variables that the environment lacks, before Arrow, NumPy or torch is loaded."""
    for name, value in STEPS.get(step, ONE_BLAS_THREAD).items():
        os.environ.setdefault(name, value)


def spare_collector() -> None:
    """Keep the garbage collector from libraries, whose objects stay to the end. It would look
    through all of them again and again while they load, and once more at the end of the process:
    together a quarter of the processor time of a short step.

    For processes of our own: it holds for the whole process.
    """
    gc.set_threshold(50_000)  # Python's own 700 are for programs that make few objects
    atexit.register(gc.freeze)


class NoPandas:
    """Finder of modules that hides pandas, for processes of our own: with its first column Arrow
    imports pandas if that is installed, which takes 0.13 s of a processor.
    """

    @staticmethod
    def find_spec(name: str, *_: object) -> None:
        """Raise ModuleNotFoundError for pandas. A None in sys.modules would be taken for it."""
        if name == "pandas":
            raise ModuleNotFoundError(name=name)


def end_at_once(code: int) -> NoReturn:
    """End the process without taking down what libraries built up in it: for torch that takes 0.1
    s, and once a CUDA context is lost, to give back pinned memory aborts the process.
    """
    logging.shutdown()
    for stream in filter(None, (sys.stdout, sys.stderr)):  # None: closed by who called
        stream.flush()
    os._exit(code)


def program() -> str:
    """Return this program as it was called: `plm-embed`, `.venv/bin/plm-embed` or
    `python -m plm_embed`.
    """
    words = sys.orig_argv[: len(sys.orig_argv) - len(sys.argv) + 1]
    if words[-2:] == ["-m", "plm_embed"] and USERS_PATH not in os.environ:
        return shlex.join(words)
    return called("plm-embed")


def called(name: str) -> str:
    """Return the name of a command if a shell finds this environment's, else its path."""
    beside = Path(sys.executable).with_name(name)
    on_path = shutil.which(name, path=os.environ.get(USERS_PATH))
    if not beside.exists() or (on_path and Path(on_path).absolute() == beside.absolute()):
        return name
    folder = Path.cwd()
    return shlex.quote(str(beside.relative_to(folder) if beside.is_relative_to(folder) else beside))
