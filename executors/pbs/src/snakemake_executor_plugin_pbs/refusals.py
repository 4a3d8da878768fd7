"""Meaning of qsub's refusals: some pass by themselves, some are for good and need a change."""

from .commands import Answer

# over a limit of jobs, over a limit of resources, queue switched off for now
_FULL = frozenset({38, 39, 173})
# Of the script, usage, array size, -l beside select, unreadable script, a site's hook, attribute,
# not authorized, illegal value, unknown queue, user, unknown resource, limits of the queue, not
# rerunnable.
_FOR_GOOD = frozenset({1, 2, 3, 5, 8, 32, 154, 159, 166, 170, 175, 187, 188, 190})
_OPTIONS = "the resource pbs_extra or `arguments` of the site file hold words that qsub refuses"
_HINTS = {
    "Account_Name": "set --pbs-account",
    "active allocation": "check --pbs-account and the allocation's balance",
    "filesystems": "add `resources: {filesystems: ...}` to the site file",
    "walltime": "set the resource runtime (minutes)",
    "server resource limits": "walltime or nodes are outside the queue's range: "
    "`qstat -Qf QUEUE` shows it",
    "Unknown queue": "set --pbs-queue or the resource pbs_queue",
    "Unauthorized": "the queue is not open to you: set --pbs-queue or the resource pbs_queue",
    "Unknown resource": "the site file (--pbs-site) and the resource pbs_extra name the resources",
    "illegal -": _OPTIONS,
    "invalid option": _OPTIONS,
}


class WaitError(Exception):
    """Not now. `scope` has to wait: "queue NAME", or the job of this name."""

    def __init__(self, scope: str, words: str) -> None:
        super().__init__(words)
        self.scope = scope


class RefusedError(Exception):
    """The site refuses this job, or would refuse or lose it; the text says why and what to change.

    `for_good`: the same request will be refused again. Otherwise the refusal counts as a failed
    attempt.
    """

    def __init__(self, words: str, for_good: bool = True) -> None:
        super().__init__(words)
        self.for_good = for_good


def passes(answer: Answer) -> bool:
    """Return whether a refusal is one that passes by itself: a limit of jobs, a closed queue."""
    return answer.code in _FULL or (answer.code != 0 and "would exceed" in answer.err)


def refusal(answer: Answer) -> RefusedError:
    """Return the error for an answer that does not pass."""
    hint = next((f" -> {hint}" for key, hint in _HINTS.items() if key in answer.err), "")
    words = f"PBS refused it (exit code {answer.code}): {answer.words}{hint}"
    return RefusedError(words, for_good=answer.code in _FOR_GOOD)
