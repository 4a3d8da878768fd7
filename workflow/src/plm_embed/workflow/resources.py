"""Resources of jobs where a profile does not set them."""

from collections.abc import Mapping
from typing import Any

from plm_embed.models.registry import Model

WORKER_MB = 6000
"""Main memory of a worker's libraries, batches and tables."""


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
