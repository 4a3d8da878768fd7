"""A campaign's price before it is paid: what the input holds, what is left to compute, how long, where, what disk."""

import json
import math
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import yaml

from plm_embed import costs, sites
from plm_embed.campaign import bucket_names, key_array
from plm_embed.config import Config, checked
from plm_embed.costs import Speed, Work
from plm_embed.deduplicate import deduplicate
from plm_embed.errors import UserError
from plm_embed.fingerprint import Fingerprint, LongSequences
from plm_embed.hdf5 import CHUNK_ROWS
from plm_embed.models import Model, find_model
from plm_embed.readers import Table
from plm_embed.residues import ResiduePolicy
from plm_embed.store import Store
from plm_embed.tables import read_summary, read_table

ROOT = Path(__file__).parents[3]
PART_BYTES = 18_000
"""What HDF5 adds to each file, and the completion record of a bucket."""
ITEM_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4}
SAMPLE_SECONDS = 20.0


@dataclass(frozen=True)
class Forecast:
    """Time on one kind of device. hours: of one device at work, None when its speed is not known."""

    speed: Speed
    hours: float | None


@dataclass(frozen=True)
class Plan:
    """Everything that `plm-embed plan` says; see `plan_view`."""

    model: str
    counted: str
    records: int
    accepted: int
    unique: int
    residues: int
    lengths: dict[int, int]
    stored: int | None
    todo: Work
    forecasts: tuple[Forecast, ...]
    device: str
    bytes: dict[str, int]
    free_bytes: int
    site: str
    proposals: tuple[sites.Proposal, ...]
    command: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        return {"schema_version": 1, **asdict(self)}


@dataclass(frozen=True)
class Question:
    """What is asked. `device` names the one to plan for ('' : the site's, or the one here); `measure`: try it here."""

    configfile: Path | None = None
    site: str = ""
    queue: str = ""
    device: str = ""
    measure: bool = False
    threads: int = 1
    elsewhere: tuple[Path, ...] = ()


def read_config(configfile: Path | None) -> Config:
    """The configuration as the workflow sees it: config/config.yaml, and over it the keys of `configfile`."""
    default = Path("config/config.yaml")
    raw = _yaml(default if default.is_file() else ROOT / "config" / "config.yaml")
    if configfile is not None:
        raw = _merged(raw, _yaml(configfile))
    return checked(raw, ROOT / "workflow" / "schemas" / "config.schema.yaml")


def plan(question: Question) -> Plan:
    """Work out a plan. Reads the sequences of an earlier deduplicate if they are those of the configuration."""
    config = read_config(question.configfile)
    model = find_model(config["model"])
    with _sequences(config) as (sequences, counted):
        summary = read_summary(sequences)
        lengths = {int(length): count for length, count in summary["lengths"].items()}
        stored, left = _left(config, sequences, lengths)
        policy = LongSequences(**config["embedding"]["long_sequences"])
        todo = costs.work(model, left, policy)
        speeds = _speeds(question, config, model, todo, sequences)
        sizes = _bytes(config, model, summary, lengths, sequences)
    forecasts = tuple(Forecast(speed, _hours(todo, speed)) for speed in speeds)
    chosen = _chosen(question, forecasts)
    hours = chosen.hours or 0.0
    site = sites.read_site(question.site) if question.site else {}
    found = [one for one in sites.proposals(site, hours) if question.queue in ("", one.queue)]
    if not found:
        raise UserError(f"--queue: {question.queue}: {question.site or 'no site'} has no such queue with GPUs")
    words = _command(question, config, found[0])
    return Plan(
        model=model.name,
        counted=counted,
        records=summary["records"],
        accepted=summary["accepted"],
        unique=summary["unique"],
        residues=summary["residues"],
        lengths=lengths,
        stored=stored,
        todo=todo,
        forecasts=forecasts,
        device=chosen.speed.device,
        bytes=sizes,
        free_bytes=shutil.disk_usage(_existing(Path(config["results"]))).free,
        site=question.site,
        proposals=tuple(found),
        command=tuple(words),
    )


def _yaml(path: Path) -> dict[str, Any]:
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except FileNotFoundError:
        raise UserError(f"{path}: there is no such file") from None
    except yaml.YAMLError as error:
        raise UserError(f"{path}: not YAML ({error})") from None
    if not isinstance(content, dict):
        raise UserError(f"{path}: not a configuration: it has no keys")
    return content


def _merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """As Snakemake merges configuration files: key by key, block by block."""
    both = {
        key: _merged(below[key], value) if isinstance(value, dict) and isinstance(below.get(key), dict) else value
        for key, value in above.items()
    }
    return {**below, **both}


@contextmanager
def _sequences(config: Config) -> Iterator[tuple[Path, str]]:
    """The folder of deduplicated sequences and how it came about: the campaign's own, or a temporary one."""
    folder = Path(config["results"]) / "sequences"
    wanted = sorted((path, Path(path).stat().st_size) for path in config["inputs"])
    if (folder / "summary.json").is_file():
        known = sorted((one["path"], one["bytes"]) for one in read_summary(folder)["inputs"])
        if known == wanted:
            yield folder, f"as deduplicated in {folder}"
            return
    with tempfile.TemporaryDirectory(prefix="plm-embed-plan-", dir=_existing(Path(config["results"]))) as temporary:
        deduplicate(
            [Path(path) for path in config["inputs"]],
            Path(temporary),
            buckets=1,
            table=Table(config["table"]["id"], config["table"]["sequence"], tuple(config["table"]["keep"])),
            policy=ResiduePolicy(config["residues"]["unknown"], config["residues"]["gaps"]),
            memory_mb=config["memory_mb"],
        )
        yield Path(temporary), "counted just now; the workflow will do it again and keep the result"


def _left(config: Config, sequences: Path, lengths: dict[int, int]) -> tuple[int | None, dict[int, int]]:
    """Unique sequences that the store already holds (None: no store of these settings yet), and lengths of the rest."""
    stores = [Store(Path(config["store"]), fingerprint) for fingerprint in _fingerprints(config)]
    if not stores:
        return None, lengths
    found: list[tuple[int, dict[int, int]]] = []
    for store in stores:
        held, rest = 0, Counter[int]()
        for name in bucket_names(sequences):
            table = read_table(sequences / "buckets" / f"{name}.parquet", ["key", "length"])
            missing = store.missing(key_array(table["key"]))
            held += int((~missing).sum())
            rest.update(table["length"].filter(pa.array(missing)).to_pylist())
        found.append((held, dict(rest)))
    return max(found, key=lambda one: one[0])


def _fingerprints(config: Config) -> Iterator[Fingerprint]:
    """Of the stores that fit the configuration. With compute_dtype auto there is one by type of device."""
    asked = config["embedding"]
    manifest = Path(config["weights_folder"]) / config["model"] / "manifest.json"
    if not manifest.is_file():
        return
    digest = json.loads(manifest.read_text(encoding="utf-8"))["sha256"]
    for path in sorted(Path(config["store"]).glob("*/fingerprint.json")):
        found = Fingerprint.from_json(path.read_text(encoding="utf-8"))
        wanted = replace(
            found,
            model=config["model"],
            weights_sha256=digest,
            layers=tuple(asked["layers"]),
            pooling=tuple(asked["pooling"]),
            storage_dtype=asked["storage_dtype"],
            compute_dtype=found.compute_dtype if asked["compute_dtype"] == "auto" else asked["compute_dtype"],
        )
        limited = found.long_sequences == LongSequences(**asked["long_sequences"])
        if found == wanted and (limited or find_model(config["model"]).max_residues):
            yield found


def _speeds(question: Question, config: Config, model: Model, todo: Work, sequences: Path) -> list[Speed]:
    """The best-founded speed of each device: measured here, else measured elsewhere, else estimated."""
    found: dict[str, Speed] = {}
    if question.measure:
        speed = measure(config, sequences, question.threads)
        found[speed.device] = speed
    for speed in costs.measured(model.name, Path(config["results"]) / model.name / "embedded", "measured here"):
        found.setdefault(speed.device, speed)
    for folder in question.elsewhere:
        for speed in costs.measured(model.name, folder, "measured elsewhere"):
            found.setdefault(speed.device, speed)
    lengths = {int(length): count for length, count in read_summary(sequences)["lengths"].items()}
    whole = costs.work(model, lengths, LongSequences(**config["embedding"]["long_sequences"]))
    for speed in costs.estimates(model, todo if todo.tokens else whole):
        found.setdefault(speed.device, speed)
    return list(found.values())


def measure(config: Config, sequences: Path, threads: int) -> Speed:
    """Embed a sample of the lengths for some seconds with the engine itself, on the device that is here."""
    from plm_embed.embed import Embedder
    from plm_embed.settings import Settings

    weights = Path(config["weights_folder"]) / config["model"]
    if not (weights / "manifest.json").is_file():
        raise UserError(f"--measure: {weights}: no weights yet\nrun: snakemake weights --cores 1")
    table = read_table(sequences / "buckets" / f"{bucket_names(sequences)[0]}.parquet")
    with tempfile.TemporaryDirectory(prefix="plm-embed-plan-") as temporary:
        folder = Path(temporary)
        asked = config["embedding"]
        settings = Settings(
            layers=tuple(asked["layers"]),
            pooling=tuple(asked["pooling"]),
            compute_dtype=asked["compute_dtype"],
            storage_dtype=asked["storage_dtype"],
            long_sequences=LongSequences(**asked["long_sequences"]),
            device=config["speed"]["device"],
            toks_per_batch=config["speed"]["toks_per_batch"],
            scratch="",
            threads=threads,
        )

        def run(tokens: float, name: str) -> dict[str, Any]:
            """Embed about so many tokens, of lengths as in the whole, into a store of their own."""
            bucket = folder / f"{name}.parquet"
            pq.write_table(_sample(table, tokens), bucket)
            embedder.store = Store(folder / name, embedder.store.fingerprint)
            return embedder.embed(bucket, folder / f"{name}.json")

        embedder = Embedder(weights, folder / "store", settings)
        warm = run(2000, "warm")
        first = run(8000, "first")
        record = run(first["tokens_per_second"] * SAMPLE_SECONDS, "sample")
    why = (
        f"{record['computed']:,} of the sequences, {record['tokens']:,} tokens, just now on {record['worker']['host']}"
    )
    startup = warm["seconds"] - warm["tokens"] / warm["tokens_per_second"]
    return Speed(costs.device_label(record["worker"]), record["tokens_per_second"], "measured here", why, startup)


def _sample(table: pa.Table, tokens: float) -> pa.Table:
    """Rows with about so many tokens, evenly spaced in the order of length, so that long ones have their share."""
    table = table.take(pc.sort_indices(table["length"]))
    total = pc.sum(table["length"]).as_py() + 2 * table.num_rows
    count = max(1, min(table.num_rows, round(table.num_rows * tokens / total)))
    rows = np.floor((np.arange(count) + 0.5) * table.num_rows / count).astype(np.int64)
    return table.take(pa.array(rows)).sort_by("key")


def _hours(todo: Work, speed: Speed) -> float | None:
    if speed.tokens_per_second is None:
        return None
    return (speed.startup + todo.tokens / speed.tokens_per_second) / 3600 if todo.tokens else 0.0


def _chosen(question: Question, forecasts: tuple[Forecast, ...]) -> Forecast:
    """The device to plan submissions for: the named one, the site's, a measured one, or an A100."""
    wanted = question.device or costs.gpu_table()["sites"].get(question.site, "")
    for forecast in forecasts:
        if wanted and wanted.lower() in forecast.speed.device.lower():
            return forecast
    if question.device:
        known = ", ".join(forecast.speed.device for forecast in forecasts)
        raise UserError(f"--device: {question.device}: nothing is known of it; known are {known}")
    here = (one for one in forecasts if one.speed.basis == "measured here")
    return next(here, None) or next(one for one in forecasts if one.speed.device == "A100")


def _bytes(
    config: Config, model: Model, summary: dict[str, Any], lengths: dict[int, int], sequences: Path
) -> dict[str, int]:
    """Size in bytes of everything that the campaign writes, by what it is."""
    asked = config["embedding"]
    item, layers = ITEM_BYTES[asked["storage_dtype"]], len(asked["layers"])
    policy = LongSequences(**asked["long_sequences"])
    rows = costs.work(model, lengths, policy).sequences
    kept = policy.max_residues if policy.policy == "crop" else max(lengths, default=0)
    residues = sum(min(length, kept) * count for length, count in lengths.items())
    pooled = sum(pooling != "per_residue" for pooling in asked["pooling"]) * layers
    flat = ("per_residue" in asked["pooling"]) * layers

    def one_file(rows: int, residues: int, *, virtual: bool = False) -> int:
        columns = sum(_padded(rows, 128 * CHUNK_ROWS) * width for width in (64, 4, 4, *([8] if flat else [])))
        vectors: int = _padded(rows, CHUNK_ROWS) * pooled + _padded(residues, CHUNK_ROWS) * flat
        return columns + (0 if virtual else vectors * model.dim * item) + PART_BYTES

    parts = max(1, min(config["buckets"], rows))
    files = {name: _size(sequences / name) for name in ("records.parquet", "buckets", "members")}
    return {
        "sequences": sum(files.values()),
        "store": parts * one_file(math.ceil(rows / parts), math.ceil(residues / parts)),
        "master": one_file(rows, residues, virtual=config["merge"] == "virtual"),
        "index": files["members"] + 4 * int(summary["accepted"]),
        "records": files["records.parquet"] + 4 * int(summary["accepted"]),
    }


def _padded(rows: int, chunk: int) -> int:
    """Rows that HDF5 allocates: whole chunks, of at most the rows there are."""
    return math.ceil(rows / min(chunk, rows)) * min(chunk, rows) if rows else 0


def _size(path: Path) -> int:
    """Bytes of a file, or of the files in a folder."""
    total: int = sum(file.stat().st_size for file in (path.iterdir() if path.is_dir() else [path]))
    return total


def _existing(path: Path) -> Path:
    """The folder itself or the nearest one above it that exists."""
    return next(folder for folder in (path.absolute(), *path.absolute().parents) if folder.is_dir())


def _command(question: Question, config: Config, proposal: sites.Proposal) -> Iterator[str]:
    """The call that runs the plan: on a site, on SLURM where it is installed, else on this machine."""
    if question.site or shutil.which("sbatch"):
        yield from sites.command(proposal, question.site, question.configfile, config["speed"])
        return
    yield from ("snakemake", "--cores", str(os.cpu_count() or 1))
    if question.configfile:
        yield from ("--configfile", str(question.configfile))
