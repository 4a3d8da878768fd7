"""How to cut a campaign for a site's queues: submissions, buckets, walltime, and what whole nodes waste."""

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from plm_embed.buckets import MAX_BUCKETS
from plm_embed.config import did_you_mean
from plm_embed.errors import UserError
from plm_embed.slurm_site import slurm_site

ROOT = Path(__file__).parents[3]
PBS_SITES = ROOT / "executors" / "pbs" / "src" / "snakemake_executor_plugin_pbs" / "sites"
SLURM_SITES = ROOT / "executors" / "slurm" / "sites"
PROFILES = ROOT / "profiles"
STARTUP_HOURS = 0.05
"""Until a worker's first batch: Python, weights, self-test."""
WALLTIME_FACTOR = 1.3
MARGIN_HOURS = 2 / 60
HOURS_PER_SUBMISSION = 3.0
"""What a submission is aimed at: long enough to be worth its wait, short enough to lose little and start soon."""
BUCKET_HOURS = 0.25
"""Of a submission with several workers: they are even when each takes several buckets."""


@dataclass(frozen=True)
class Proposal:
    """One way to run the campaign. hours_each: of a submission; charged_hours: GPU-hours the site will charge."""

    queue: str
    nodes: int
    gpus_per_node: int
    submissions: int
    buckets: int
    buckets_per_submission: int
    walltime_minutes: int
    hours_each: float
    node_hours: float
    charged_hours: float
    wasted: float
    jobs_at_once: int | None


def read_site(name: str) -> dict[str, Any]:
    """Site data: of a PBS site or a profile by name, of a YAML file by path, or `slurm`: what sinfo says here."""
    if name == "slurm":
        return slurm_site()
    found = _site_files()
    path = Path(name) if name.endswith((".yaml", ".yml")) else found.get(name)
    if path is None or not path.is_file():
        known = sorted([*found, "slurm"])
        hint = did_you_mean(name, known)
        raise UserError(f"--site: {name}: not known{hint}; known are {', '.join(known)}, or the path of a YAML file")
    try:
        site = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"--site: {path}: not YAML ({error})") from None
    if not isinstance(site, dict):
        raise UserError(f"--site: {path}: no site data; executors/pbs/README.md shows what they look like")
    return _laid_over(read_site(site["base"]), site) if "base" in site else site


def slurm_sites() -> list[str]:
    """Names of the shipped sites under SLURM."""
    return sorted(path.stem for path in SLURM_SITES.glob("*.yaml"))


def _site_files() -> dict[str, Path]:
    """Shipped site data by name, and those of profiles that have a site.yaml."""
    shipped = {path.stem: path for folder in (PBS_SITES, SLURM_SITES) for path in folder.glob("*.yaml")}
    return {path.parent.name: path for path in PROFILES.glob("*/site.yaml")} | shipped


def _laid_over(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """One mapping over another, key by key."""
    both = [key for key in above if isinstance(above[key], dict) and isinstance(below.get(key), dict)]
    return below | above | {key: _laid_over(below[key], above[key]) for key in both}


def proposals(site: dict[str, Any], gpu_hours: float) -> list[Proposal]:
    """One for each queue and class of size that takes GPUs; the site's default queue first, then the cheapest."""
    node = site.get("node", {})
    found = [
        _propose(site, name, queue, limits, gpu_hours)
        for name, queue in (site.get("queues") or {"default": {}}).items()
        for limits in queue.get("ranges") or [{"nodes": [1, 1], "walltime": ["0:00:01", "24:00:00"]}]
        if not _without_gpus(site, queue, node)
    ]
    default = site.get("default_queue")
    return sorted(found, key=lambda one: (one.queue != default, one.charged_hours, one.submissions))


def _without_gpus(site: dict[str, Any], queue: dict[str, Any], node: dict[str, Any]) -> bool:
    """Where some queues say how many cores go with a GPU, the others have none."""
    marked = any("cores_per_gpu" in other for other in (site.get("queues") or {}).values())
    return bool(node) and marked and "cores_per_gpu" not in queue


def _propose(
    site: dict[str, Any], name: str, queue: dict[str, Any], limits: dict[str, Any], gpu_hours: float
) -> Proposal:
    node = site.get("node", {})
    gpus = queue.get("gpus_per_node", node.get("gpus", 1))
    whole, nodes = bool(queue.get("whole", node.get("whole"))), limits["nodes"][0]
    per_node = gpus if whole else min(queue.get("gpus", [1]))
    workers = nodes * per_node
    shortest, longest = (_hours(text) for text in limits["walltime"])
    usable = min(HOURS_PER_SUBMISSION, (longest - MARGIN_HOURS) / WALLTIME_FACTOR - STARTUP_HOURS)
    submissions = max(1, math.ceil(gpu_hours / (workers * usable)))
    each = gpu_hours / (submissions * workers)
    per_worker = 1 if workers == 1 else min(16, max(1, math.ceil(each / BUCKET_HOURS)))
    while per_worker > 1 and submissions * workers * per_worker > MAX_BUCKETS:
        per_worker -= 1
    buckets = min(MAX_BUCKETS, submissions * workers * per_worker)
    hours = each + STARTUP_HOURS
    asked = max(shortest, min(longest, WALLTIME_FACTOR * hours + MARGIN_HOURS))
    node_hours = submissions * hours * (nodes if whole else workers / gpus)
    charged = node_hours * gpus
    return Proposal(
        queue=name,
        nodes=nodes,
        gpus_per_node=per_node,
        submissions=submissions,
        buckets=buckets,
        buckets_per_submission=math.ceil(buckets / submissions),
        walltime_minutes=min(math.floor(60 * longest), 5 * math.ceil(12 * asked)),
        hours_each=hours,
        node_hours=node_hours,
        charged_hours=charged,
        wasted=1 - gpu_hours / charged if charged else 0.0,
        jobs_at_once=queue.get("max_jobs"),
    )


def _hours(text: str) -> float:
    hours, minutes, seconds = map(int, text.split(":"))
    return hours + minutes / 60 + seconds / 3600


def command(
    proposal: Proposal, name: str, site: dict[str, Any], configfile: Path | None, speed: dict[str, Any]
) -> Iterator[str]:
    """The words of the call that runs the proposal at the site called `name` ('' : plain SLURM)."""
    yield from ("snakemake", "--profile", *_profile(proposal, name, site))
    if configfile:
        yield from ("--configfile", str(configfile))
    yield from ("--config", f"buckets={proposal.buckets}")
    if proposal.buckets_per_submission != speed["buckets_per_submission"]:
        yield f"speed={json.dumps(speed | {'buckets_per_submission': proposal.buckets_per_submission})}"
    yield from ("--set-resources", f"embed:runtime={proposal.walltime_minutes}", f"embed:gpu={proposal.gpus_per_node}")
    yield f"embed:nodes={proposal.nodes}"
    if "queue_resource" in site:
        yield f"embed:{site['queue_resource']}={proposal.queue}"
    if proposal.jobs_at_once:
        yield from ("--jobs", str(min(proposal.jobs_at_once, proposal.submissions)))


def _profile(proposal: Proposal, name: str, site: dict[str, Any]) -> Iterator[str]:
    """The profile for a queue: one of its own, one of its site, or the general one with the site's name."""
    queue = ("--pbs-queue", proposal.queue) if proposal.queue != "default" else ()
    if not name or "profile" in site:
        yield site.get("profile", "slurm")
    elif (PROFILES / f"{name}-{proposal.queue}").is_dir():
        yield f"profiles/{name}-{proposal.queue}"
    elif (PROFILES / name).is_dir():
        yield from (f"profiles/{name}", *queue)
    else:
        yield from ("pbs", "--pbs-site", name, *queue)
