"""What sbatch refuses: which request will be refused again, and that each reason is told once."""

import re
import threading

_FOR_GOOD = re.compile(
    "invalid|not available|unrecognized|not permitted|not allowed|can not be satisfied",
    re.IGNORECASE,
)
"""In what sbatch or the plain plugin says of a request: the same one will be refused again."""
_CALL = "\n    sbatch call:"
"""What follows is the call, in which any word may stand."""
AGAIN = "SLURM refuses it for the same reason. "


_SAID = re.compile(r"The error message was '(?:sbatch: (?:error: )?)?(.*?)'\.$", re.DOTALL)


def in_words(message: str) -> str:
    """Why a submission failed: what sbatch said, without the call, on one line."""
    reason = message.partition(_CALL)[0].removeprefix("Job submission failed with exception: ")
    if found := _SAID.search(reason):
        reason = f"sbatch: {found[1]}"
    return " ".join(reason.split())


class Refusals:
    """The refusals of a run."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # two threads submit
        self._told: set[str] = set()

    def told_once(self, message: str) -> tuple[bool, str]:
        """Whether a failed submission was refused for good, and what to say of it."""
        reason = message.partition(_CALL)[0]
        if not _FOR_GOOD.search(reason):
            return False, message
        with self._lock:
            again = reason in self._told
            self._told.add(reason)
        return True, AGAIN if again else message
