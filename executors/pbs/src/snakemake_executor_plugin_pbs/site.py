"""Site data: what a PBS site takes and how it wants to be asked, from one YAML file a site."""

import json
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import jsonschema
import yaml
from snakemake_interface_common.exceptions import WorkflowError

_SITES = resources.files(__package__) / "sites"
_ENVIRONMENT = ("PATH", "LD_LIBRARY_PATH", "PYTHONPATH")


@dataclass(frozen=True)
class Range:
    """Sizes (nodes) and times (seconds) that a queue takes together; both ends are included."""

    nodes: tuple[int, int]
    walltime: tuple[int, int]


@dataclass(frozen=True)
class Queue:
    """Limits of one queue; empty `ranges` and `gpus` mean none that are known."""

    name: str
    ranges: tuple[Range, ...] = ()
    rerunnable: bool = False
    max_jobs: int | None = None
    cores_per_gpu: int | None = None
    gpus: tuple[int, ...] = ()
    without_gpus: str | None = None


@dataclass(frozen=True)
class Site:
    """One site, as `sites/schema.json` describes it."""

    description: str
    style: str
    parts: tuple[str, ...]
    chunk: str
    place: str | None
    account_flag: str
    account_required: bool
    account: str | None
    account_variable: str | None
    node: dict[str, int]
    defaults: dict[str, int]
    resources: dict[str, str | int | None]
    arguments: tuple[str, ...]
    environment: tuple[str, ...]
    setup: tuple[str, ...]
    default_queue: str | None
    queues: dict[str, Queue]

    def most(self, cause: str, queue: str, nodes: int) -> int | None:
        """The most that a job may ask for: minutes of "time", MB of "memory"; None where that is
        not known.
        """
        if cause == "memory":
            return self.node["memory_gb"] * 1000 if "memory_gb" in self.node else None
        ranges = self.queues[queue].ranges if queue in self.queues else ()
        fitting = [
            entry.walltime[1] // 60 for entry in ranges if entry.nodes[0] <= nodes <= entry.nodes[1]
        ]
        return max(fitting, default=None)


def shipped_sites() -> list[str]:
    """Names that `--pbs-site` takes without a path."""
    return sorted(
        path.name.removesuffix(".yaml") for path in _SITES.iterdir() if path.name.endswith(".yaml")
    )


def load_site(name: str) -> Site:
    """A shipped site by name or a file by path. WorkflowError says which key of the file is wrong
    and how.
    """
    data = read_site(name)
    request, account = data["request"], data.get("account", {})
    return Site(
        description=data["description"],
        style=request["style"],
        parts=tuple(request["parts"]),
        chunk=request.get("chunk", "node"),
        place=request.get("place"),
        account_flag=account.get("flag", "-A"),
        account_required=account.get("required", False),
        account=account.get("name"),
        account_variable=account.get("variable"),
        node=data.get("node", {}),
        defaults=request.get("defaults", {}),
        resources=data.get("resources", {}),
        arguments=tuple(data.get("arguments", ())),
        environment=tuple(data.get("environment", _ENVIRONMENT)),
        setup=tuple(data.get("setup", ())),
        default_queue=data.get("default_queue"),
        queues={key: _queue(key, value) for key, value in data.get("queues", {}).items()},
    )


def read_site(name: str) -> dict[str, Any]:
    """The content of a site file, laid over its base, checked. WorkflowError as `load_site`."""
    is_path = "/" in name or name.endswith((".yaml", ".yml"))
    if not is_path and name not in shipped_sites():
        raise WorkflowError(
            f"PBS site {name!r} is not known. Shipped: {', '.join(shipped_sites())}; or give the "
            "path of a YAML file."
        )
    try:
        text = (
            Path(name).read_text(encoding="utf-8")
            if is_path
            else (_SITES / f"{name}.yaml").read_text("utf-8")
        )
        data: Any = yaml.safe_load(text)
    except OSError as error:
        raise WorkflowError(f"PBS site file {name} cannot be read: {error.strerror}.") from error
    except yaml.YAMLError as error:
        raise WorkflowError(f"PBS site file {name} is not YAML: {error}") from error
    if not isinstance(data, dict):
        raise WorkflowError(
            f"PBS site file {name} holds no keys. It needs at least `base: generic`."
        )
    base = data.pop("base", None)
    if base is not None:
        data = _lay_over(read_site(str(base)), data)
    problems = sorted(
        _validator().iter_errors(data), key=lambda problem: list(map(str, problem.absolute_path))
    )
    if problems:
        where = ".".join(str(step) for step in problems[0].absolute_path) or "the file"
        raise WorkflowError(f"PBS site file {name}: {where}: {problems[0].message}.")
    return dict(data)


def seconds(text: str) -> int:
    """Turn "H:MM:SS" into seconds."""
    hours, minutes, rest = text.split(":")
    return int(hours) * 3600 + int(minutes) * 60 + int(rest)


def clock(count: int) -> str:
    """Seconds as "HH:MM:SS", the form that every PBS takes."""
    return f"{count // 3600:02}:{count // 60 % 60:02}:{count % 60:02}"


def _queue(name: str, data: dict[str, Any]) -> Queue:
    ranges = tuple(
        Range(
            nodes=(entry["nodes"][0], entry["nodes"][1]),
            walltime=(seconds(entry["walltime"][0]), seconds(entry["walltime"][1])),
        )
        for entry in data.get("ranges", ())
    )
    return Queue(
        name=name,
        ranges=ranges,
        rerunnable=data.get("rerunnable", False),
        max_jobs=data.get("max_jobs"),
        cores_per_gpu=data.get("cores_per_gpu"),
        gpus=tuple(data.get("gpus", ())),
        without_gpus=data.get("without_gpus"),
    )


def _lay_over(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    result = dict(below)
    for key, value in above.items():
        inner = result.get(key)
        result[key] = (
            _lay_over(inner, value)
            if isinstance(inner, dict) and isinstance(value, dict)
            else value
        )
    return result


@cache
def _validator() -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator(json.loads((_SITES / "schema.json").read_text("utf-8")))
