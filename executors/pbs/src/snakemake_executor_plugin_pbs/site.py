"""Site data: what a PBS site takes and how it wants to be asked, from one YAML file a site."""

import json
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import jsonschema
import yaml
from snakemake_interface_common.exceptions import WorkflowError

_SITES = resources.files(__package__) / "sites"


@dataclass(frozen=True)
class Range:
    """Sizes (nodes) and times (seconds) that a queue takes together; both ends are included."""

    nodes: tuple[int, int]
    walltime: tuple[int, int]

    def __str__(self) -> str:
        (fewest, most), (least, longest) = self.nodes, self.walltime
        return f"{fewest}-{most} nodes for {clock(least)} to {clock(longest)}"

    def takes(self, nodes: int, seconds: int) -> bool:
        """Return whether a job of this size and time fits."""
        (fewest, most), (least, longest) = self.nodes, self.walltime
        return fewest <= nodes <= most and least <= seconds <= longest


@dataclass(frozen=True)
class Queue:
    """Limits of one queue; without `ranges` none are known."""

    name: str
    ranges: tuple[Range, ...] = ()
    rerunnable: bool = False
    max_jobs: int | None = None
    without_gpus: str | None = None


@dataclass(frozen=True)
class Site:
    """One site; README.md says what the keys of its file mean."""

    description: str
    parts: tuple[str, ...]
    place: str | None
    account_flag: str
    account_required: bool
    account_variable: str
    node: dict[str, int]
    resources: dict[str, str | int]
    arguments: tuple[str, ...]
    setup: tuple[str, ...]
    default_queue: str | None
    queues: dict[str, Queue]


def shipped_sites() -> list[str]:
    """Names that `--pbs-site` takes without a path."""
    return sorted(Path(file.name).stem for file in _SITES.iterdir() if file.name.endswith(".yaml"))


def load_site(name: str) -> Site:
    """A shipped site by name or a file by path. WorkflowError says which key of the file is wrong
    and how.
    """
    data = read_site(name)
    account = data.get("account", {})
    return Site(
        description=data["description"],
        parts=tuple(data["request"]["parts"]),
        place=data["request"].get("place"),
        account_flag=account.get("flag", "-A"),
        account_required=account.get("required", False),
        account_variable=account.get("variable", ""),
        node=data.get("node", {}),
        resources=data.get("resources", {}),
        arguments=tuple(data.get("arguments", ())),
        setup=tuple(data.get("setup", ())),
        default_queue=data.get("default_queue"),
        queues={key: _queue(key, value) for key, value in data.get("queues", {}).items()},
    )


def clock(count: int) -> str:
    """Seconds as "HH:MM:SS", the form that every PBS takes."""
    return f"{count // 3600:02}:{count // 60 % 60:02}:{count % 60:02}"


def read_site(name: str) -> dict[str, Any]:
    """The content of a site file, laid over its base, checked. WorkflowError as `load_site`."""
    is_path = "/" in name or name.endswith((".yaml", ".yml"))
    if not is_path and name not in shipped_sites():
        raise WorkflowError(
            f"PBS site {name!r} is not known. Shipped: {', '.join(shipped_sites())}; or give the "
            "path of a YAML file."
        )
    path = Path(name) if is_path else _SITES / f"{name}.yaml"
    try:
        data: Any = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise WorkflowError(f"PBS site file {name} cannot be read: {error.strerror}.") from error
    except yaml.YAMLError as error:
        raise WorkflowError(f"PBS site file {name} is not YAML: {error}") from error
    if not isinstance(data, dict):
        raise WorkflowError(
            f"PBS site file {name} holds no keys. It needs at least `base: generic`."
        )
    if "base" in data:
        data = _lay_over(read_site(str(data.pop("base"))), data)
    schema = json.loads((_SITES / "schema.json").read_text(encoding="utf-8"))
    for problem in jsonschema.Draft202012Validator(schema).iter_errors(data):
        where = ".".join(str(step) for step in problem.absolute_path) or "the file"
        raise WorkflowError(f"PBS site file {name}: {where}: {problem.message}.")
    return dict(data)


def _queue(name: str, data: dict[str, Any]) -> Queue:
    ranges = []
    for entry in data.get("ranges", ()):
        fewest, most = entry["nodes"]
        shortest, longest = map(_seconds, entry["walltime"])
        ranges.append(Range((fewest, most), (shortest, longest)))
    limits = {key: value for key, value in data.items() if key not in {"ranges", "submission"}}
    return Queue(name, tuple(ranges), **limits)


def _seconds(text: str) -> int:
    hours, minutes, rest = map(int, text.split(":"))
    return hours * 3600 + minutes * 60 + rest


def _lay_over(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    both = [
        key for key in above if isinstance(below.get(key), dict) and isinstance(above[key], dict)
    ]
    return below | above | {key: _lay_over(below[key], above[key]) for key in both}
