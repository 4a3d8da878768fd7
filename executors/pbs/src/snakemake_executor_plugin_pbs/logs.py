"""Logs of jobs: one file a submission, in a folder whose name qsub takes."""

import hashlib
import re
import time
from pathlib import Path

from snakemake_interface_common.exceptions import WorkflowError

_DEFAULT = Path(".snakemake") / "pbs_logs"
_REQUESTED_DEATH = re.compile(r"node (\d+)\b[^\n]*requested job die")
_TAIL = 8192  # bytes at the end of a log that are looked into


def log_folder(workdir: Path, chosen: Path | None) -> Path:
    """Return the folder of all logs: `chosen`, else one in the working folder, or in the home
    folder where the working folder's name has letters that qsub refuses after -o. Raises
    WorkflowError where none of them will do.
    """
    folder = workdir / (chosen or _DEFAULT)
    if _printable(folder):
        return folder
    instead = Path.home() / _DEFAULT / hashlib.sha256(str(workdir).encode()).hexdigest()[:12]
    if chosen is None and _printable(instead):
        return instead
    raise WorkflowError(
        f"The jobs' logs cannot lie in {folder}: qsub takes paths of printable ASCII letters only. "
        "Name another folder that the nodes see: --pbs-logdir /path/to/logs"
    )


def log_path(folder: Path, rule: str, name: str) -> Path:
    """Return a new path for every submission, since PBS overwrites or appends. A rule's name may
    hold any letters.
    """
    part = rule if _printable(Path(rule)) else name
    return folder / part / f"{name}.{time.strftime('%Y%m%d-%H%M%S')}.log"


def node_that_ended_it(log: str) -> str | None:
    """Return the number of the node for whose sake PBS killed the job, where the log's end tells of
    one.
    """
    try:
        with Path(log).open("rb") as handle:
            handle.seek(max(0, handle.seek(0, 2) - _TAIL))
            match = _REQUESTED_DEATH.search(handle.read().decode(errors="replace"))
    except OSError:
        return None
    return match[1] if match else None


def _printable(path: Path) -> bool:
    return str(path).isascii() and str(path).isprintable()
