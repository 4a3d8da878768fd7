"""A campaign's price before it is paid: what is left to compute, how long that takes where, how to
cut it into jobs, and the bytes.
"""

import math
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from plm_embed.errors import ConfigError, WeightsError
from plm_embed.io.files import size as size_of
from plm_embed.io.threads import cores
from plm_embed.jobs.completion_record import completion_records
from plm_embed.jobs.gpus import visible_gpus
from plm_embed.jobs.node import SECONDS_MARGIN, TIME_MARGIN
from plm_embed.kernels.hardware import nvidia_gpus
from plm_embed.keys import MAX_BUCKETS
from plm_embed.models.checkpoints import check_shapes
from plm_embed.models.registry import MODELS, Model
from plm_embed.models.weights import caveat, read_record
from plm_embed.planning import costs
from plm_embed.planning.costs import Speed, Work
from plm_embed.planning.count import Input, counted_input, lengths_left
from plm_embed.wording import did_you_mean, readable
from plm_embed.workflow.call import CLONE, profile_folder, shell_line
from plm_embed.workflow.config import Config, models_of, read_config, settings_of, source_of
from plm_embed.workflow.resources import asks_for_gpu, local_resources

STARTUP_HOURS = 0.05
"""Time until a worker's first batch: Python, weights, self-test."""
HOURS_PER_JOB = 3.0
"""Aim for a job: long enough to be worth its wait, short enough to lose little and start soon."""
SHORT_HOURS = 0.5
"""Hours of all devices together: below it, nothing is gained by another number of buckets."""


@dataclass(frozen=True)
class Forecast:
    """The work that is left of one model. weights: in words; verified: nothing speaks against
    their being the published ones; stored: unique sequences that the store has; passes: through the
    model for each token; speeds: the first one is planned for.
    """

    model: str
    weights: str
    verified: bool
    stored: int
    todo: Work
    passes: float
    speeds: tuple[Speed, ...]

    @property
    def hours(self) -> float:
        """Return the hours on one device."""
        return self.todo.tokens / self.speeds[0].tokens_per_second / 3600


@dataclass(frozen=True)
class Jobs:
    """Jobs of each model. workers: of a job; local: jobs that run on this machine at a time, 0 for
    none; minutes: that the profile gives a job, or 0; hours: of the longest, with its start;
    configured: buckets in the configuration.
    """

    buckets: int
    configured: int
    workers: int
    local: int
    minutes: int
    hours: float


@dataclass(frozen=True)
class Plan:
    """Everything that `plm-embed plan` prints. bytes: to be written, by kind."""

    input: Input
    models: tuple[Forecast, ...]
    jobs: Jobs
    bytes: dict[str, int]
    free_bytes: int
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
    the profile's GPU or its CPU cores, or what is here. lengths: a file to count instead of the
    input. elsewhere: folders of completion records with speeds. ConfigError for a setting or a
    device that is wrong.
    """
    config, (resources, threads) = read_config(configfile, settings), _embed_job(profile)
    names = {name.lower(): name for name in costs.gpu_table()["gpus"]}
    chosen = [names.get(name.lower(), name) for name in devices]
    if profile and not chosen:
        gpu = costs.device_label(str(resources.get("gpu_model", "")).upper().replace("_", " "))
        chosen = [gpu if costs.known_gpu(gpu) else "A100"]
        if resources.get("device") == "cpu" or not asks_for_gpu(resources):
            chosen = [costs.cpu_label(max(1, threads // (int(resources["gpu"]) or 1)))]
    with counted_input(config, lengths) as counted:
        models = [
            _forecast(config, model, counted, chosen, elsewhere)
            for model in models_of(config).values()
        ]
    here = len(visible_gpus())
    local = 0 if chosen else 1 if here else cores()
    longest = max(model.hours for model in models)
    jobs = _jobs(longest, resources if profile else None, local, here, config["buckets"])
    words = ["--cores", str(cores()), *local_resources(here)]
    if profile:
        words = ["--profile", profile_folder(profile)]
    if configfile:
        words += ["--configfile", str(configfile)]
    changes = [word for word in settings if not word.startswith("buckets=")]
    if jobs.buckets != config["buckets"] or len(changes) < len(settings):
        changes.append(f"buckets={jobs.buckets}")
    command = shell_line([*words, *(["--config", *changes] if changes else [])])
    results = Path(config["results"]).absolute()
    folder = next(path for path in (results, *results.parents) if path.is_dir())
    free = shutil.disk_usage(folder).free
    return Plan(counted, tuple(models), jobs, _bytes(config, counted), free, command)


def _embed_job(profile: str) -> tuple[Config, int]:
    """Return the resources and the threads of a job of embed by a profile, from where Snakemake
    finds it.

    ConfigError where there is no such profile.
    """
    if not profile:
        return {}, 1
    folders = (Path(place) for place in ("", "~/.config/snakemake", "/etc/xdg/snakemake"))
    paths = [place.expanduser() / profile_folder(profile) / "profile.yaml" for place in folders]
    path = next(filter(Path.is_file, paths), None)
    if not path:
        shipped = sorted(path.parent.name for path in CLONE.glob("profiles/*/profile.yaml"))
        message = f"--profile: {profile}: not found{did_you_mean(profile, shipped)}"
        remedy = f"shipped are {', '.join(shipped)}"
        raise ConfigError(message, key="--profile", remedy=remedy)
    content = yaml.safe_load(path.read_text("utf-8")) or {}
    resources, threads = (
        rules.get("embed") if isinstance(rules := content.get(key), dict) else None
        for key in ("set-resources", "set-threads")
    )
    return {"gpu": 1} | (resources or {}), int(threads or 1)


def _forecast(
    config: Config, model: Model, counted: Input, devices: Sequence[str], elsewhere: Sequence[Path]
) -> Forecast:
    settings = settings_of(config)
    left = lengths_left(config, model, counted)
    policies = settings.long_sequences, settings.linker
    masked = "pseudo_perplexity" in settings.scores
    todo, whole = (
        costs.work(model, by_length, *policies, masked=masked)
        for by_length in (left, counted.lengths)
    )
    work = todo if todo.tokens else whole
    plain = costs.work(model, counted.lengths, *policies)
    dtype = settings.compute_dtype
    measured: dict[str, Speed] = {}
    for folder in (Path(config["results"], model.name, "embedded"), *elsewhere):
        records = completion_records(folder)
        for speed in costs.measured(model.name, dtype, records, f"the jobs in {folder}"):
            measured.setdefault(speed.device, speed)
    if not devices:  # this machine's, and what has been at work
        present = [costs.device_label(gpu.name) for gpu in nvidia_gpus()] or [costs.cpu_label()]
        devices = [*present, *measured]
    speeds = [Speed("", 1.0, "nothing to compute")]
    if work.tokens:
        speeds = [
            measured.get(name) or costs.estimated(name, model, work, dtype)
            for name in dict.fromkeys(devices)
        ]
    stored = counted.unique - sum(left.values())
    passes = whole.tokens / max(plain.tokens, 1)
    return Forecast(model.name, *_weights(config, model), stored, todo, passes, tuple(speeds))


def _weights(config: Config, model: Model) -> tuple[str, bool]:
    """Return in words which weights will be used, and whether nothing speaks against their being
    the published ones.
    """
    terms = f"; license: {model.license}" if model.license not in ("", "MIT") else ""
    record = read_record(Path(config["results"], model.name))
    if record or not model.trained:
        doubt = caveat(model.name, record)
        return (doubt or "the published ones, by their SHA-256") + terms, not doubt
    if source := source_of(config, model):
        if model.name not in MODELS:
            return f"{source}, {caveat(model.name, None)}", False
        try:
            check_shapes(Path(source).absolute(), model)
        except WeightsError as error:
            return str(error).removeprefix("weights: "), False
        if not model.sha256:
            return f"{source}, not verified: no published checksum is known{terms}", False
        return f"{source}, to be compared with the published ones{terms}", True
    check = "its checksum will be verified" if model.sha256 else "no published checksum is known"
    size = readable(_download_bytes(model))
    return f"download of {size} from {model.address}, {check}{terms}", bool(model.sha256)


def _download_bytes(model: Model) -> int:
    return model.bytes or 4 * model.parameters


def _bytes(config: Config, counted: Input) -> dict[str, int]:
    """Return the bytes that a campaign writes, by their kind."""
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


def _jobs(hours: float, resources: Config | None, local: int, gpus: int, buckets: int) -> Jobs:
    """Cut so many device-hours into jobs that fit the time of a profile, if there is one.

    resources: of a profile for embed; local: jobs that run on this machine at a time, or 0; gpus:
    of this machine; buckets: of the configuration, for a short campaign.
    """
    workers, minutes, most = gpus if local and gpus else 1, 0, HOURS_PER_JOB
    if resources is not None:
        runtime = str(resources.get("runtime", 240))
        workers = (int(resources["gpu"]) or 1) * int(resources.get("nodes", 1))
        minutes = int(runtime) if runtime.isdecimal() else 240
        most = min(most, (minutes / 60 - SECONDS_MARGIN / 3600) / TIME_MARGIN - STARTUP_HOURS)
        if most <= 0:
            raise ConfigError(
                f"runtime: {minutes} minutes are too few for a job; set more in the profile",
                key="runtime",
            )
    count = min(MAX_BUCKETS, math.ceil(hours / (workers * most)) or 1)
    if not hours or (local and hours <= SHORT_HOURS):
        count = buckets
    elif local:
        count = max(count, local)
    longest = hours / (count * workers) + STARTUP_HOURS
    return Jobs(count, buckets, workers, min(local, count), minutes, longest)
