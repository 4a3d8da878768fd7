"""Resources of jobs: where a profile does not set them, and the names that it may use."""

from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from typing import Any

from plm_embed.models.registry import MODELS, Model

WORKER_MB = 6000
"""Main memory of a worker's libraries, batches and tables."""
RULES = ("weights", "deduplicate", "embed", "validate", "report")
RULES_OF_FAMILIES = tuple(f"gather_{model.family.name}" for model in MODELS.values())
RESOURCES = (
    *("gpu", "gpus", "nvidia_gpu", "request_gpus", "gres", "gpu_model", "nodes", "runtime"),
    *("mem", "mem_mb", "mem_mib", "mem_mb_per_cpu", "disk", "disk_mb", "disk_mib", "tmpdir"),
    *("device", "scratch", "toks_per_batch", "flush_minutes", "qos", "constraint", "mpi"),
    *("slurm_account", "slurm_partition", "slurm_extra", "slurm_cluster", "cluster", "clusters"),
    *("tasks", "tasks_per_node", "tasks_per_gpu", "cpus_per_task", "cpus_per_gpu"),
)
"""Resources of the rules, of Snakemake and of the executors that ship profiles."""


def misspelt(settings: Any) -> Iterator[str]:
    """Yield a line for each name in a profile that is nearly that of a rule or a resource.

    settings: Snakemake's ResourceSettings. Other names may mean something to an executor.
    """
    rules, of_rules = (*RULES, *RULES_OF_FAMILIES), settings.overwrite_resources
    blocks: list[tuple[str, Iterable[str], tuple[str, ...]]] = [
        ("set-resources", of_rules, rules),
        ("set-threads", settings.overwrite_threads, rules),
        ("default-resources", settings.default_resources or {}, RESOURCES),
        *((f"set-resources: {rule}", of_rules[rule], RESOURCES) for rule in of_rules),
    ]
    for block, names, known in blocks:
        for name in names:
            near = get_close_matches(name, known, 1, cutoff=0.85)
            near += [rule for rule in RULES_OF_FAMILIES if rule.startswith(f"{name}_")]  # gather
            if near and name not in known:
                yield f"profile: {block}: {name} is not known; did you mean {near[0]}?"


def worker_mb(model: Model) -> int:
    """Return the main memory, in MB, that one worker may need while the weights load."""
    return WORKER_MB + round(6 * model.parameters / 1e6)


def asks_for_gpu(resources: Mapping[str, Any]) -> bool:
    """Return whether a job asks its scheduler for a GPU, by whatever name."""
    names = ("gpu", "gpus", "nvidia_gpu", "request_gpus")
    return any(resources.get(name) for name in names) or "gpu" in str(resources.get("gres", ""))


def local_resources(gpus: int) -> list[str]:
    """Return the options of Snakemake for a machine with so many GPUs: one embed job at a time,
    with a worker on each.
    """
    return ["--resources", f"gpu={gpus}", "--set-resources", f"embed:gpu={gpus}"] if gpus else []
