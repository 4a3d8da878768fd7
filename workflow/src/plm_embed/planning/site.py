"""The machine that jobs of embed run on: this one, or one of a cluster by its profile."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plm_embed.errors import ConfigError
from plm_embed.jobs.gpus import visible_gpus
from plm_embed.kernels.devices import cores, cpu_name, nvidia_gpus
from plm_embed.planning.costs import TABLE, device_label
from plm_embed.wording import did_you_mean
from plm_embed.workflow.call import CLONE, profile_folder
from plm_embed.workflow.config import Config, key_and_value, listed, read_yaml
from plm_embed.workflow.resources import asks_for_gpu, local_resources

_MINUTES = {"": 1 / 60, "s": 1 / 60, "m": 1, "h": 60, "d": 1440, "w": 10080}
"""Minutes of Snakemake's units, by their first letters; a number with a point alone has seconds."""


@dataclass(frozen=True)
class Site:
    """A machine or a cluster. devices: to plan for the first of; options: of Snakemake; workers: of
    a job; at_once: jobs at a time, 0 on a cluster; minutes: of a job there.
    """

    devices: Sequence[str]
    options: Sequence[str]
    workers: int
    at_once: int = 0
    minutes: int = 240


def this_machine(devices: Sequence[str]) -> Site:
    """Return this machine, or one with these devices: a job at a time on GPUs, one a CPU core."""
    gpus = 1 if devices else len(visible_gpus())
    options = ["--cores", "all" if devices else str(cores()), *local_resources(gpus)]
    devices = devices or [device_label(gpu.name) for gpu in nvidia_gpus() if gpus]
    devices = devices or [device_label(cpu_name(), 1)]
    return Site(devices, options, gpus or 1, at_once=1 if gpus else cores())


def cluster(profile: str, devices: Sequence[str]) -> Site:
    """Return the jobs of a profile, from where Snakemake finds it. Without devices they have the
    GPU that it names, else an A100, or CPU cores. ConfigError for no such profile.
    """
    folders = (Path(place) for place in ("", "~/.config/snakemake", "/etc/xdg/snakemake"))
    paths = [place.expanduser() / profile_folder(profile) / "profile.yaml" for place in folders]
    path = next(filter(Path.is_file, paths), None)
    if not path:
        shipped = sorted(path.parent.name for path in CLONE.glob("profiles/*/profile.yaml"))
        message = f"--profile: {profile}: not found{did_you_mean(profile, shipped)}"
        remedy = f"shipped are {', '.join(shipped)}"
        raise ConfigError(message, key="--profile", remedy=remedy)
    embed = _resources(read_yaml(path))
    workers = embed["gpu"] or 1
    if embed.get("device") == "cpu" or not asks_for_gpu(embed):
        device = device_label(cpu_name(), max(1, embed["threads"] // workers))
    else:
        device = device_label(str(embed.get("gpu_model", "")).upper().replace("_", " "))
        device = device if device in TABLE["gpus"] else "A100"
    workers *= embed["nodes"] or 1
    options = ["--profile", profile_folder(profile)]
    return Site(devices or [device], options, workers, minutes=embed["runtime"])


def _resources(profile: Config) -> dict[str, Any]:
    """Return the resources and threads of embed in a profile, which has them by rule or, as on a
    command line, as a list of `embed:gpu=4`. ConfigError for an expression as a number of them.
    """
    resources, threads = (profile.get(key) or {} for key in ("set-resources", "set-threads"))
    if not isinstance(resources, dict):
        texts = [text for text in map(str, listed(resources)) if text.startswith("embed:")]
        pairs = (key_and_value("set-resources", text.removeprefix("embed:")) for text in texts)
        resources = {"embed": dict(pairs)}
    if not isinstance(threads, dict):
        threads = dict(key_and_value("set-threads", str(text)) for text in listed(threads))
    embed = {"gpu": 1, "nodes": 1, "runtime": 240}  # as the rule
    if not isinstance(by_name := resources.get("embed") or {}, dict):
        problem = f"set-resources: embed: {by_name!r}: is no list of resources by name"
        raise ConfigError(problem, key="set-resources", remedy="write gpu: 4 below embed")
    embed |= by_name | {"threads": threads.get("embed") or 1}
    numbers = ("gpu", "nodes", "threads", "runtime")
    return embed | {name: first_attempt(name, embed[name]) for name in numbers}


def first_attempt(name: str, value: Any) -> int:
    """Return the number that Snakemake reads in a resource at the first attempt: of `4` and
    `4 * attempt`; of a runtime minutes, of `4h` and `1.5 days`. ConfigError for another expression.
    """
    text = re.sub(r"attempt\s*\*|\*\s*attempt|['\"\s]", "", str(value)).lower()
    if text.isdecimal():
        return int(text)
    time = re.fullmatch(r"(\d+\.?\d*)([smhdw]|$)[a-z]*", text)
    if name == "runtime" and time:
        return max(1, int(float(time[1]) * _MINUTES[time[2]]))
    kind = "neither minutes nor a time such as 4h" if name == "runtime" else "not a whole number"
    problem, remedy = f"{name}: {value}: is {kind}", "write it so in the profile"
    raise ConfigError(problem, key=name, remedy=remedy)
