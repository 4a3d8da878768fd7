"""From a job of Snakemake and a site's data to one qsub call, or to words why there can be none."""

import hashlib
import json
import os
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from snakemake_interface_executor_plugins.jobs import JobExecutorInterface

from .refusals import RefusedError
from .settings import ExecutorSettings
from .site import Queue, Site, clock

_ILLEGAL = re.compile(r"[^A-Za-z0-9_.+-]+")


@dataclass(frozen=True)
class Request:
    """A job that is ready for qsub. `words` are the arguments before the script."""

    name: str
    work: str
    queue: str
    max_jobs: int | None
    words: tuple[str, ...]
    script: Path
    log: Path

    @property
    def asked(self) -> tuple[str, ...]:
        """The words without the name and the log, which say nothing of what is asked for."""
        return tuple(
            word for word in self.words if word not in {"-N", self.name, "-o", str(self.log)}
        )


@dataclass(frozen=True)
class Ask:
    """What a job asks for: cores, GPUs, memory and disk of each node, seconds of walltime (None:
    not said).

    own_queue: the rule names its queue, not the settings.
    """

    nodes: int
    cores: int
    gpus: int
    mem_mb: int
    disk_mb: int
    walltime: int | None
    queue: str | None
    account: str | None
    extra: tuple[str, ...]
    own_queue: bool = False


def job_name(job: JobExecutorInterface, workdir: str) -> str:
    """A legal PBS name, readable in front and unique behind: the same for the same job in every
    run.

    Rule, wildcards and outputs decide; the attempt does not, since a second attempt must find the
    first one if that still lives.
    """
    # the interface says str; it is a list of (rulename, wildcards_dict)
    specs: Any = job.get_target_spec()
    targets = sorted((spec.rulename, sorted(spec.wildcards_dict.items())) for spec in specs)
    digest = _digest([workdir, targets, sorted(map(str, job.output))])
    readable = "-".join(
        [str(job.name), *(str(value) for _, values in targets[:1] for _, value in values)]
    )
    legal = _ILLEGAL.sub("_", readable)[:60].strip("_.+-")
    return f"{legal if legal[:1].isalpha() else 'job-' + legal}-{digest[:12]}"


def job_work(job: JobExecutorInterface) -> str:
    """A digest of what the job does beside its outputs: a living job of other parameters is not the
    same job.
    """
    found = job.properties()
    properties: Mapping[str, Any] = json.loads(found) if isinstance(found, str) else found
    return _digest([properties.get("params"), sorted(map(str, job.input))])[:16]


def read_ask(job: JobExecutorInterface, settings: ExecutorSettings) -> Ask:
    """The resources of a job. Raises RefusedError for values that are no numbers."""
    found = job.resources

    def count(key: str, default: int) -> int:
        value = found.get(key, default)
        if (
            isinstance(value, bool)
            or not isinstance(value, int | str)
            or not str(value).isdecimal()
        ):
            raise RefusedError(f"the resource {key} is {value!r}; it has to be a whole number")
        return int(value)

    def text(key: str, default: str | None) -> str | None:
        value = found.get(key)
        return default if value in (None, "") else str(value)

    return Ask(
        nodes=count("nodes", 1),
        cores=job.threads,
        gpus=count("gpu", 0),
        mem_mb=count("mem_mb", 0),
        disk_mb=count("disk_mb", 0),
        walltime=count("runtime", 0) * 60 or None,
        queue=text("pbs_queue", settings.queue),
        account=text("pbs_account", settings.account),
        extra=tuple(_split(text("pbs_extra", "") or "")),
        own_queue=text("pbs_queue", None) is not None,
    )


def qsub_words(ask: Ask, site: Site, name: str, log: Path) -> tuple[str, Queue, tuple[str, ...]]:
    """(queue name, its limits, arguments of qsub). Raises RefusedError with all that is wrong."""
    ask = _completed(ask, site)
    queue_name = ask.queue or site.default_queue
    problems: list[str] = []
    queue = Queue(queue_name or "")
    if site.queues and queue_name not in site.queues:
        problems.append(
            f"queue {queue_name!r} is not one of {', '.join(site.queues)} (resource pbs_queue)"
        )
    elif queue_name in site.queues:
        queue = site.queues[queue_name]
    account = find_account(ask.account, site)
    if site.account_required and not account:
        problems.append(f"an account is needed: {account_words(site)}")
    missing = [key for key, value in site.resources.items() if value is None]
    if missing:
        problems.append(
            f"the site needs a value for -l {', '.join(missing)}: write a site file with `base:` "
            "and `resources:`"
        )
    if "-V" in ask.extra or "-V" in site.arguments:
        problems.append(
            "-V is not used here: odd variables of a login shell break the job (environment: "
            "names some)"
        )
    cores = queue.cores_per_gpu * ask.gpus if queue.cores_per_gpu else ask.cores
    problems += [*_beyond_node(ask, site), *_beyond_queue(ask, queue, cores)]
    if problems:
        raise RefusedError(
            f"not submitted, {site.description} would refuse or lose it: " + "; ".join(problems)
        )
    words = [
        "-N",
        name,
        *(["-q", queue_name] if queue_name else []),
        *([site.account_flag, account] if account else []),
    ]
    for value in [
        *_sizes(ask, site, cores),
        *(f"{key}={_filled(value, account)}" for key, value in site.resources.items()),
    ]:
        words += ["-l", value]
    words += [
        "-j",
        "oe",
        "-o",
        str(log),
        "-r",
        "y" if queue.rerunnable else "n",
        "-W",
        f"umask={_umask():03o}",
    ]
    return queue_name or "", queue, (*words, *site.arguments, *ask.extra)


def find_account(asked: str | None, site: Site) -> str | None:
    """The account to charge: what was asked for, else the one of the site's file or of the variable
    that it names.
    """
    return asked or site.account or os.environ.get(site.account_variable or "") or None


def _filled(value: str | int | None, account: str | None) -> str:
    return str(value).replace("{account}", account or "")


def account_words(site: Site) -> str:
    """How to name an account."""
    variable = f", or export {site.account_variable}=NAME" if site.account_variable else ""
    return f"--pbs-account NAME, or pbs-account: NAME in the profile{variable}"


def _completed(ask: Ask, site: Site) -> Ask:
    """With what the site wants of jobs that do not say it: node-local disk, a queue without GPUs or
    the least chunk.
    """
    chosen = site.queues.get(ask.queue or site.default_queue or "")
    if ask.gpus == 0 and chosen and chosen.without_gpus and not ask.own_queue:
        ask = replace(ask, queue=chosen.without_gpus)
    if ask.gpus == 0 and site.chunk == "gpu":
        ask = replace(ask, gpus=1)
    return replace(ask, disk_mb=ask.disk_mb or site.defaults.get("disk_mb", 0))


def _sizes(ask: Ask, site: Site, cores: int) -> list[str]:
    """Values of -l for nodes, cores, GPUs, memory, disk and time."""
    separate = site.style == "separate"
    times = ask.nodes if separate else 1
    filled = {"ncpus": cores, "ngpus": ask.gpus, "mem": ask.mem_mb, "jobfs": ask.disk_mb}
    parts = []
    for part in site.parts:
        if part not in filled:
            parts.append(part)
        elif filled[part]:
            parts.append(f"{part}={filled[part] * times}{'mb' if part in {'mem', 'jobfs'} else ''}")
    chunks = ask.nodes * (ask.gpus if site.chunk == "gpu" else 1)
    return [
        *(parts if separate else [":".join([f"select={chunks}", *parts])]),
        *([f"place={site.place}"] if site.place else []),
        *([f"walltime={clock(ask.walltime)}"] if ask.walltime else []),
    ]


def _beyond_node(ask: Ask, site: Site) -> list[str]:
    has = site.node
    problems = []
    if ask.nodes < 1:
        problems.append(f"nodes is {ask.nodes}; the least is 1")
    for asked, key, words in (
        (ask.gpus, "gpus", "GPUs (resource gpu, by node)"),
        (ask.cores, "cores", "cores (threads)"),
        (ask.mem_mb / 1000, "memory_gb", "GB of memory (resource mem_mb)"),
    ):
        if key in has and asked > has[key]:
            problems.append(f"a node has {has[key]} {words}, the job asks for {asked:g}")
    return problems


def _beyond_queue(ask: Ask, queue: Queue, cores: int) -> list[str]:
    problems = []
    if queue.cores_per_gpu and (ask.gpus == 0 or ask.cores > cores):
        problems.append(
            f"queue {queue.name} gives {queue.cores_per_gpu} cores a GPU, the job asks for "
            f"{ask.cores} cores and {ask.gpus} GPUs"
        )
    if queue.gpus and ask.gpus * ask.nodes not in queue.gpus:
        problems.append(
            f"queue {queue.name} takes {_list(queue.gpus)} GPUs, the job asks for "
            f"{ask.gpus * ask.nodes}"
        )
    if not queue.ranges:
        return problems
    classes = ", or ".join(
        f"{low}-{high} nodes for {clock(least)} to {clock(most)}"
        for (low, high), (least, most) in ((entry.nodes, entry.walltime) for entry in queue.ranges)
    )
    if ask.walltime is None:
        problems.append(f"runtime (minutes) is not set; queue {queue.name} takes {classes}")
    elif not any(
        entry.nodes[0] <= ask.nodes <= entry.nodes[1]
        and entry.walltime[0] <= ask.walltime <= entry.walltime[1]
        for entry in queue.ranges
    ):
        problems.append(
            f"queue {queue.name} takes {classes}; the job asks for {ask.nodes} "
            f"node{'s' if ask.nodes > 1 else ''} "
            f"for {clock(ask.walltime)} (resources nodes, runtime)"
        )
    return problems


def _split(extra: str) -> list[str]:
    try:
        return shlex.split(extra)
    except ValueError as error:
        raise RefusedError(
            f"the resource pbs_extra is {extra!r}, which is no list of words: {error}"
        ) from error


def _list(values: tuple[int, ...]) -> str:
    return " or ".join(
        [", ".join(map(str, values[:-1])), str(values[-1])] if len(values) > 1 else [str(values[0])]
    )


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current


def _digest(value: Any) -> str:
    # Values without a JSON form are named by their type: their repr may hold an address, new in
    # every run.
    text = json.dumps(value, sort_keys=True, default=lambda found: type(found).__name__)
    return hashlib.sha256(text.encode()).hexdigest()
