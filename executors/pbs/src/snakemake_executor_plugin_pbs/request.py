"""Translation of a job of Snakemake, by a site's data, into a call of qsub or a refusal."""

import hashlib
import json
import os
import re
import shlex
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from snakemake_interface_common.exceptions import WorkflowError
from snakemake_interface_executor_plugins.jobs import JobExecutorInterface

from .ledger import Entry
from .refusals import RefusedError
from .settings import ExecutorSettings
from .site import Site, clock

_LOGS = Path(".snakemake") / "pbs_logs"
_ILLEGAL = re.compile(r"[^A-Za-z0-9_.+-]+")


@dataclass(frozen=True)
class Request:
    """A job that is ready for qsub. `words` are the arguments before the script; `max_jobs` the
    most of our jobs that its queue may hold.
    """

    name: str
    work: str
    queue: str
    max_jobs: int | None
    words: tuple[str, ...]
    script: Path
    log: Path

    @property
    def options(self) -> tuple[str, ...]:
        """Return the words but the name and the log, which don't belong to the request."""
        return tuple(
            word for word in self.words if word not in {"-N", self.name, "-o", str(self.log)}
        )

    def entry(self, now: float) -> Entry:
        """Return its entry in the ledger before qsub is called at the time `now`."""
        return Entry(
            self.name, self.work, self.queue, str(self.log), submitted=now, options=self.options
        )


@dataclass(frozen=True)
class Needs:
    """Needs of a job: cores, GPUs and memory of each node, seconds of walltime (None: not set); its
    queue, "" for the server's default one.
    """

    nodes: int
    cores: int
    gpus: int
    mem_mb: int
    walltime: int | None
    queue: str
    account: str
    extra: tuple[str, ...] = ()


def job_name(job: JobExecutorInterface, workdir: str) -> str:
    """Return a legal PBS name, readable in front and unique behind: the same for the same job in
    every run.

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
    """Return a digest of parameters and inputs: a living job of others is not the same job."""
    properties: Mapping[str, Any] = json.loads(str(job.properties()))
    return _digest([properties.get("params"), sorted(map(str, job.input))])[:16]


def read_needs(job: JobExecutorInterface, settings: ExecutorSettings, site: Site) -> Needs:
    """Return what a job needs. Raises RefusedError for values that are no numbers."""

    def count(key: str, default: int) -> int:
        value = job.resources.get(key, default)
        if isinstance(value, bool) or not str(value).isdecimal():
            raise RefusedError(f"the resource {key} is {value!r}, not a whole number")
        return int(value)

    def text(key: str) -> str:
        return str(job.resources.get(key) or "")

    try:
        extra = tuple(shlex.split(text("pbs_extra")))
    except ValueError as error:
        raise RefusedError(
            f"the resource pbs_extra is {text('pbs_extra')!r}, which cannot be split into words: "
            f"{error}"
        ) from error
    gpus, queue = count("gpu", 0), text("pbs_queue")
    if not queue:
        queue = settings.queue or site.default_queue or ""
        queue = (not gpus and site.queue(queue).without_gpus) or queue
    return Needs(
        nodes=count("nodes", 1),
        cores=job.threads,
        gpus=gpus,
        mem_mb=count("mem_mb", 0),
        walltime=count("runtime", 0) * 60 or None,
        queue=queue,
        account=text("pbs_account") or settings.account or os.environ.get("PBS_ACCOUNT", ""),
        extra=extra,
    )


def make_request(
    job: JobExecutorInterface, settings: ExecutorSettings, site: Site, logs: Path, script: Path
) -> Request:
    """Return the call of qsub for a job. Raises RefusedError with all that is wrong."""
    needs = read_needs(job, settings, site)
    if problems := list(find_problems(needs, site)):
        raise RefusedError(
            f"not submitted, {site.description} would refuse or lose it: " + "; ".join(problems)
        )
    name = job_name(job, str(Path.cwd()))
    log = log_path(logs, str(job.name), name)
    most = site.queue(needs.queue).max_jobs
    words = qsub_words(needs, site, name, log)
    return Request(name, job_work(job), needs.queue, most, words, script, log)


def qsub_words(needs: Needs, site: Site, name: str, log: Path) -> tuple[str, ...]:
    """Return the arguments of qsub."""
    sizes = {"ncpus": needs.cores, "ngpus": needs.gpus, "mem": needs.mem_mb}
    parts = [
        f"{part}={sizes[part]}{'mb' if part == 'mem' else ''}" if part in sizes else part
        for part in site.parts
        if sizes.get(part, 1)
    ]
    limits = [":".join([f"select={needs.nodes}", *parts])]
    limits += [f"place={site.place}"] if site.place else []
    limits += [f"walltime={clock(needs.walltime)}"] if needs.walltime else []
    limits += [f"{key}={value}" for key, value in site.resources.items()]
    words = ["-N", name]
    words += ["-q", needs.queue] if needs.queue else []
    words += ["-A", needs.account] if needs.account else []
    for limit in limits:
        words += ["-l", limit]
    words += ["-j", "oe", "-o", str(log), "-r", "y" if site.queue(needs.queue).rerunnable else "n"]
    return (*words, "-W", f"umask={_umask()}", *site.arguments, *needs.extra)


def find_problems(needs: Needs, site: Site) -> Iterator[str]:
    """Yield why the site would refuse or lose a job, and the remedies."""
    if site.queues and needs.queue not in site.queues:
        names = ", ".join(site.queues)
        yield f"queue {needs.queue!r} is not one of {names} (resource pbs_queue)"
    if site.account_required and not needs.account:
        yield (
            "an account is needed: --pbs-account NAME, or pbs-account: NAME in the profile, or "
            "export PBS_ACCOUNT=NAME"
        )
    if needs.nodes < 1:
        yield f"nodes is {needs.nodes}; the least is 1"
    node = site.node
    for amount, most, words in (
        (needs.gpus, node.gpus, "GPUs (resource gpu, by node)"),
        (needs.cores, node.cores, "cores (threads)"),
        (needs.mem_mb / 1000, node.memory_gb, "GB of memory (resource mem_mb)"),
    ):
        if most is not None and amount > most:
            yield f"a node has {most} {words}, the job asks for {amount:g}"
    if node.whole and node.gpus and 0 < needs.gpus < node.gpus:
        yield (
            f"it hands out, and charges, whole nodes of {node.gpus} GPUs, and the job would "
            f"leave {node.gpus - needs.gpus} of them idle: ask for gpu={node.gpus} "
            "(set-resources in the profile)"
        )
    ranges = site.queue(needs.queue).ranges
    classes = ", or ".join(map(str, ranges))
    if ranges and needs.walltime is None:
        yield f"runtime (minutes) is not set; queue {needs.queue} takes {classes}"
    elif ranges and not any(entry.takes(needs.nodes, needs.walltime or 0) for entry in ranges):
        plural = "s" if needs.nodes > 1 else ""
        yield (
            f"queue {needs.queue} takes {classes}; the job asks for {needs.nodes} node{plural} for "
            f"{clock(needs.walltime or 0)} (resources nodes, runtime)"
        )


def log_folder(workdir: Path, chosen: Path | None) -> Path:
    """Return the folder of all logs: `chosen`, else one in the working folder, or in the home
    folder where the working folder's name has letters that qsub refuses after -o. Raises
    WorkflowError where none of them will do.
    """
    folder = workdir / (chosen or _LOGS)
    instead = Path.home() / _LOGS / _digest(str(workdir))[:12]
    if not _is_printable(folder) and (chosen or not _is_printable(instead)):
        raise WorkflowError(
            f"The jobs' logs cannot be in {folder}: qsub takes only paths of printable ASCII. "
            "Name another folder that the nodes see: --pbs-logdir /path/to/logs"
        )
    return folder if _is_printable(folder) else instead


def log_path(folder: Path, rule: str, name: str) -> Path:
    """Return a new path for every submission, since PBS overwrites or appends. A rule's name may
    hold any letters.
    """
    part = rule if _is_printable(Path(rule)) else name
    return folder / part / f"{name}.{time.strftime('%Y%m%d-%H%M%S')}.log"


def _is_printable(path: Path) -> bool:
    return str(path).isascii() and str(path).isprintable()


def _umask() -> str:
    """Return the mask of this process, in octal digits, without changing it for an instant in which
    other threads may write files.
    """
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    mask: list[str] = re.findall(r"^Umask:\s*0(\d+)$", status, re.MULTILINE)
    return mask[0]


def _digest(value: Any) -> str:
    # Values without a JSON form are named by their type: their repr may hold an address, new in
    # every run.
    text = json.dumps(value, sort_keys=True, default=lambda other: type(other).__name__)
    return hashlib.sha256(text.encode()).hexdigest()
