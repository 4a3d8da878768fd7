"""The cost of a campaign before it runs: what is left to compute, the time, the jobs, the bytes."""

import math
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console, RenderableType
from rich.table import Column, Table
from rich.text import Text

from plm_embed.errors import ConfigError
from plm_embed.fingerprint import MATRICES, storage_bytes
from plm_embed.inference.settings import resolved
from plm_embed.io.files import sha256_file, size
from plm_embed.jobs.completion_record import FOLDER
from plm_embed.jobs.node import SECONDS_MARGIN, TIME_MARGIN
from plm_embed.jobs.per_residue import per_residue_bytes
from plm_embed.keys import MAX_BUCKETS
from plm_embed.models.registry import MODELS, Model
from plm_embed.models.weights import UNPUBLISHED, caveat, demo_caveat, read_record
from plm_embed.planning import costs
from plm_embed.planning.site import Site, cluster, this_machine
from plm_embed.sequences.summary import Summary, read_summary
from plm_embed.wording import count, duration, readable
from plm_embed.workflow.call import shell_line
from plm_embed.workflow.checks import read_config
from plm_embed.workflow.config import Config, models_of, settings_of, source_of

BYTES_PER_ROW = 108  # of a vector: key, length, number of windows, checksums
BYTES_PER_SCORE = 12  # with its checksum
BYTES_PER_RECORD = 80  # in each of members, index, records.parquet: key, id, a line of header
BYTES_PER_SEQUENCE, BYTES_PER_RESIDUE = 70, 0.54  # key; as Parquet packs residues of proteins
STARTUP_SECONDS = 180  # until a worker's first batch: Python, weights, self-test
JOB_SECONDS = 3 * 3600
"""Aim for a job: long enough to be worth its wait, short enough to lose little and start soon."""
SHORT_SECONDS = 1800
"""Time of a device: below it, nothing is gained on a machine by another number of buckets."""
WARNINGS = ("NOT ENOUGH", "not verified", "unpublished weights", "mean nothing")


@dataclass(frozen=True)
class Forecast:
    """The work of one model. facts: as of a plan; todo: what the store lacks; speeds: of devices;
    seconds: on the first of them; weights, vectors: bytes to be written.
    """

    model: str
    facts: list[tuple[str, str]]
    todo: costs.Work
    speeds: list[costs.Speed]
    weights: int
    vectors: int
    seconds: int


@dataclass(frozen=True)
class Plan:
    """Everything that `plm-embed plan` prints. facts: in words, with their subjects."""

    facts: list[tuple[str, str]]
    models: list[Forecast]
    buckets: int
    command: str


def plan(
    configfile: Path | None = None,
    settings: Sequence[str] = (),
    *,
    profile: str = "",
    devices: Sequence[str] = (),
) -> Plan:
    """Plan a campaign on this machine, on one with a device, or in the jobs of a profile.

    settings: `KEY=VALUE`, as Snakemake's --config. devices: to plan for the first of; without any,
    the profile's GPU or its CPU cores, or what is here. ConfigError for a setting or a device that
    is wrong.
    """
    config = read_config(configfile, settings)
    site = cluster(profile, devices) if profile else this_machine(devices)
    with costs.deduplicated(config) as sequences:
        models = [_forecast(config, model, sequences, site) for model in models_of(config).values()]
        summary = read_summary(sequences)
    buckets, jobs = _jobs(models, site, config["buckets"])
    call = [*site.options, *(["--configfile", str(configfile)] if configfile else [])]
    if buckets != config["buckets"]:
        others = (word for word in settings if not word.startswith("buckets="))
        settings = (*others, f"buckets={buckets}")
    call += ["--config", *settings] if settings else []
    unique = f"{count(summary.unique, 'sequence')}, {count(summary.residues, 'residue')}"
    if lengths := summary.lengths:
        unique += f" ({min(lengths):,} to {max(lengths):,} each)"
    facts = [
        ("records", f"{summary.records:,}, {summary.records - summary.accepted:,} of them skipped"),
        ("unique", unique),
        *(fact for model in models for fact in model.facts),
        ("jobs", jobs),
        ("bytes", _bytes(Path(config["results"]).absolute(), summary, models)),
    ]
    return Plan(facts, models, buckets, shell_line(call))


def _forecast(config: Config, model: Model, sequences: Path, site: Site) -> Forecast:
    settings, dtype = resolved(settings_of(config), model), settings_of(config).compute_dtype
    summary, left = read_summary(sequences), costs.lengths_left(config, model, sequences)
    todo, whole = (costs.work(model, lengths, settings) for lengths in (left, summary.lengths))

    source, weights = _weights(config, model)
    notes = {"weights": source}
    if "pseudo_perplexity" in settings.scores and whole.tokens:
        once = costs.work(model, summary.lengths, replace(settings, scores=()))
        factor = f"{whole.tokens / once.tokens:,.0f} times the work of the vectors"
        notes["pseudo_perplexity"] = f"each residue is masked once: {factor}"
    if too_long := summary.unique - whole.sequences:
        longest = settings.long_sequences.max_residues
        notes["too long"] = f"{too_long:,} of more than {longest:,} residues get no vector"
    if stored := summary.unique - sum(left.values()):
        notes["stored"] = f"{stored:,} of {count(summary.unique, 'sequence')} already"

    records = costs.measured(Path(config["results"], model.name, FOLDER), dtype)
    devices = dict.fromkeys(site.devices) if whole.tokens else ()
    speeds = [records.get(name) or costs.estimated(name, model, whole, dtype) for name in devices]
    seconds = speeds[0].seconds(todo) if speeds else 0
    pooled = len(settings.layers) * sum(pooling not in MATRICES for pooling in settings.pooling)
    row = BYTES_PER_ROW + BYTES_PER_SCORE * len(settings.scores)
    row += pooled * model.dim * storage_bytes(settings.storage_dtype)
    vectors = whole.sequences * row
    vectors += per_residue_bytes(settings, model.dim, model.family, summary.lengths)
    facts = [(subject, f"{model.name}: {words}") for subject, words in notes.items()]
    return Forecast(model.name, facts, todo, speeds, weights, vectors, seconds)


def _weights(config: Config, model: Model) -> tuple[str, int]:
    """Return in words which weights will be used, with any doubt that they are the published ones,
    and the bytes that are still to be prepared.
    """
    if record := read_record(Path(config["results"], model.name)):
        return caveat(model.name, record) or "the published ones, by their SHA-256", 0
    source = source_of(config, model) or str(model.shipped or "")
    to_prepare = size(Path(source)) if source else model.bytes or 4 * model.parameters
    if not model.trained:
        check = demo_caveat(model, sha256_file(Path(source)) if Path(source).is_file() else "")
    elif model.name not in MODELS:
        check = UNPUBLISHED
    elif model.sha256:
        check = "to be compared with the published ones" if source else "to be verified"
    else:
        check = "not verified: no published checksum is known"
    origin = source or f"download of {readable(to_prepare)} from {model.address}"
    return f"{origin}, {check}", to_prepare


def _jobs(models: Sequence[Forecast], site: Site, configured: int) -> tuple[int, str]:
    """Return a number of buckets, each one job of a model, and in words how long they take.

    configured: buckets, kept for so little work that another number gains nothing.
    """
    longest, total = max(model.seconds for model in models), sum(model.seconds for model in models)
    usable = (60 * site.minutes - SECONDS_MARGIN) / TIME_MARGIN - STARTUP_SECONDS
    if usable <= 0:
        problem = f"runtime: {site.minutes} minutes are too few for a job; set more in the profile"
        raise ConfigError(problem, key="runtime")
    buckets = configured
    if longest > (SHORT_SECONDS if site.at_once else 0):
        buckets = math.ceil(longest / site.workers / min(JOB_SECONDS, usable))
        buckets = min(max(buckets, site.at_once), MAX_BUCKETS)
    if not total:
        return buckets, "nothing to compute"
    words = f"buckets={buckets}" + (f", not {configured}" if buckets != configured else "")
    words += f" for each of {len(models)} models" if len(models) > 1 else ""
    words += f": {duration(math.ceil(longest / site.workers / buckets))}"
    words += f" on {site.workers:,} workers each" if site.workers > 1 else " each"
    if site.at_once:
        in_all = math.ceil(total / site.workers / min(site.at_once, buckets))
        return buckets, f"{words}; {duration(in_all)} in all"
    return buckets, (
        f"{words}, and up to {duration(STARTUP_SECONDS)} to start; the profile gives each "
        f"{duration(60 * site.minutes)}; {duration(total)} on one worker in all"
    )


def _bytes(results: Path, summary: Summary, models: Sequence[Forecast]) -> str:
    """Return in words the bytes that a campaign writes, and whether there is room for them."""
    residues = BYTES_PER_SEQUENCE * summary.unique + BYTES_PER_RESIDUE * summary.residues
    records = 2 * BYTES_PER_RECORD * summary.records
    vectors = sum(model.vectors for model in models)
    sizes = {
        "sequences": round(residues) + records,
        "store": vectors,
        "master": vectors,
        "index and records": records * len(models),
        "weights": sum(model.weights for model in models),
    }
    folder = next(filter(Path.is_dir, (results, *results.parents)))
    free, total = shutil.disk_usage(folder).free, sum(sizes.values())
    kinds = ", ".join(f"{kind} {readable(written)}" for kind, written in sizes.items() if written)
    room = "enough" if free > total else "NOT ENOUGH"
    return f"{kinds}; {readable(total)} in all, {readable(free)} free: {room}"


def show(plan: Plan, console: Console) -> None:
    """Print a plan on a terminal."""
    facts = Table.grid(padding=(0, 2, 0, 0))
    for subject, words in plan.facts:
        text = Text(words, overflow="fold")
        text.highlight_words(WARNINGS, "bold red")
        facts.add_row(Text(subject, "bold", no_wrap=True), text)
    titles = "tokens", "tokens/s", "time on one"
    numbers = (Column(title, justify="right", no_wrap=True) for title in titles)
    times = Table(Column("model", overflow="fold"), "device", *numbers, box=None, pad_edge=False)
    bases: dict[str, None] = {}
    for model in plan.models:
        todo = model.todo
        for speed in model.speeds:
            time = duration(speed.seconds(todo)) if todo.tokens else "nothing left"
            rate = f"{speed.tokens_per_second:,.0f}"
            times.add_row(model.model, speed.device, f"{todo.tokens:,}", rate, time)
            bases[f"{speed.device}: {speed.basis}"] = None
    parts: list[RenderableType] = [facts, *[times] * bool(bases)]
    for part in (*parts, *(Text(basis, "dim") for basis in bases)):
        for line in console.render_lines(part, pad=False):
            text = Text.assemble(*((piece.text, piece.style or "") for piece in line))
            text.rstrip()  # rich fills the lines of a table
            console.print(text, soft_wrap=True)
    console.print("\n[bold]run it[/]")
    console.print(f"  {plan.command}", soft_wrap=True, highlight=False, markup=False)
