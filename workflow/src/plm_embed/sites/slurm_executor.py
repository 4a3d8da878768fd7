"""Which of Snakemake's executors submit to SLURM, and what to write instead of the plain one."""

from collections.abc import Iterable

STEADY, PLAIN = "slurm-steady", "slurm"
"""The one of executors/slurm, and the plain plugin on which that builds."""
EXECUTORS = (STEADY, PLAIN)


def instead_of_plain(executor: str | None, chosen: Iterable[str]) -> str:
    """One line on what to write instead of the plain executor, or of its options; '' where nothing
    is to be changed.

    chosen: options of the call that were set, such as slurm_requeue.
    """
    names = ", ".join(sorted(name.replace("_", "-") for name in chosen if _is_plain(name)))
    if executor == PLAIN:
        instead = f"`executor: {STEADY}`" + (
            f", and {STEADY}- for {PLAIN}- in {names}" if names else ""
        )
        return (
            f"plm-embed: executor {PLAIN} may wait for ever for jobs that are gone: write {instead}"
        )
    if executor == STEADY and names:
        return f"plm-embed: executor {STEADY} takes no {names}: write {STEADY}- for {PLAIN}-"
    return ""


def _is_plain(option: str) -> bool:
    return option.startswith("slurm_") and not option.startswith(
        ("slurm_steady_", "slurm_jobstep_")
    )
