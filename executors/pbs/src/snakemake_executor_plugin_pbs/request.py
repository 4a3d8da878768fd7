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
    def options(self) -> tuple[str, ...]:
        """The words without the name and the log, which say nothing of what is asked for."""
        return tuple(
            word for word in self.words if word not in {"-N", self.name, "-o", str(self.log)}
        )

    def entry(self, now: float) -> Entry:
        """What the ledger has of it before qsub is called at the time `now`."""
        return Entry(
            self.name, self.work, self.queue, str(self.log), submitted=now, options=self.options
        )


@dataclass(frozen=True)
class Needs:
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


def read_needs(job: JobExecutorInterface, settings: ExecutorSettings) -> Needs:
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
    return Needs(
        nodes=count("nodes", 1),
        cores=job.threads,
        gpus=count("gpu", 0),
        mem_mb=count("mem_mb", 0),
        walltime=count("runtime", 0) * 60 or None,
        queue=text("pbs_queue") or settings.queue,
        account=text("pbs_account") or settings.account,
        extra=extra,
        own_queue=bool(text("pbs_queue")),
    )


def qsub_words(needs: Needs, site: Site, name: str, log: Path) -> tuple[Queue, tuple[str, ...]]:
    """(queue, arguments of qsub). Raises RefusedError with all that is wrong."""
    account = needs.account or os.environ.get(site.account_variable)
    queue_name = needs.queue or site.default_queue or ""
    chosen = site.queues.get(queue_name)
    if needs.gpus == 0 and chosen and chosen.without_gpus and not needs.own_queue:
        queue_name = chosen.without_gpus
    queue = site.queues.get(queue_name, Queue(queue_name))
    problems = [
        *_beyond_site(needs, site, queue),
        *_beyond_node(needs, site.node),
        *_beyond_queue(needs, queue),
    ]
    if problems:
        raise RefusedError(
            f"not submitted, {site.description} would refuse or lose it: " + "; ".join(problems)
        )
    sizes = {"ncpus": needs.cores, "ngpus": needs.gpus, "mem": needs.mem_mb}
    parts = [
        f"{part}={sizes[part]}{'mb' if part == 'mem' else ''}" if part in sizes else part
        for part in site.parts
        if sizes.get(part, 1)
    ]
    limits = [
        ":".join([f"select={needs.nodes}", *parts]),
        *([f"place={site.place}"] if site.place else []),
        *([f"walltime={clock(needs.walltime)}"] if needs.walltime else []),
        *(f"{key}={value}" for key, value in site.resources.items()),
    ]
    words = ["-N", name]
    words += ["-q", queue_name] if queue_name else []
    words += [site.account_flag, account] if account else []
    for limit in limits:
        words += ["-l", limit]
    words += ["-j", "oe", "-o", str(log), "-r", "y" if queue.rerunnable else "n"]
    return queue, (*words, "-W", f"umask={_umask()}", *site.arguments, *needs.extra)


def _beyond_site(needs: Needs, site: Site, queue: Queue) -> list[str]:
    problems = []
    if site.queues and queue.name not in site.queues:
        names = ", ".join(site.queues)
        problems.append(f"queue {queue.name!r} is not one of {names} (resource pbs_queue)")
    if site.account_required and not (needs.account or os.environ.get(site.account_variable)):
        export = f", or export {site.account_variable}=NAME" if site.account_variable else ""
        problems.append(
            "an account is needed: --pbs-account NAME, or pbs-account: NAME in the profile" + export
        )
    return problems


def _beyond_node(needs: Needs, node: Mapping[str, int]) -> list[str]:
    problems = []
    if needs.nodes < 1:
        problems.append(f"nodes is {needs.nodes}; the least is 1")
    for amount, key, words in (
        (needs.gpus, "gpus", "GPUs (resource gpu, by node)"),
        (needs.cores, "cores", "cores (threads)"),
        (needs.mem_mb / 1000, "memory_gb", "GB of memory (resource mem_mb)"),
    ):
        if key in node and amount > node[key]:
            problems.append(f"a node has {node[key]} {words}, the job asks for {amount:g}")
    if node.get("whole") and 0 < needs.gpus < node.get("gpus", 0):
        problems.append(
            f"it hands out, and charges, whole nodes of {node['gpus']} GPUs, and the job would "
            f"leave {node['gpus'] - needs.gpus} of them idle: ask for gpu={node['gpus']} "
            "(set-resources in the profile)"
        )
    return problems


def _beyond_queue(needs: Needs, queue: Queue) -> list[str]:
    if not queue.ranges:
        return []
    classes = ", or ".join(map(str, queue.ranges))
    if needs.walltime is None:
        return [f"runtime (minutes) is not set; queue {queue.name} takes {classes}"]
    if any(entry.takes(needs.nodes, needs.walltime) for entry in queue.ranges):
        return []
    plural = "s" if needs.nodes > 1 else ""
    return [
        f"queue {queue.name} takes {classes}; the job asks for {needs.nodes} node{plural} for "
        f"{clock(needs.walltime)} (resources nodes, runtime)"
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
    text = json.dumps(value, sort_keys=True, default=lambda other: type(other).__name__)
    return hashlib.sha256(text.encode()).hexdigest()
