"""Site data: what a PBS site takes and how it wants to be asked, from one YAML file a site.

README.md says what the keys of a file mean; they are the fields of `Site`.
"""

import os
from fnmatch import fnmatchcase
from importlib import resources
from pathlib import Path
from typing import Annotated, Any

import msgspec
import yaml
from snakemake_interface_common.exceptions import WorkflowError

_SITES = resources.files(__package__) / "sites"

Time = Annotated[str, msgspec.Meta(pattern=r"^\d+:[0-5]\d:[0-5]\d$")]


class Range(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Sizes (nodes) and times that a queue takes together; both ends are included."""

    nodes: tuple[int, int]
    walltime: tuple[Time, Time]

    def __str__(self) -> str:
        (fewest, most), (least, longest) = self.nodes, map(seconds, self.walltime)
        return f"{fewest}-{most} nodes for {clock(least)} to {clock(longest)}"

    def takes(self, nodes: int, walltime: int) -> bool:
        """Return whether a job of this size and time, in seconds, fits."""
        (fewest, most), (least, longest) = self.nodes, map(seconds, self.walltime)
        return fewest <= nodes <= most and least <= walltime <= longest


class Queue(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Limits of one queue; without `ranges` none are known."""

    ranges: tuple[Range, ...] = ()
    rerunnable: bool = False
    max_jobs: Annotated[int, msgspec.Meta(ge=1)] | None = None
    without_gpus: str | None = None


class Node(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Sizes of a node; those that are not known refuse nothing."""

    gpus: int | None = None
    cores: int | None = None
    memory_gb: int | None = None
    whole: bool = False


class Site(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One site."""

    description: str
    parts: tuple[str, ...]
    place: str | None = None
    account_required: bool = False
    node: Node = Node()
    resources: dict[str, str | int] = {}
    arguments: tuple[str, ...] = ()
    setup: tuple[str, ...] = ()
    default_queue: str | None = None
    queues: dict[str, Queue] = {}
    recognize: tuple[str, ...] = ()

    def queue(self, name: str) -> Queue:
        """Return the limits of a queue, none of one that is not listed."""
        return self.queues.get(name, Queue())


def choose_site(named: str | None) -> tuple[str, str]:
    """Return (site, why in words): the one that was named, else the shipped one whose file names
    this PBS server, else `generic`.

    Raises WorkflowError where the named site is a shipped one, and the server not one of its own.
    """
    server = server_name()
    serving = [site for site in shipped_sites() if _serves(server, site)]
    if named and named not in serving:
        if server and named in shipped_sites() and load_site(named).recognize:
            raise WorkflowError(
                f"--pbs-site or the profile says {named}, but the PBS server here is {server}. Use "
                "--pbs-site generic or a site file of your own, and set --pbs-queue and the "
                "resources nodes, gpu, mem_mb and runtime to what this cluster has."
            )
        return named, "as named"
    if serving:
        return serving[0], f"by the PBS server {server}"
    return "generic", f"no site file names the PBS server {server}" if server else "by default"


def shipped_sites() -> list[str]:
    """Return the names that `--pbs-site` takes without a path."""
    return sorted(Path(file.name).stem for file in _SITES.iterdir() if file.name.endswith(".yaml"))


def load_site(name: str) -> Site:
    """Return a shipped site by name or a file by path, over its base.

    Raises WorkflowError, which says which key of the file is wrong.
    """
    try:
        return msgspec.convert(_read(name), Site)
    except msgspec.ValidationError as error:
        raise WorkflowError(f"PBS site file {name}: {error}.") from error


def clock(count: int) -> str:
    """Return seconds as "HH:MM:SS", the form that every PBS takes."""
    return f"{count // 3600:02}:{count // 60 % 60:02}:{count % 60:02}"


def seconds(time: str) -> int:
    """Return "H:MM:SS" in seconds."""
    hours, minutes, rest = map(int, time.split(":"))
    return hours * 3600 + minutes * 60 + rest


def server_name() -> str:
    """Return the name of the default PBS server, where PBS's own commands look it up; '' without
    one.
    """
    try:
        path = Path(os.environ.get("PBS_CONF_FILE", "/etc/pbs.conf"))
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    settings = dict(line.split("=", 1) for line in lines if "=" in line)
    named = os.environ.get("PBS_DEFAULT") or os.environ.get("PBS_SERVER")
    return (named or settings.get("PBS_SERVER", "")).partition(":")[0].strip().lower()


def _serves(server: str, site: str) -> bool:
    return any(fnmatchcase(server, pattern) for pattern in load_site(site).recognize)


def _read(name: str) -> dict[str, Any]:
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
    return _merge(_read(str(data.pop("base"))), data) if "base" in data else data


def _merge(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    both = [
        key for key in above if isinstance(below.get(key), dict) and isinstance(above[key], dict)
    ]
    return below | above | {key: _merge(below[key], above[key]) for key in both}
