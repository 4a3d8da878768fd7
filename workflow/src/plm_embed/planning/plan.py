"""A campaign's price before it is paid: what the input holds, what is left to compute, how long,
where, what disk.
"""

import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from plm_embed.errors import ConfigError, PlmEmbedError
from plm_embed.fingerprint import LongSequences
from plm_embed.jobs.gpus import visible_gpus
from plm_embed.models import published
from plm_embed.models.manifest import MANIFEST, read_manifest
from plm_embed.models.registry import Model, find_model
from plm_embed.planning import costs
from plm_embed.planning.campaign_input import Input, existing, given_input, read_config
from plm_embed.planning.costs import Speed, Work
from plm_embed.planning.forecast import Forecast, Plan
from plm_embed.planning.proposals import Proposal, command, proposals
from plm_embed.planning.remaining import outstanding
from plm_embed.planning.sizes import table_bytes, vector_bytes
from plm_embed.sites.data import read_site
from plm_embed.sites.recognize import Here, recognize, scheduler_here
from plm_embed.workflow.config import Config
from plm_embed.workflow.site import account_of, account_words


@dataclass(frozen=True)
class Question:
    """What is asked. `device` names the one to plan for ('' : the site's, or the one here);
    `measure`: try it here.

    workers: embed jobs that will run here at a time (0: one per core, or one per GPU), threads: CPU
    threads of each. lengths: a file with the number of unique sequences by length, instead of the
    input.
    """

    configfile: Path | None = None
    site: str = ""
    queue: str = ""
    device: str = ""
    measure: bool = False
    threads: int = 1
    workers: int = 0
    elsewhere: tuple[Path, ...] = ()
    lengths: Path | None = None


def plan(question: Question) -> Plan:
    """Work out a plan. Reads the sequences of an earlier deduplicate if they are those of the
    configuration.
    """
    config = read_config(question.configfile)
    model = find_model(config["model"])
    here, site = _where(question.site or config["site"])
    policy = LongSequences(**config["embedding"]["long_sequences"])
    with given_input(config, question.lengths, question.measure) as given:
        found = outstanding(config, given.sequences) if given.sequences else None
        todo = costs.work(model, found.lengths if found else given.lengths, policy)
        whole = costs.work(model, given.lengths, policy)
        speeds = _speeds(question, config, model, todo if todo.tokens else whole, given)
        sizes = vector_bytes(config, model, given.lengths)
        if given.sequences:
            sizes = table_bytes(given.sequences, given.accepted) | sizes
    weights, verified = _weights(config, model)
    if model.license != "MIT":
        weights += f"; license: {model.license}"
    jobs = -(-config["buckets"] // (config["speed"]["buckets_per_submission"] or 1))
    forecasts = tuple(Forecast(speed, _hours(todo, speed, jobs)) for speed in speeds)
    chosen = _chosen(question, here, site, forecasts)
    if chosen.hours is None and todo.tokens:
        raise ConfigError(
            f"--device: {chosen.speed.device}: {chosen.speed.why}; name another one, or choose "
            "--measure",
            key="--device",
        )
    ways = [
        one for one in proposals(site, chosen.hours or 0.0) if question.queue in ("", one.queue)
    ]
    if not ways:
        raise ConfigError(
            f"--queue: {question.queue}: {here.site or 'no site'} has no such queue with GPUs",
            key="--queue",
        )
    on_cpu = (
        chosen.speed.basis == "measured here"
        and chosen.speed.device not in costs.gpu_table()["gpus"]
    )
    submits = bool(question.site) or (bool(here.site) and not on_cpu)
    local = chosen.hours is not None and chosen.speed.basis == "measured here" and not question.site
    return Plan(
        made=datetime.now(UTC).isoformat(timespec="seconds"),
        model=model.name,
        weights=weights,
        verified=verified,
        counted=given.counted,
        records=given.records,
        accepted=given.accepted,
        unique=given.unique,
        residues=given.residues,
        lengths=dict(given.lengths),
        stored=found.stored if found else None,
        reused=found.reused if found else None,
        todo=todo,
        forecasts=forecasts,
        device=chosen.speed.device,
        local_hours=_local_hours(chosen, jobs) if local else None,
        bytes=sizes,
        free_bytes=shutil.disk_usage(existing(Path(config["results"]))).free,
        site=here.site,
        recognized=here.why if here.site else "",
        missing=_missing(site) if submits else "",
        proposals=tuple(ways),
        command=tuple(_command(question, config, site, ways[0], here if submits else None)),
    )


def _weights(config: Config, model: Model) -> tuple[str, bool]:
    """In words, which weights will be used, and whether nothing speaks against their being the
    published ones.
    """
    folder = Path(config["weights_folder"]) / model.name
    if (folder / MANIFEST).is_file():
        found = published.caveat(model.name, read_manifest(folder))
        return (
            (found, False)
            if found
            else (f"in {folder}; the published ones, by their SHA-256", True)
        )
    if config["weights"]:
        found = "" if model.trained else published.caveat(model.name, None)
        return (
            found or f"{config['weights']}, compared with the published ones when they are adopted",
            model.trained,
        )
    known = published.known_files(model.name)
    file = published.pt_file(model.name)
    size = f", {file['bytes'] / 1e9:.3g} GB" if file else ""
    check = (
        "compared with the published SHA-256" if known else "of which no published SHA-256 is known"
    )
    return f"downloaded from {model.address}{size}, {check}", bool(known)


def _speeds(
    question: Question, config: Config, model: Model, work: Work, given: Input
) -> list[Speed]:
    """The best-founded speed of each device: measured here, else measured elsewhere, else estimated
    for `work`.
    """
    found: dict[str, Speed] = {}
    dtype = config["embedding"]["compute_dtype"]
    if question.measure and given.sequences:
        from plm_embed.planning.measure import measure

        speed = measure(
            config, given.sequences, question.threads, question.workers or workers_here(config)
        )
        found[speed.device] = speed
    for speed in costs.measured(
        model.name, dtype, Path(config["results"]) / model.name / "embedded", "measured here"
    ):
        found.setdefault(speed.device, speed)
    for folder in question.elsewhere:
        for speed in costs.measured(model.name, dtype, folder, "measured elsewhere"):
            found.setdefault(speed.device, speed)
    for speed in costs.estimates(model, work, dtype):
        found.setdefault(speed.device, speed)
    return list(found.values())


def workers_here(config: Config) -> int:
    """Embed jobs that `snakemake --cores ...` runs here at a time: one per GPU, else one per core;
    never idle ones.
    """
    gpus = len(visible_gpus()) if config["speed"]["device"] != "cpu" else 0
    jobs: int = -(-config["buckets"] // (config["speed"]["buckets_per_submission"] or 1))
    return min(gpus or _cores(), jobs)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _hours(todo: Work, speed: Speed, jobs: int) -> float | None:
    """Of one device: every job starts once, then all tokens."""
    if speed.tokens_per_second is None:
        return None
    jobs = min(jobs, todo.sequences)
    return (
        (speed.startup * jobs + todo.tokens / speed.tokens_per_second) / 3600
        if todo.tokens
        else 0.0
    )


def _local_hours(forecast: Forecast, jobs: int) -> float:
    """Buckets are equal but for chance, so the last round of jobs counts as a whole one."""
    workers = min(forecast.speed.workers, jobs)
    return (forecast.hours or 0.0) / jobs * -(-jobs // workers)


def _where(named: str) -> tuple[Here, dict[str, Any]]:
    """The site to plan for and its data: the named one, that of this machine, or none.

    Without a `why`, Snakemake does not recognize it and has to be told.
    """
    scheduler = scheduler_here()
    here = recognize(scheduler) if scheduler else Here("", "")
    if named and named != here.site:
        return Here(named, ""), read_site(named)
    try:
        return here, read_site(here.site) if here.site else {}
    except PlmEmbedError:  # a SLURM without a partition for this: nobody asked for it
        if named:
            raise
        return Here("", ""), {}


def _missing(site: Mapping[str, Any]) -> str:
    if site.get("account", {}).get("required") and not account_of(site):
        return f"an account: {account_words(site)}"
    return ""


def _chosen(
    question: Question, here: Here, site: Mapping[str, Any], forecasts: tuple[Forecast, ...]
) -> Forecast:
    """The device to plan submissions for: the named one, the site's, a measured one, or an A100."""
    queues = site.get("queues") or {}
    queue = queues.get(question.queue or site.get("default_queue") or next(iter(queues), ""), {})
    wanted = (
        question.device
        or costs.gpu_table()["sites"].get(here.site, "")
        or queue.get("gpu_type", "")
    )
    for forecast in forecasts:
        if wanted and wanted.lower() in forecast.speed.device.lower():
            return forecast
    if question.device:
        known = ", ".join(forecast.speed.device for forecast in forecasts)
        raise ConfigError(
            f"--device: {question.device}: nothing is known of it; known are {known}",
            key="--device",
        )
    gpus = costs.gpu_table()["gpus"]
    measured = (one for one in forecasts if one.speed.basis == "measured here")
    fitting = (one for one in measured if not question.site or one.speed.device in gpus)
    return next(fitting, None) or next(one for one in forecasts if one.speed.device == "A100")


def _command(
    question: Question, config: Config, site: dict[str, Any], proposal: Proposal, here: Here | None
) -> Iterator[str]:
    """The call that runs the plan: at a site, or on this machine."""
    if here:
        yield from command(
            proposal, "" if here.why else here.site, site, question.configfile, config
        )
        return
    yield from ("snakemake", "--cores", str(_cores()))
    if question.configfile:
        yield from ("--configfile", str(question.configfile))
