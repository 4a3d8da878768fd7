"""How to cut a campaign for a site's queues: submissions, buckets, walltime, and what whole nodes
waste.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from plm_embed.io.threads import cores
from plm_embed.jobs.node import SECONDS_MARGIN, TIME_MARGIN
from plm_embed.keys import MAX_BUCKETS
from plm_embed.sites.job_shape import shape
from plm_embed.workflow.resources import local_resources

STARTUP_HOURS = 0.05
"""Until a worker's first batch: Python, weights, self-test."""
HOURS_PER_SUBMISSION = 3.0
"""What a submission is aimed at: long enough to be worth its wait, short enough to lose little and
start soon.
"""


@dataclass(frozen=True)
class Proposal:
    """One way to run the campaign. hours_each: of a submission; charged_hours: GPU-hours the site
    will charge.

    fits: whether the queue's time is enough to start a worker and compute anything, and gives what
    the site's file asks for.
    """

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
    fits: bool
    preempts: bool = False
    """Whether jobs of the queue end when others demand their nodes."""


def proposals(site: dict[str, Any], gpu_hours: float) -> list[Proposal]:
    """One for each queue and class of size that takes GPUs: those that fit, the site's default
    queue, the cheapest.
    """
    node = site.get("node", {})
    found = [
        _propose(site, name, queue, limits, gpu_hours)
        for name, queue in (site.get("queues") or {"default": {}}).items()
        for limits in queue.get("ranges")
        or [{"nodes": [1, 1], "walltime": ["0:00:01", "24:00:00"]}]
        if not _without_gpus(site, queue, node)
    ]
    default = site.get("default_queue")
    return sorted(
        found,
        key=lambda one: (not one.fits, one.queue != default, one.charged_hours, one.submissions),
    )


def _without_gpus(site: dict[str, Any], queue: dict[str, Any], node: dict[str, Any]) -> bool:
    """Where some queues say how many cores go with a GPU, the others have none."""
    marked = any("cores_per_gpu" in other for other in (site.get("queues") or {}).values())
    return bool(node) and marked and "cores_per_gpu" not in queue


def _propose(
    site: dict[str, Any], name: str, queue: dict[str, Any], limits: dict[str, Any], gpu_hours: float
) -> Proposal:
    node, (fewest, most) = site.get("node", {}), limits["nodes"]
    form = shape(site, name)
    if not fewest <= form.nodes <= most:
        form = shape(site, name, nodes=fewest)
    whole, gpus = (
        bool(queue.get("whole", node.get("whole"))),
        queue.get("gpus_per_node", node.get("gpus", form.gpus)),
    )
    shortest, limit = (_hours(text) for text in limits["walltime"])
    longest = min(limit, form.minutes / 60) if form.minutes else limit
    usable = min(
        HOURS_PER_SUBMISSION, (longest - SECONDS_MARGIN / 3600) / TIME_MARGIN - STARTUP_HOURS
    )
    submissions = max(1, math.ceil(gpu_hours / (form.workers * usable))) if usable > 0 else 1
    each = gpu_hours / (submissions * form.workers)
    buckets = min(MAX_BUCKETS, submissions)
    hours = each + STARTUP_HOURS
    asked = 5 * math.ceil(
        12 * max(shortest, min(longest, TIME_MARGIN * hours + SECONDS_MARGIN / 3600))
    )
    minutes = form.minutes or min(math.floor(60 * longest), asked)
    node_hours = submissions * hours * (form.nodes if whole else form.workers / gpus)
    charged = node_hours * gpus
    return Proposal(
        queue=name,
        nodes=form.nodes,
        gpus_per_node=form.gpus,
        submissions=submissions,
        buckets=buckets,
        buckets_per_submission=1,
        walltime_minutes=minutes,
        hours_each=hours,
        node_hours=node_hours,
        charged_hours=charged,
        wasted=1 - gpu_hours / charged if charged else 0.0,
        jobs_at_once=queue.get("max_jobs"),
        fits=usable > 0 and minutes <= 60 * limit,
        preempts=bool(queue.get("preempts")),
    )


def cut_alike(proposal: Proposal, gpu_hours: float) -> Proposal:
    """The same submissions for a model with this much to do: they end earlier."""
    each = gpu_hours / (proposal.submissions * proposal.nodes * proposal.gpus_per_node)
    share = (each + STARTUP_HOURS) / proposal.hours_each
    charged = proposal.charged_hours * share
    return replace(
        proposal,
        hours_each=each + STARTUP_HOURS,
        node_hours=proposal.node_hours * share,
        charged_hours=charged,
        wasted=1 - gpu_hours / charged if charged else 0.0,
    )


def together(first: Proposal, *others: Proposal) -> Proposal:
    """The submissions of several models that are cut alike, as one; hours_each: of the longest."""
    ways = (first, *others)
    charged = sum(one.charged_hours for one in ways)
    worked = sum(one.charged_hours * (1 - one.wasted) for one in ways)
    return replace(
        first,
        submissions=sum(one.submissions for one in ways),
        hours_each=max(one.hours_each for one in ways),
        node_hours=sum(one.node_hours for one in ways),
        charged_hours=charged,
        wasted=1 - worked / charged if charged else 0.0,
    )


def _hours(text: str) -> float:
    hours, minutes, seconds = map(int, text.split(":"))
    return hours + minutes / 60 + seconds / 3600


def command(
    proposal: Proposal,
    name: str,
    site: dict[str, Any],
    configfile: Path | None,
    config: dict[str, Any],
    *,
    given: Sequence[str] = (),
) -> Iterator[str]:
    """The words of the call that runs the proposal. name: of the site; given: the words after
    --config that it is planned with.

    What the profile asks for by itself is left out.
    """
    slurm = "queue_resource" in site
    profile = "slurm" if slurm else "pbs" if name == "polaris" else "profiles/generic-pbs"
    yield from ("snakemake", "--profile", profile)
    below = _profile(profile)
    if not slurm:
        yield from ("--pbs-site", name) if profile != "pbs" and name != "generic" else ()
        if proposal.queue not in (below.get("pbs-queue"), site.get("default_queue", "default")):
            yield from ("--pbs-queue", proposal.queue)
    if configfile:
        yield from ("--configfile", str(configfile))
    settings = dict(pair.split("=", 1) for pair in (*_pairs(below, "config"), *given))
    settings |= {"buckets": str(proposal.buckets)} if proposal.buckets != config["buckets"] else {}
    if given or settings != dict(pair.split("=", 1) for pair in _pairs(below, "config")):
        yield from ("--config", *(f"{key}={value}" for key, value in settings.items()))
    kept = _profile_resources(below)
    resources = {"gpu": proposal.gpus_per_node, "nodes": proposal.nodes}
    chosen: dict[str, Any] = {
        f"embed:{resource}": value
        for resource, value in resources.items()
        if kept.get(f"embed:{resource}", 1) != value
    }
    if slurm and proposal.queue != site.get("default_queue"):
        chosen[f"embed:{site['queue_resource']}"] = proposal.queue
    if str(kept.get("embed:runtime", "")).isdecimal() and (
        proposal.walltime_minutes < int(kept["embed:runtime"])
    ):
        chosen["embed:runtime"] = proposal.walltime_minutes
    if chosen:
        yield from (
            "--set-resources",
            *(f"{name}={value}" for name, value in (kept | chosen).items()),
        )


def local_command(gpus: int, configfile: Path | None, given: Sequence[str]) -> Iterator[str]:
    """The words of the call that runs it on this machine, on so many GPUs; given: the words after
    --config.
    """
    yield from ("snakemake", "--cores", str(cores()), *local_resources(gpus))
    if configfile:
        yield from ("--configfile", str(configfile))
    yield from ("--config", *given) if given else ()


def _profile(name: str) -> dict[str, Any]:
    """What a profile says, where Snakemake, started here, finds it first; empty where there is
    none.
    """
    for folder in (Path(), Path.home() / ".config" / "snakemake", Path("/etc/xdg/snakemake")):
        for file in ("profile.yaml", "config.yaml"):
            if (path := folder / name / file).is_file():
                return yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    return {}


def names_account(profile: str) -> bool:
    """Whether a profile names the account to charge."""
    pairs = _pairs(_profile(profile), "default-resources")
    return any(pair.startswith("slurm_account=") for pair in pairs)


def _pairs(profile: Mapping[str, Any], key: str) -> list[str]:
    """The `name=value` of an option; on the command line it takes the place of all of them."""
    found = profile.get(key) or []
    if isinstance(found, Mapping):
        return [f"{name}={value}" for name, value in found.items()]
    return [found] if isinstance(found, str) else list(found)


def _profile_resources(profile: Mapping[str, Any]) -> dict[str, Any]:
    """What a profile sets for rules, by rule:resource: --set-resources on the command line takes
    the place of all.
    """
    rules = profile.get("set-resources") or {}
    if not isinstance(rules, Mapping):
        return dict(pair.split("=", 1) for pair in _pairs(profile, "set-resources"))
    return {
        f"{rule}:{name}": value for rule, values in rules.items() for name, value in values.items()
    }
