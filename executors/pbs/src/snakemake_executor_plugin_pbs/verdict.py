"""Judgement of a job by its record in PBS, and why it failed in words."""

from dataclasses import dataclass

from .parse import Record

_EXIT_WORDS = {
    -29: "it ran out of its walltime{walltime}: ask for more (resources: runtime)",
    -27: "it used more memory than it asked for: ask for more (resources: mem_mb)",
    -26: "it used more virtual memory than it asked for",
    -20: "its node was lost",
    -11: "PBS took it off its node to run it again",
    -4: "the PBS daemon of its node was restarted",
    -3: "PBS could not start it",
    -2: "PBS could not start it",
    -1: "PBS could not start it",
    1: "a rule's command failed; the rule's log says which",
    126: "its script may not be executed",
    127: "a command or the interpreter was not found on the node",
    254: "its program was not found on the node",
    265: "it was killed by force (qdel -W force, or SIGKILL)",
    271: "it was deleted or preempted (SIGTERM)",
}
# substate of finished jobs; 92 is no proof of success, dependents of a failed job have it too
_TERMINATED = 91
_HELD_FOR_EVER = "too many failed attempts"


@dataclass(frozen=True)
class Verdict:
    """End of a job. `words` explain failures; of a success, why the job ended if its own record
    does not confirm it. `held`: PBS will never start it, so that it is to be deleted.
    """

    success: bool
    words: str = ""
    held: bool = False


def judge(record: Record) -> Verdict | None:
    """Return the verdict on a job, None while it may still end well.

    Exit_status counts for finished jobs only: a requeued job shows that of its last run, and a job
    in E shows it while its output is still being copied.
    """
    if record.state == "F":
        return _judge_finished(record)
    if record.state == "H" and "s" in record.hold_types and _HELD_FOR_EVER in record.comment:
        words = f"PBS holds it for ever: {record.comment}. The folder of its log is missing on the "
        return Verdict(False, f"{words}nodes, or a node is broken; it is deleted now", held=True)
    return None


def _judge_finished(record: Record) -> Verdict:
    status = record.exit_status
    comment = f". PBS says: {record.comment}" if record.comment else ""
    terminated = record.substate == _TERMINATED
    if status is None:
        words = "it was deleted" if terminated else "PBS ended it, because a job before it failed"
        return Verdict(False, words + comment)
    if status == 0:  # terminated: seen of a job that was deleted in its first seconds
        return Verdict(True, f"it was deleted{comment}" if terminated else "")
    if status in _EXIT_WORDS:
        walltime = f" of {record.walltime}" if record.walltime else ""
        words = _EXIT_WORDS[status].format(walltime=walltime)
    elif 128 < status < 160:
        words = f"a command in it was killed by signal {status - 128}"
    elif 256 < status < 320:
        words = f"it was killed by signal {status - 256}"
    else:
        words = "it failed"
    return Verdict(False, f"{words} (Exit_status {status}){comment}")
