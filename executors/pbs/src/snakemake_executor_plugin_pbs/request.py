"""From a job of Snakemake and a site's data to one qsub call, or to words why there can be none."""

import hashlib
import json
import os
import re
import shlex
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from snakemake_interface_executor_plugins.jobs import JobExecutorInterface

from .ledger import Entry
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

    def entry(self, now: float) -> Entry:
        """What the ledger has of it before qsub is called at the time `now`."""
        return Entry(
            self.name, self.work, self.queue, str(self.log), submitted=now, asked=self.asked
        )


@dataclass(frozen=True)
class Ask:
    """Needs of a job: cores, GPUs and memory of each node, seconds of walltime (None: not said).

    own_queue: the rule names its queue, not the settings.
    """

    nodes: int
    cores: int
    gpus: int
    mem_mb: int
    walltime: int | None
    queue: str | None
    account: str | None
    extra: tuple[str, ...] = ()
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
    readable = "-".join([str(job.name), *(str(value) for _, value in targets[0][1])])
    legal = _ILLEGAL.sub("_", readable)[:60].strip("_.+-")
    return f"{legal if legal[:1].isalpha() else 'job-' + legal}-{digest[:12]}"


def job_work(job: JobExecutorInterface) -> str:
    """A digest of what the job does beside its outputs: a living job of other parameters is not the
    same job.
    """
    properties: Mapping[str, Any] = json.loads(str(job.properties()))
    return _digest([properties.get("params"), sorted(map(str, job.input))])[:16]


def read_ask(job: JobExecutorInterface, settings: ExecutorSettings) -> Ask:
    """The resources of a job. Raises RefusedError for values that are no numbers."""

    def count(key: str, default: int) -> int:
        value = job.resources.get(key, default)
        if isinstance(value, bool) or not str(value).isdecimal():
            raise RefusedError(f"the resource {key} is {value!r}; it has to be a whole number")
        return int(value)

    def text(key: str) -> str:
        return str(job.resources.get(key) or "")

    try:
        extra = tuple(shlex.split(text("pbs_extra")))
    except ValueError as error:
        raise RefusedError(
            f"the resource pbs_extra is {text('pbs_extra')!r}, which is no list of words: {error}"
        ) from error
    return Ask(
        nodes=count("nodes", 1),
        cores=job.threads,
        gpus=count("gpu", 0),
        mem_mb=count("mem_mb", 0),
        walltime=count("runtime", 0) * 60 or None,
        queue=text("pbs_queue") or settings.queue,
        account=text("pbs_account") or settings.account or os.environ.get("PBS_ACCOUNT"),
        extra=extra,
        own_queue=bool(text("pbs_queue")),
    )


def qsub_words(ask: Ask, site: Site, name: str, log: Path) -> tuple[Queue, tuple[str, ...]]:
    """(queue, arguments of qsub). Raises RefusedError with all that is wrong."""
    queue_name = ask.queue or site.default_queue or ""
    chosen = site.queues.get(queue_name)
    if ask.gpus == 0 and chosen and chosen.without_gpus and not ask.own_queue:
        queue_name = chosen.without_gpus
    queue = site.queues.get(queue_name, Queue(queue_name))
    problems = [
        *_beyond_site(ask, site, queue),
        *_beyond_node(ask, site.node),
        *_beyond_queue(ask, queue),
    ]
    if problems:
        raise RefusedError(
            f"not submitted, {site.description} would refuse or lose it: " + "; ".join(problems)
        )
    sizes = {"ncpus": ask.cores, "ngpus": ask.gpus, "mem": ask.mem_mb}
    parts = [
        f"{part}={sizes[part]}{'mb' if part == 'mem' else ''}" if part in sizes else part
        for part in site.parts
        if sizes.get(part, 1)
    ]
    limits = [
        ":".join([f"select={ask.nodes}", *parts]),
        *([f"place={site.place}"] if site.place else []),
        *([f"walltime={clock(ask.walltime)}"] if ask.walltime else []),
        *(f"{key}={value}" for key, value in site.resources.items()),
    ]
    words = ["-N", name]
    words += ["-q", queue_name] if queue_name else []
    words += [site.account_flag, ask.account] if ask.account else []
    for limit in limits:
        words += ["-l", limit]
    words += ["-j", "oe", "-o", str(log), "-r", "y" if queue.rerunnable else "n"]
    return queue, (*words, "-W", f"umask={_umask()}", *site.arguments, *ask.extra)


def _beyond_site(ask: Ask, site: Site, queue: Queue) -> list[str]:
    problems = []
    if site.queues and queue.name not in site.queues:
        names = ", ".join(site.queues)
        problems.append(f"queue {queue.name!r} is not one of {names} (resource pbs_queue)")
    if site.account_required and not ask.account:
        problems.append(
            "an account is needed: --pbs-account NAME, or pbs-account: NAME in the profile, or "
            "export PBS_ACCOUNT=NAME"
        )
    return problems


def _beyond_node(ask: Ask, node: Mapping[str, int]) -> list[str]:
    problems = []
    if ask.nodes < 1:
        problems.append(f"nodes is {ask.nodes}; the least is 1")
    for asked, key, words in (
        (ask.gpus, "gpus", "GPUs (resource gpu, by node)"),
        (ask.cores, "cores", "cores (threads)"),
        (ask.mem_mb / 1000, "memory_gb", "GB of memory (resource mem_mb)"),
    ):
        if key in node and asked > node[key]:
            problems.append(f"a node has {node[key]} {words}, the job asks for {asked:g}")
    if node.get("whole") and 0 < ask.gpus < node.get("gpus", 0):
        problems.append(
            f"it hands out, and charges, whole nodes of {node['gpus']} GPUs, and the job would "
            f"leave {node['gpus'] - ask.gpus} of them idle: ask for gpu={node['gpus']} "
            "(set-resources in the profile)"
        )
    return problems


def _beyond_queue(ask: Ask, queue: Queue) -> list[str]:
    if not queue.ranges:
        return []
    classes = ", or ".join(map(str, queue.ranges))
    if ask.walltime is None:
        return [f"runtime (minutes) is not set; queue {queue.name} takes {classes}"]
    if any(entry.takes(ask.nodes, ask.walltime) for entry in queue.ranges):
        return []
    return [
        f"queue {queue.name} takes {classes}; the job asks for {ask.nodes} "
        f"node{'s' if ask.nodes > 1 else ''} for {clock(ask.walltime)} (resources nodes, runtime)"
    ]


@cache
def _umask() -> str:
    """The mask of this process in octal digits. A shell tells it: os.umask would have to change it
    for an instant, in which other threads may write files.
    """
    done = subprocess.run(["sh", "-c", "umask"], check=True, capture_output=True, text=True)
    return f"{int(done.stdout, 8):03o}"


def _digest(value: Any) -> str:
    # Values without a JSON form are named by their type: their repr may hold an address, new in
    # every run.
    text = json.dumps(value, sort_keys=True, default=lambda found: type(found).__name__)
    return hashlib.sha256(text.encode()).hexdigest()
