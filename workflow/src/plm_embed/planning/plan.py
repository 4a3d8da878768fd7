"""A campaign's price before it is paid: what the input holds, what is left to compute, how long,
where, what disk.
"""

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from plm_embed.errors import ConfigError, PlmEmbedError
from plm_embed.fingerprint import LongSequences
from plm_embed.jobs.gpus import visible_gpus
from plm_embed.models.registry import Model, find_model
from plm_embed.planning import costs
from plm_embed.planning.campaign_input import Input, existing, given_input
from plm_embed.planning.costs import Work
from plm_embed.planning.forecast import Forecast, Plan
from plm_embed.planning.model_settings import by_model
from plm_embed.planning.proposals import (
    Proposal,
    command,
    cut_alike,
    local_command,
    names_account,
    proposals,
)
from plm_embed.planning.remaining import Outstanding, outstanding
from plm_embed.planning.sizes import estimated_table_bytes, file_count, table_bytes, vector_bytes
from plm_embed.planning.speeds import (
    Trial,
    best_speeds,
    device_hours,
    local_hours,
    workers_here,
)
from plm_embed.planning.weights import weights_bytes, weights_in_words
from plm_embed.sites import slurm
from plm_embed.sites.data import account_of, account_words, read_site
from plm_embed.sites.recognize import Here, recognize, scheduler_here
from plm_embed.wording import now
from plm_embed.workflow.config import Config, read_config

SBATCH_ACCOUNT = "SBATCH_ACCOUNT"
"""The variable by which sbatch takes an account."""


@dataclass(frozen=True)
class Question:
    """What is asked. settings: `--config`, as Snakemake reads it. device: the one to plan for; '':
    the site's, or the one here. all_gpus: show what is known of others too. measure: try it here.
    workers: embed jobs that run here at a time; 0: one per core, or one per GPU. threads: CPU
    threads of each. lengths: a file with the number of unique sequences by length, instead of the
    input.
    """

    configfile: Path | None = None
    settings: tuple[str, ...] = ()
    site: str = ""
    queue: str = ""
    device: str = ""
    all_gpus: bool = False
    measure: bool = False
    threads: int = 1
    workers: int = 0
    elsewhere: tuple[Path, ...] = ()
    lengths: Path | None = None

    @cached_property
    def config(self) -> Config:
        """As the workflow sees it."""
        return read_config(self.configfile, self.settings)


@dataclass(frozen=True)
class _Draft:
    """What one model has to do, and how long that takes by device; chosen: the one to plan for."""

    config: Config
    model: Model
    found: Outstanding | None
    todo: Work
    forecasts: tuple[Forecast, ...]
    chosen: Forecast
    bytes: dict[str, int]

    @property
    def jobs(self) -> int:
        return int(self.config["buckets"])

    @property
    def on_cpu(self) -> bool:
        return costs.known_gpu(self.chosen.speed.device) is None


def plan(question: Question) -> list[Plan]:
    """Work out a plan for each model. Reads the sequences of an earlier deduplicate if they are
    those of the configuration.

    Submissions of all models are cut alike, for the one that takes longest.
    """
    file, told, config = question.configfile, question.settings, question.config
    here, site = _where(question.site)
    with given_input(config, question.lengths, question.measure) as given:
        drafts = [
            _draft(question, settings, given, here, site) for settings in by_model(config).values()
        ]
    longest = max(draft.chosen.hours or 0.0 for draft in drafts)
    ways = [one for one in proposals(site, longest) if question.queue in ("", one.queue)]
    if not ways:
        raise ConfigError(
            f"--queue: {question.queue}: {here.site or 'no site'} has no such queue with GPUs",
            key="--queue",
        )
    on_cpu = all(draft.on_cpu for draft in drafts)
    submits = bool(question.site) or (bool(here.site) and not on_cpu)
    words = tuple(
        command(ways[0], here.site, site, file, config, given=told)
        if submits
        else local_command(len(visible_gpus()), file, told)
    )
    missing = _missing(site, here) if submits else ""
    if missing.startswith(SBATCH_ACCOUNT):
        words = (f"{SBATCH_ACCOUNT}=NAME", *words)
    free = shutil.disk_usage(existing(Path(config["results"]))).free
    return [
        _plan(
            draft,
            given,
            alone=not question.site,
            free_bytes=free,
            here=here,
            missing=missing,
            ways=ways,
            words=words,
        )
        for draft in drafts
    ]


def _draft(
    question: Question, config: Config, given: Input, here: Here, site: dict[str, Any]
) -> _Draft:
    model = find_model(config["model"])
    policy = LongSequences(**config["embedding"]["long_sequences"])
    found = outstanding(config, given.sequences) if given.sequences else None
    todo = costs.work(model, found.lengths if found else given.lengths, policy)
    whole = costs.work(model, given.lengths, policy)
    trial = None
    if question.measure and given.sequences:
        trial = Trial(given.sequences, question.threads, question.workers or workers_here(config))
    speeds = best_speeds(
        config,
        model,
        todo if todo.tokens else whole,
        trial,
        question.elsewhere,
        at_a_site=bool(here.site),
    )
    sizes = vector_bytes(config, model, given.lengths)
    if given.sequences:
        sizes = table_bytes(given.sequences, given.accepted) | sizes
    else:
        sizes = estimated_table_bytes(given.records, given.unique, given.residues) | sizes
    sizes |= weights_bytes(config, model)
    forecasts = tuple(
        Forecast(speed, device_hours(todo, speed, config["buckets"])) for speed in speeds
    )
    chosen = _chosen(question, here, site, forecasts)
    if chosen.hours is None and todo.tokens and (question.device or here.site):
        raise ConfigError(
            f"--device: {chosen.speed.device}: {chosen.speed.why}",
            key="--device",
            remedy="name another one, such as --device A100",
        )
    kinds = (queue.get("gpu_type", "") for queue in (site.get("queues") or {}).values())
    labels = {costs.device_label(kind.upper().replace("_", " ")) for kind in kinds}
    shown = tuple(one for one in forecasts if _shown(one, chosen, question, labels))
    return _Draft(config, model, found, todo, shown, chosen, sizes)


def _shown(one: Forecast, chosen: Forecast, question: Question, labels: set[str]) -> bool:
    """Whether a plan tells of a device: of all, or of those that are here, were measured, or are
    at the site.
    """
    speed = one.speed
    founded = speed.here or speed.basis.startswith("measured") or speed.device in labels
    return question.all_gpus or one is chosen or founded


def _plan(
    draft: _Draft,
    given: Input,
    *,
    alone: bool,
    free_bytes: int,
    here: Here,
    missing: str,
    ways: Sequence[Proposal],
    words: tuple[str, ...],
) -> Plan:
    weights, verified = weights_in_words(draft.config, draft.model)
    if draft.model.license != "MIT":
        weights += f"; license: {draft.model.license}"
    found, chosen = draft.found, draft.chosen
    mine = chosen.speed.here or chosen.speed.basis == "measured here"
    local = chosen.hours is not None and mine and alone
    buckets = draft.config["buckets"] if local else ways[0].buckets
    return Plan(
        made=now(),
        model=draft.model.name,
        weights=weights,
        verified=verified,
        counted=given.counted,
        records=given.records,
        accepted=given.accepted,
        unique=given.unique,
        residues=given.residues,
        lengths=dict(given.lengths),
        stored=found.stored if found else None,
        reused=None,
        todo=draft.todo,
        forecasts=draft.forecasts,
        device=chosen.speed.device,
        local_hours=local_hours(chosen, draft.jobs) if local else None,
        bytes=draft.bytes,
        free_bytes=free_bytes,
        files=file_count(draft.bytes["store"], buckets, chosen.hours or 0.0, draft.config),
        site=here.site,
        recognized=here.why if here.site else "",
        missing=missing,
        proposals=tuple(cut_alike(one, chosen.hours or 0.0) for one in ways),
        command=words,
    )


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


def _missing(site: Mapping[str, Any], here: Here) -> str:
    """What the command lacks, in words that begin with the variable if it is that."""
    if here.why and site.get("scheduler") == "slurm" and not names_account("slurm"):
        several = [] if os.environ.get(SBATCH_ACCOUNT) else slurm.accounts()
        return f"{SBATCH_ACCOUNT}: one of {', '.join(several)}" if len(several) > 1 else ""
    if site.get("account", {}).get("required") and not account_of(site):
        return f"an account: {account_words(site)}"
    return ""


def _chosen(
    question: Question, here: Here, site: Mapping[str, Any], forecasts: tuple[Forecast, ...]
) -> Forecast:
    """The device to plan submissions for: the named one, the site's, a measured one, or an A100."""
    queues = site.get("queues") or {}
    queue = queues.get(question.queue or site.get("default_queue") or next(iter(queues), ""), {})
    of_site = costs.gpu_table()["sites"].get(here.site, "") or queue.get("gpu_type", "")
    wanted = question.device or of_site
    named = [one for one in forecasts if wanted and wanted.lower() in one.speed.device.lower()]
    exact = (one for one in named if one.speed.device.lower() == wanted.lower())
    if found := next(exact, next(iter(named), None)):
        return found
    if question.device:
        known = ", ".join(forecast.speed.device for forecast in forecasts)
        raise ConfigError(
            f"--device: {question.device}: nothing is known of it; known are {known}",
            key="--device",
        )
    mine = [one for one in forecasts if one.speed.here or one.speed.basis == "measured here"]
    # of what is here the measured one counts more; a site's jobs get GPUs
    mine.sort(key=lambda one: one.speed.basis != "measured here")
    fitting = (
        one
        for one in mine
        if not here.site
        or costs.known_gpu(one.speed.device)
        or (not question.site and one.speed.basis == "measured here")
    )
    return next(fitting, None) or next(one for one in forecasts if one.speed.device == "A100")
