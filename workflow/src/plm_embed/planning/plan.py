"""A campaign's price before it is paid: what is left to compute, how long that takes where, how to
cut it into jobs, and the bytes.
"""

import math
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from plm_embed.errors import ConfigError
from plm_embed.fingerprint import MATRICES, storage_bytes
from plm_embed.inference.settings import resolved
from plm_embed.io.files import sha256_file
from plm_embed.io.files import size as size_of
from plm_embed.io.threads import cores
from plm_embed.jobs.gpus import visible_gpus
from plm_embed.jobs.node import SECONDS_MARGIN, TIME_MARGIN
from plm_embed.kernels.hardware import cpu_name, nvidia_gpus
from plm_embed.keys import MAX_BUCKETS
from plm_embed.models.registry import MODELS, Model
from plm_embed.models.weights import UNPUBLISHED, caveat, demo_caveat, read_record
from plm_embed.planning import costs
from plm_embed.planning.costs import Speed, Work, device_label
from plm_embed.planning.count import Input, counted_input, lengths_left
from plm_embed.wording import did_you_mean, readable
from plm_embed.workflow.call import CLONE, profile_folder, shell_line
from plm_embed.workflow.config import Config, models_of, read_config, settings_of, source_of
from plm_embed.workflow.resources import asks_for_gpu, local_resources

BYTES_PER_SCORE = 12
"""Bytes for a score and its checksum."""
BYTES_PER_ROW = 108
"""Bytes for a vector's key, length, number of windows and checksums."""
BYTES_PER_RECORD = 80
"""Bytes for a record in each of members, index and records.parquet: key, id, a line of header."""
BYTES_PER_SEQUENCE, BYTES_PER_RESIDUE = 70, 0.54
"""Bytes in a bucket's file: the key, and residues as Parquet packs those of proteins."""
STARTUP_HOURS = 0.05
"""Time until a worker's first batch: Python, weights, self-test."""
HOURS_PER_JOB = 3.0
"""Aim for a job: long enough to be worth its wait, short enough to lose little and start soon."""
SHORT_HOURS = 0.5
"""Hours of all devices together: below it, nothing is gained by another number of buckets."""


@dataclass(frozen=True)
class Forecast:
    """The work that is left of one model. weights: in words; verified: nothing speaks against
    their being the published ones; stored: unique sequences that the store has; longest: residues
    of a sequence that gets a vector, 0 for no limit; too_long: unique sequences that get none;
    passes: through the model for each token; speeds: the first one is planned for; hours: on one
    such device.
    """

    model: str
    weights: str
    verified: bool
    stored: int
    longest: int
    too_long: int
    todo: Work
    passes: float
    speeds: tuple[Speed, ...]
    hours: float


@dataclass(frozen=True)
class Jobs:
    """Jobs of each model. configured: buckets of the configuration; workers: of a job; local: jobs
    that run on this machine at a time, 0 for none; minutes: that the profile gives a job, or 0;
    hours: of the longest, without its start.
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
    named = configfile or Path("config/config.yaml").exists() or "inputs=" in " ".join(settings)
    if lengths and not named:
        settings = ("inputs=your_file", *settings)
    config, gpus = read_config(configfile, settings), len(visible_gpus())
    resources, device = _embed_job(profile) if profile else ({}, "")
    if profile and not devices:
        devices = [device]
    with counted_input(config, lengths) as counted:
        models = tuple(
            _forecast(config, model, counted, devices, elsewhere)
            for model in models_of(config).values()
        )
    local = 0 if devices else 1 if gpus else cores()
    jobs = _jobs(max(model.hours for model in models), resources, local, gpus, config["buckets"])
    if profile:
        words = ["--profile", profile_folder(profile)]
    elif devices:  # of another machine
        words = ["--cores", "all", *local_resources(int(devices[0] in costs.gpu_table()["gpus"]))]
    else:
        words = ["--cores", str(cores()), *local_resources(gpus)]
    if configfile:
        words += ["--configfile", str(configfile)]
    changes = [word for word in settings if not word.startswith("buckets=")]
    if jobs.buckets != config["buckets"] or len(changes) < len(settings):
        changes.append(f"buckets={jobs.buckets}")
    command = shell_line([*words, *(["--config", *changes] if changes else [])])
    results = Path(config["results"]).absolute()
    folder = next(path for path in (results, *results.parents) if path.is_dir())
    free = shutil.disk_usage(folder).free
    return Plan(counted, models, jobs, _bytes(config, counted), free, command)


def _embed_job(profile: str) -> tuple[Config, str]:
    """Return the resources of a job of embed by a profile, from where Snakemake finds it, and its
    device: the GPU that it names, else an A100, or CPU cores. ConfigError for no such profile.
    """
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
    resources = {"gpu": 1} | (resources or {})
    if resources.get("device") == "cpu" or not asks_for_gpu(resources):
        workers = int(resources["gpu"]) or 1
        return resources, device_label(cpu_name(), max(1, int(threads or 1) // workers))
    gpu = device_label(str(resources.get("gpu_model", "")).upper().replace("_", " "))
    return resources, gpu if gpu in costs.gpu_table()["gpus"] else "A100"


def _forecast(
    config: Config, model: Model, counted: Input, devices: Sequence[str], elsewhere: Sequence[Path]
) -> Forecast:
    settings = resolved(settings_of(config), model, model.name)
    left = lengths_left(config, model, counted)
    longest = settings.long_sequences.max_residues
    policies, dtype = (settings.long_sequences, settings.linker), settings.compute_dtype
    masked = "pseudo_perplexity" in settings.scores
    todo = costs.work(model, left, *policies, masked=masked)
    whole = costs.work(model, counted.lengths, *policies, masked=masked)
    plain = costs.work(model, counted.lengths, *policies)
    folders = (Path(config["results"], model.name, "embedded"), *elsewhere)
    measured = costs.measured(model.name, dtype, folders)
    if not devices:  # this machine's, and what has been at work
        present = [device_label(gpu.name) for gpu in nvidia_gpus()] or [device_label(cpu_name(), 1)]
        devices = [*present, *measured]
    speeds = [Speed("", 1.0, "nothing to compute")]
    if whole.tokens:
        speeds = [
            measured.get(label)
            or costs.estimated(label, model, todo if todo.tokens else whole, dtype)
            for label in dict.fromkeys(devices)
        ]
    stored, passes = counted.unique - sum(left.values()), whole.tokens / max(plain.tokens, 1)
    hours = todo.tokens / speeds[0].tokens_per_second / 3600
    weights, lengths = _weights(config, model), (longest, counted.unique - whole.sequences)
    return Forecast(model.name, *weights, stored, *lengths, todo, passes, tuple(speeds), hours)


def _weights(config: Config, model: Model) -> tuple[str, bool]:
    """Return in words which weights will be used, and whether nothing speaks against their being
    the published ones.
    """
    terms = f"; license: {model.license}" if model.license not in ("", "MIT") else ""
    if record := read_record(Path(config["results"], model.name)):
        doubt = caveat(model.name, record)
        return (doubt or "the published ones, by their SHA-256") + terms, not doubt
    source = source_of(config, model) or str(model.shipped or "")
    if not model.trained:
        digest = sha256_file(Path(source)) if Path(source).is_file() else ""
        return f"{source}, {demo_caveat(model, digest)}", False
    if model.name not in MODELS:
        return f"{source}, {UNPUBLISHED}", False
    if source:
        check = "to be compared with the published ones"
    else:
        source = f"download of {readable(_download_bytes(model))} from {model.address}"
        check = "its checksum will be verified"
    check = check if model.sha256 else "not verified: no published checksum is known"
    return f"{source}, {check}{terms}", bool(model.sha256)


def _bytes(config: Config, counted: Input) -> dict[str, int]:
    """Return the bytes that a campaign writes, by their kind."""
    settings, models = settings_of(config), models_of(config).values()
    buckets = BYTES_PER_SEQUENCE * counted.unique + BYTES_PER_RESIDUE * counted.residues
    records = 2 * BYTES_PER_RECORD * counted.records
    pooled = len(settings.layers) * sum(pooling not in MATRICES for pooling in settings.pooling)
    vectors, weights = 0, 0
    for model in models:
        per_row = BYTES_PER_ROW + BYTES_PER_SCORE * len(settings.scores)
        per_row += pooled * model.dim * storage_bytes(settings.storage_dtype)
        rows = costs.work(model, counted.lengths, settings.long_sequences).sequences
        matrices = costs.per_residue_bytes(settings, model.dim, model.family, counted.lengths)
        vectors += rows * per_row + matrices
        if not read_record(Path(config["results"], model.name)):
            source = source_of(config, model) or model.shipped
            weights += size_of(Path(source)) if source else _download_bytes(model)
    return {
        "sequences": round(buckets) + records,
        "store": vectors,
        "master": vectors,
        "index and records": records * len(models),
        "weights": weights,
    }


def _download_bytes(model: Model) -> int:
    return model.bytes or 4 * model.parameters


def _jobs(hours: float, resources: Config, local: int, gpus: int, buckets: int) -> Jobs:
    """Cut so many device-hours into jobs that fit the time of a profile, if there is one.

    resources: of a profile for embed; local: jobs that run on this machine at a time, or 0; gpus:
    of this machine; buckets: of the configuration, for a short campaign.
    """
    workers, minutes, most = gpus if local and gpus else 1, 0, HOURS_PER_JOB
    if resources:
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
    longest = hours / (count * workers)
    return Jobs(count, buckets, workers, min(local, count), minutes, longest)
