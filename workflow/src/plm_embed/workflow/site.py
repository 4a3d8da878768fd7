"""The recognized site as a profile that is laid under the user's: resources and threads that he did
not set himself.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from os import environ
from typing import Any

from plm_embed.errors import ConfigError, PlmEmbedError
from plm_embed.sites import slurm, slurm_executor
from plm_embed.sites.data import read_site
from plm_embed.sites.job_shape import Shape, buckets_for, shape
from plm_embed.sites.recognize import Here, recognize

HERE = ("", "local")
"""Executors under which jobs run on this machine; '': none is named."""


@dataclass(frozen=True)
class Given:
    """What the user set, by profile or on the command line. Resources have their values as text.

    executor: pbs, slurm-steady, slurm or another one; site: by name or file, '' to recognize it;
    queue, account: --pbs-queue, --pbs-account; embed, default: --set-resources of the rule embed,
    and --default-resources; threads: of embed.
    """

    executor: str
    site: str = ""
    queue: str = ""
    account: str = ""
    embed: Mapping[str, str] = field(default_factory=dict)
    default: Mapping[str, str] = field(default_factory=dict)
    threads: str = ""

    def named(self, resource: str) -> str:
        """A resource of embed, from either place."""
        return self.embed.get(resource) or self.default.get(resource, "")


@dataclass(frozen=True)
class Layer:
    """What goes under the user's settings, as Snakemake's options write it.

    embed, default: resources of the rule embed, and of all rules; threads: of embed. line: for the
    screen. missing: what the user has to add before anything can be submitted, in one line.
    """

    embed: dict[str, str]
    default: dict[str, str]
    threads: int | None = None
    site: str = ""
    line: str = ""
    missing: str = ""


def layer(given: Given, buckets_per_submission: int = 0, per_job_here: int = 1) -> Layer:
    """The layer for an executor. buckets_per_submission: of the configuration, 0 where it leaves
    that to the site; per_job_here: what it is then at least on this machine.
    """
    if given.executor == "pbs":
        return _pbs(given, buckets_per_submission)
    if given.executor in slurm_executor.EXECUTORS:
        return _slurm(given, buckets_per_submission)
    workers = _number(given.embed.get("nodes")) or 1
    workers *= _number(given.embed.get("gpu")) or 1
    least = per_job_here if given.executor in HERE else 1
    buckets = buckets_per_submission or max(least, buckets_for(workers))
    return Layer({"buckets": str(buckets)}, {})


def _pbs(given: Given, buckets: int) -> Layer:
    here = Here(given.site, "as you say") if given.site else recognize("pbs")
    site = read_site(here.site)
    _check_scheduler(site, here, "pbs")
    form = _shape(site, given, given.named("pbs_queue") or given.queue)
    account = account_of(site, given.named("pbs_account") or given.account)
    missing = ""
    if site.get("account", {}).get("required") and not account:
        missing = f"{_name(site, here)} charges an account: add {account_words(site)}"
    embed, words = (
        _resources(site, form, given, buckets),
        f"queue {form.queue}" if form.queue else "",
    )
    return Layer(
        embed=embed,
        default=_not_given(
            {name: str(value) for name, value in _defaults(site).items()}, given.default
        ),
        threads=form.cores,
        site=here.site,
        line=_line(_heading(site, here), words, account, _asks(form, given, embed)),
        missing=missing,
    )


def _check_scheduler(site: Mapping[str, Any], here: Here, asked: str) -> None:
    scheduler = site.get("scheduler", "pbs")
    if scheduler != asked:
        raise ConfigError(
            f"site: {here.site}: has {scheduler.upper()}",
            key="site",
            remedy=f"use `--profile {scheduler}`, or leave `site` out",
        )


def account_of(site: Mapping[str, Any], named: str = "") -> str:
    """The account to charge: the one that was named, else of the site's file or of the variable
    that it names.
    """
    account = site.get("account", {})
    return named or account.get("name") or environ.get(account.get("variable", ""), "")


def account_words(site: Mapping[str, Any]) -> str:
    """What to write to name a PBS account."""
    variable = site.get("account", {}).get("variable")
    words = "--pbs-account NAME, or `pbs-account: NAME` to the profile"
    return f"{words}, or export {variable}=NAME" if variable else words


def _slurm(given: Given, buckets: int) -> Layer:
    here = Here(given.site, "as you say") if given.site else recognize("slurm")
    site: dict[str, Any] = {"description": "SLURM"}
    try:
        site = read_site(here.site) if here.site else site
    except PlmEmbedError as error:
        # no partition with GPUs, for instance: the rest is as the user wrote it
        if given.site:
            raise
        here = Here("", str(error).removeprefix("site: slurm: "))
    if here.site:
        _check_scheduler(site, here, "slurm")
    if (nodes := _number(given.embed.get("nodes"))) > 1:
        raise ConfigError(
            f"nodes: {nodes}: a submission is of one node on SLURM",
            key="nodes",
            remedy="leave it out, for as many submissions as there is room for run at a time",
        )
    queue, several_queues = _slurm_queue(here, site, given)
    account, several_accounts = _slurm_account(given) if here.site and not given.site else ("", "")
    form = _shape(site, given, queue)
    embed, default = _resources(site, form, given, buckets), dict(site.get("resources", {}))
    key = site.get("queue_resource", "")
    if queue and not given.named(key):
        embed[key] = repr(queue)  # in quotes: Snakemake takes bare words for expressions
    if queue and key == "qos":  # of the other jobs too: they would land in whatever is the default
        default[key] = repr(queue)
    default |= {"slurm_account": repr(account)} if account else {}
    words = f"{'QOS' if key == 'qos' else 'partition'} {queue}" if queue else ""
    return Layer(
        embed=embed,
        default=_not_given(default, given.default),
        threads=form.cores,
        site=here.site,
        line=_line(_heading(site, here), words, account, _asks(form, given, embed)),
        missing="; ".join(filter(None, [several_queues, several_accounts])),
    )


def _slurm_queue(here: Here, site: Mapping[str, Any], given: Given) -> tuple[str, str]:
    """The partition or QOS of embed, and what to write where it cannot be known."""
    key, queues = site.get("queue_resource", ""), list(site.get("queues", {}))
    queue = given.named(key) or site.get("default_queue") or (queues[0] if len(queues) == 1 else "")
    if not site.get("queues") and here.why == slurm.SILENT and not given.named("slurm_partition"):
        words = "try again, or add `slurm_partition: NAME` below `embed:` in the profile"
        return "", f"SLURM does not answer, which partition has GPUs is not known: {words}"
    if queue or not queues:
        return queue, ""
    words = f"add --set-resources embed:{key}=NAME, or `{key}: NAME` below `embed:` in the profile"
    return "", f"several partitions have GPUs ({', '.join(queues)}): {words}"


def _slurm_account(given: Given) -> tuple[str, str]:
    """The account to charge, and what to write where the user has several; '' where there is no
    accounting.
    """
    named = given.named("slurm_account") or environ.get("SBATCH_ACCOUNT", "")
    accounts = [named] if named else slurm.accounts()
    if len(accounts) < 2:
        return "".join(accounts), ""
    words = (
        "export SBATCH_ACCOUNT=NAME, or add `slurm_account: NAME` below "
        "`default-resources:` in the profile"
    )
    return "", f"you have several accounts ({', '.join(accounts)}): {words}"


def _shape(site: Mapping[str, Any], given: Given, queue: str) -> Shape:
    return shape(site, queue, _number(given.embed.get("nodes")), _number(given.embed.get("gpu")))


def _resources(site: Mapping[str, Any], form: Shape, given: Given, buckets: int) -> dict[str, str]:
    """Resources of embed that the user did not set. A job of one worker asks for more time with
    each attempt.
    """
    found = {
        "nodes": str(form.nodes),
        "gpu": str(form.gpus),
        "buckets": str(buckets or form.buckets),
    }
    if form.memory_gb:
        found["mem_mb"] = str(1000 * form.memory_gb)
    if form.minutes:
        growing = f"min({form.longest_minutes or 10080}, {form.minutes} * attempt)"
        found["runtime"] = str(form.minutes) if form.workers > 1 else growing
    if form.longest_minutes:
        found["longest_minutes"] = str(form.longest_minutes)
    found |= site.get("submission", {}).get("resources", {})
    return _not_given(found, given.embed)


def _not_given(found: Mapping[str, str], given: Mapping[str, str]) -> dict[str, str]:
    """Without what the user set, memory also under its other name."""
    own = {*given, *(["mem_mb"] if "mem" in given else [])}
    return {name: value for name, value in found.items() if name not in own}


def _line(heading: str, queue: str, account: str, asks: str) -> str:
    charged = f"charged to {account}" if account else ""
    return f"plm-embed: {heading}: " + ", ".join(filter(None, [queue, asks, charged]))


def _asks(form: Shape, given: Given, embed: Mapping[str, str]) -> str:
    """A submission in words, as it will be asked for; what only Snakemake can evaluate is left
    out.
    """
    set_ = {
        "cores": given.threads,
        "minutes": given.embed.get("runtime"),
        "memory_gb": given.embed.get("mem_mb"),
    }
    numbers: dict[str, Any] = {name: _number(text) for name, text in set_.items() if text}
    if "memory_gb" in numbers:
        numbers["memory_gb"] //= 1000
    buckets = given.embed.get("buckets") or embed["buckets"]
    return (
        f"a submission is {replace(form, **numbers)} and {buckets} "
        f"{'bucket' if buckets == '1' else 'buckets'}"
    )


def _defaults(site: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a PBS site's file lets every job ask for."""
    found: Mapping[str, Any] = site.get("request", {}).get("defaults", {})
    return found


def _name(site: Mapping[str, Any], here: Here) -> str:
    return str(site.get("description", here.site))


def _heading(site: Mapping[str, Any], here: Here) -> str:
    return f"{_name(site, here)} ({here.why})"


def _number(text: str | None) -> int:
    """A whole number, or 0 for none and for an expression, which only Snakemake can evaluate."""
    return int(text) if text and text.isdecimal() else 0
