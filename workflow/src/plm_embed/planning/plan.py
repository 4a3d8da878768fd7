"""A campaign's price before it is paid: what is left to compute, how long that takes where, how to
cut it into jobs, and the bytes.
"""

import math
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from plm_embed.errors import ConfigError
from plm_embed.inference.settings import Settings
from plm_embed.io.files import size as size_of
from plm_embed.io.threads import cores
from plm_embed.jobs.completion_record import completion_records
from plm_embed.jobs.gpus import gpu_names, visible_gpus
from plm_embed.jobs.node import SECONDS_MARGIN, TIME_MARGIN
from plm_embed.keys import MAX_BUCKETS
from plm_embed.models.manifest import caveat, read_record
from plm_embed.models.registry import Model
from plm_embed.planning import costs
from plm_embed.planning.costs import Speed, Work
from plm_embed.planning.count import Input, counted_input, lengths_left
from plm_embed.wording import did_you_mean, readable
from plm_embed.workflow.call import CLONE, profile_folder, shell_line
from plm_embed.workflow.config import (
    Config,
    models_of,
    read_config,
    settings_of,
    source_of,
)
from plm_embed.workflow.resources import local_resources

STARTUP_HOURS = 0.05
"""Time until a worker's first batch: Python, weights, self-test."""
HOURS_PER_JOB = 3.0
"""Aim for a job: long enough to be worth its wait, short enough to lose little and start
soon.
"""
SHORT_HOURS = 0.5
"""Hours of all devices together: below it, nothing is gained by another number of buckets."""
FILES_PER_BUCKET = 9
"""Besides its parts but one: its two files of sequences, completion record, heartbeat, log,
benchmark, and Snakemake's notes.
"""


@dataclass(frozen=True)
class Forecast:
    """The work that is left of one model, and its hours on one device."""

    model: str
    weights: str
    """The ones that will be used, in words."""
    verified: bool
    stored: int
    """Unique sequences that the store has."""
    todo: Work
    speeds: tuple[Speed, ...]
    """The first one is planned for."""

    @property
    def hours(self) -> float:
        return self.todo.tokens / self.speeds[0].tokens_per_second / 3600 if self.todo.tokens else 0


@dataclass(frozen=True)
class Jobs:
    """Jobs of each model. workers: of a job; here: jobs that run on this machine at a time, 0
    for elsewhere; minutes: that the profile gives a job, or 0; hours: that the longest takes, with
    its start.
    """

    buckets: int
    workers: int
    here: int
    minutes: int
    hours: float


@dataclass(frozen=True)
class Plan:
    """Everything that `plm-embed plan` prints."""

    input: Input
    models: tuple[Forecast, ...]
    jobs: Jobs
    bytes: dict[str, int]
    """Bytes to be written, by kind."""
    free_bytes: int
    files: int
    command: str


def plan(
    configfile: Path | None = None,
    settings: Sequence[str] = (),
    *,
    profile: str = "",
    devices: Sequence[str] = (),
    lengths: Path | None = None,
    elsewhere: Sequence[Path] = (),
) -> Plan:
    """Plan a campaign on this machine, or in the jobs of a profile.

    settings: `KEY=VALUE`, as Snakemake's --config. devices: to plan for the first of; without any,
    the profile's GPU, or what is here. lengths: a file to count instead of the input. elsewhere:
    folders of completion records with speeds. ConfigError for a setting or a device that is wrong.
    """
    config = read_config(configfile, settings)
    asked = _profile(profile) if profile else None
    chosen = _devices(devices, asked)
    with counted_input(config, lengths) as counted:
        models = [
            _forecast(config, model, counted, chosen, elsewhere)
            for model in models_of(config).values()
        ]
    here = 0 if chosen else 1 if visible_gpus() else cores()
    jobs = _jobs(config, max(model.hours for model in models), asked, here)
    results = Path(config["results"]).absolute()
    folder = next(path for path in (results, *results.parents) if path.is_dir())
    parts = sum(model.hours for model in models) * 60 / Settings.flush_minutes
    return Plan(
        counted,
        tuple(models),
        jobs,
        _bytes(config, counted),
        shutil.disk_usage(folder).free,
        len(models) * jobs.buckets * FILES_PER_BUCKET + int(parts),
        _command(config, profile, configfile, settings, jobs),
    )


def _forecast(
    config: Config, model: Model, counted: Input, devices: Sequence[str], elsewhere: Sequence[Path]
) -> Forecast:
    settings = settings_of(config)
    left = lengths_left(config, model, counted)
    todo = costs.work(model, left, settings.long_sequences)
    whole = costs.work(model, counted.lengths, settings.long_sequences)
    dtype = settings.compute_dtype
    speeds: dict[str, Speed] = {}
    for folder in (Path(config["results"], model.name, "embedded"), *elsewhere):
        records = completion_records(folder)
        for speed in costs.measured(model.name, dtype, records, f"the jobs in {folder}"):
            speeds.setdefault(speed.device, speed)
    chosen = list(devices)
    if not chosen:  # this machine's, else what has been at work
        chosen = list(dict.fromkeys(map(costs.device_label, gpu_names()))) or [costs.cpu_label()]
        chosen += speeds
    work = todo if todo.tokens else whole
    if not work.tokens:
        chosen, speeds = [""], {"": Speed("", 1.0, "nothing to compute")}
    known = [speeds.get(name) or costs.estimated(name, model, work, dtype) for name in chosen]
    words, verified = _weights(config, model)
    return Forecast(
        model.name,
        words,
        verified,
        counted.unique - sum(left.values()),
        todo,
        tuple(dict.fromkeys(known)),
    )


def _devices(named: Sequence[str], profile: Config | None) -> list[str]:
    """Return the devices to plan for: those named, a profile's GPU, or none for this machine's."""
    known = {name.lower(): name for name in costs.gpu_table()["gpus"]}
    if named or profile is None:
        return [known.get(name.lower(), name) for name in named]
    label = costs.device_label(str(_embed(profile).get("gpu_model", "")).upper().replace("_", " "))
    return [label if costs.known_gpu(label) else "A100"]


def _weights(config: Config, model: Model) -> tuple[str, bool]:
    """Return in words which weights will be used, and whether nothing speaks against their being
    the published ones.
    """
    terms = f"; license: {model.license}" if model.license != "MIT" else ""
    record = read_record(Path(config["results"], model.name))
    if record or not model.trained:
        doubt = caveat(model.name, record)
        return (doubt or "the published ones, by their SHA-256") + terms, not doubt
    if source := source_of(config, model):
        return f"{source}, to be compared with the published ones{terms}", True
    known = bool(model.sha256)
    check = "a SHA-256 is known" if known else "no published SHA-256 is known"
    about = readable(_download_bytes(model))
    return f"download of {about} from {model.address}, {check}{terms}", known


def _download_bytes(model: Model) -> int:
    return model.bytes or 4 * model.parameters


def _bytes(config: Config, counted: Input) -> dict[str, int]:
    """Return the bytes that a campaign writes, by what they are."""
    settings, models = settings_of(config), list(models_of(config).values())
    buckets = costs.BYTES_PER_SEQUENCE * counted.unique + costs.BYTES_PER_RESIDUE * counted.residues
    per_record = costs.BYTES_PER_RECORD * counted.records
    vectors = sum(costs.vector_bytes(settings, model, counted.lengths) for model in models)
    weights = 0
    for model in models:
        if not read_record(Path(config["results"], model.name)):
            source = source_of(config, model) or model.shipped
            weights += size_of(Path(source)) if source else _download_bytes(model)
    return {
        "sequences": round(buckets) + 2 * per_record,
        "store": vectors,
        "master": vectors,
        "index and records": 2 * per_record * len(models),
        "weights": weights,
    }


def _profile(name: str) -> Config:
    """Return a profile from where Snakemake finds it. ConfigError where there is none."""
    for folder in ("", "~/.config/snakemake", "/etc/xdg/snakemake"):
        path = Path(folder).expanduser() / profile_folder(name) / "profile.yaml"
        if path.is_file():
            return yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    shipped = sorted(path.parent.name for path in CLONE.glob("profiles/*/profile.yaml"))
    what = f"--profile: {name}: not found{did_you_mean(name, shipped)}"
    raise ConfigError(what, key="--profile", remedy=f"shipped are {', '.join(shipped)}")


def _jobs(config: Config, hours: float, profile: Config | None, here: int) -> Jobs:
    """Cut so many device-hours into jobs that fit the profile's time, if there is one. here: jobs
    that run on this machine at a time, or 0.
    """
    workers, minutes, most = 1, 0, HOURS_PER_JOB
    if profile is not None:
        embed = _embed(profile)
        asked = str(embed.get("runtime", 240))
        workers = int(embed.get("gpu", 1)) * int(embed.get("nodes", 1))
        minutes = int(asked) if asked.isdecimal() else 240
        most = min(most, (minutes / 60 - SECONDS_MARGIN / 3600) / TIME_MARGIN - STARTUP_HOURS)
        if most <= 0:
            raise ConfigError(f"runtime: {minutes} minutes are too few for a job", key="runtime")
    elif here:
        workers = len(visible_gpus()) or 1
    buckets = min(MAX_BUCKETS, math.ceil(hours / (workers * most)) or 1)
    if here:
        buckets = max(buckets, here) if hours > SHORT_HOURS else int(config["buckets"])
    each = hours / (buckets * workers) + STARTUP_HOURS
    return Jobs(buckets, workers, min(here, buckets), minutes, each)


def _embed(profile: Config | None) -> Config:
    """Return what a profile asks for the jobs of embed."""
    rules = (profile or {}).get("set-resources") or {}
    return dict(rules.get("embed") or {}) if isinstance(rules, Mapping) else {}


def _command(
    config: Config, profile: str, configfile: Path | None, settings: Sequence[str], jobs: Jobs
) -> str:
    words = ["--profile", profile_folder(profile)] if profile else ["--cores", str(cores())]
    if not profile:
        words += local_resources(len(visible_gpus()))
    if configfile:
        words += ["--configfile", str(configfile)]
    other = [word for word in settings if not word.startswith("buckets=")]
    if jobs.buckets != config["buckets"] or len(other) < len(settings):
        other.append(f"buckets={jobs.buckets}")
    return shell_line([*words, *(["--config", *other] if other else [])])
