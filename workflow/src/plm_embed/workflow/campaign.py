"""What the rules derive from the configuration of a campaign."""

import hashlib
import shlex
import subprocess
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import fields
from itertools import islice
from pathlib import Path
from typing import Any

from plm_embed.errors import InputError, PlmEmbedError
from plm_embed.inference.settings import MEANING, RECIPE, Proof, Settings, within_limit
from plm_embed.jobs.completion_record import savings
from plm_embed.keys import bucket_names, bucket_ranges
from plm_embed.models.manifest import read_manifest
from plm_embed.models.registry import find_model
from plm_embed.sequences.summary import known_summary
from plm_embed.setting import as_options, from_config, settings
from plm_embed.typed_json import to_plain
from plm_embed.workflow.by_model import weights_folder
from plm_embed.workflow.config import Config, input_reading

_CLOCKS_APART = 60
"""Seconds that the clocks of a file server and a node may differ."""
_LOOKED_AT = 100
"""Inputs whose start is looked at before anything runs."""
_NAMED = 10
"""Inputs that cannot be read, at most so many by name."""

_OTHERS = {
    field.name: one
    for field in fields(Settings)
    for one in settings(Settings, [field.name])
    if one.key and field.name not in RECIPE
}
"""Settings of an embed job that decide no number, by their fields: where vectors may be taken from,
which are lists, and what decides the speed.
"""
_SOURCES = [name for name, one in _OTHERS.items() if one.repeated]
_SPEED = {name: one for name, one in _OTHERS.items() if not one.repeated}


def submissions(buckets: Sequence[str], size: int) -> dict[str, Sequence[str]]:
    """The buckets of each submission, `size` at a time; a submission is named after its first
    bucket.
    """
    return {buckets[at]: buckets[at : at + size] for at in range(0, len(buckets), size)}


def bucket_files(results: str, buckets: Iterable[str]) -> list[str]:
    """Where deduplicate puts the unique sequences of these buckets."""
    return [f"{results}/sequences/buckets/{bucket}.parquet" for bucket in buckets]


def options(name: str, values: Iterable[Any]) -> list[str]:
    """A repeated command-line option: ['--layers=6', '--layers=12']."""
    return [f"--{name}={value}" for value in values]


def reading_options(config: Config) -> list[str]:
    """How sequence files are read."""
    return as_options(input_reading(config))


def scan_names(config: Config) -> list[str]:
    """A name for the scan of each input: its number, and a digest of its path and of how it is
    read. So a scan that was made for another configuration, and whose job may have outlived the
    call that asked for it, is not taken for this one.
    """
    reading = reading_options(config)
    return [
        f"{number:05d}-{_digest([path, *reading])}" for number, path in enumerate(config["inputs"])
    ]


def range_names(config: Config) -> list[str]:
    """A name for each range of buckets: its number, and a digest of the scans that it is of."""
    count = len(bucket_ranges(bucket_names(config["buckets"])))
    scans = _digest(scan_names(config))
    return [f"{number:02d}-{scans}" for number in range(count)]


def place_of(name: str) -> int:
    """Of a scan among the inputs, or of a range among the ranges, from 0."""
    return int(name.partition("-")[0])


def _digest(words: Sequence[str]) -> str:
    return hashlib.sha256("\0".join(words).encode()).hexdigest()[:8]


def recipe_options(config: Config) -> list[str]:
    """What decides a model's vectors: the settings that are part of the fingerprint."""
    return as_options(from_config(Settings, config), RECIPE)


def meaning_options(config: Config) -> list[str]:
    """Which vectors of a model are meant, whatever the numbers are held in."""
    return as_options(from_config(Settings, config), MEANING)


def source_options(config: Config) -> list[str]:
    """Where vectors of a model may be taken from."""
    return as_options(from_config(Settings, config), _SOURCES)


def speed_resources(config: Config) -> dict[str, int | str]:
    """The other settings of an embed job by their fields, as Snakemake takes resources: whole
    numbers, or text.
    """
    asked = from_config(Settings, config)
    return {
        name: getattr(asked, name) if one.kind is int else str(getattr(asked, name))
        for name, one in _SPEED.items()
    }


def speed_words() -> str:
    """The words of a shell command that hand these resources over: `--device={resources.device:q}`
    and so on.
    """
    return " ".join(f"--{one.option}={{resources.{name}:q}}" for name, one in _SPEED.items())


def proof_options(config: Config) -> list[str]:
    """How much is computed again to prove a result."""
    return as_options(from_config(Proof, config))


def workflow_commit(root: Path) -> str:
    """Commit of the workflow's clone, ending in -dirty when files were changed; 'unknown' outside a
    clone.
    """
    if not (root / ".git").exists():
        return "unknown"
    command = [
        "git",
        "-C",
        str(root),
        "describe",
        "--always",
        "--dirty",
        "--abbrev=40",
        "--exclude=*",
    ]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def plan_line(config: Config) -> str:
    """A model's campaign in one line: model, buckets, records once they were counted, parts in the
    store.
    """
    from plm_embed.jobs.completion_record import campaign_records
    from plm_embed.store.part_name import part_names

    buckets = "1 bucket" if config["buckets"] == 1 else f"{config['buckets']:,} buckets"
    per_submission = config["speed"]["buckets_per_submission"]
    if per_submission > 1:
        count = -(-config["buckets"] // per_submission)
        buckets += " in 1 submission" if count == 1 else f" in {count:,} submissions"
    records = "records not counted yet"
    if counts := known_summary(Path(config["results"]) / "sequences"):
        records = f"{counts.records:,} records with {counts.unique:,} unique sequences"
    found = campaign_records(
        Path(config["results"]) / config["model"] / "embedded", config["buckets"]
    )
    known = known_settings(config).items()
    fitting = (one for one in found if known <= one.fingerprint.stated.items())
    saved = str(savings(fitting))
    parts = sum(len(part_names(folder)) for folder in Path(config["store"]).glob("*/parts"))
    store = f"{parts:,} parts" if parts != 1 else "1 part"
    line = (
        f"plm-embed: {config['model']}{_standing(config)}, {buckets}; "
        f"{records}; {store} in {config['store']}"
    )
    return f"{line}; already there: {saved}" if saved else line


def _standing(config: Config) -> str:
    """A word on weights that are there and not known to be the published ones."""
    from plm_embed.models.published import caveat

    try:
        manifest = read_manifest(Path(weights_folder(config)))
    except PlmEmbedError:
        # not prepared, or damaged: the rule `weights` or each embed job will say so
        return ""
    found = caveat(config["model"], manifest)
    return f" ({found.partition(':')[0]})" if found else ""


def check_inputs(config: Config) -> None:
    """Refuse, in words, an input that is of no format that is read, a table without the named
    columns, sequences of another kind than the models read, or a file from the future.

    Looks at the start of the first files, and at the first records of the first one; the others are
    left to the jobs that read them, after the weights.
    """
    from plm_embed.sequences.alphabet import ALPHABETS, LetterCheck
    from plm_embed.sequences.records import Reader

    given = [config["weights"]] if isinstance(config["weights"], str) else []
    for path in map(Path, [*config["inputs"], *filter(None, given)]):
        ahead = path.stat().st_mtime - time.time() if path.exists() else 0
        if ahead > _CLOCKS_APART:
            raise InputError(
                f"{path}: its time is {ahead / 60:.0f} minutes in the future, so Snakemake would "
                f"take what is made of it for outdated\nrun `touch {shlex.quote(str(path))}`",
                path=path,
            )
    reading = input_reading(config)
    readers, wrong = [], []
    for path in map(Path, config["inputs"][:_LOOKED_AT]):
        try:
            readers.append(Reader(path, reading.table))
        except InputError as error:
            wrong.append(error)
    if len(wrong) == 1:
        raise wrong[0]
    if wrong:
        lines = list(map(str, wrong[:_NAMED]))
        if len(wrong) > _NAMED:
            lines.append(f"... and {len(wrong) - _NAMED} more")
        told = "\n  ".join([f"{len(wrong)} inputs cannot be read:", *lines])
        raise InputError(told, path=wrong[0].path)
    letters = LetterCheck(ALPHABETS[reading.policy.alphabet], readers[0].path)
    for batch in islice(readers[0], 1):
        letters.look(batch.residues)


def check_reuse(config: Config) -> None:
    """Refuse, in words, a source in `reuse` that holds other vectors than the configuration asks
    for.

    What is known only where it is computed (dtype `auto`, the engine) is checked by each embed job
    before it computes.
    """
    if not config["reuse"]:
        return
    from plm_embed.store.reuse import check_sources

    check_sources([Path(path) for path in config["reuse"]], known_settings(config))


def known_settings(config: Config) -> Config:
    """What of the fingerprint is known before anything is computed."""
    model = find_model(config["model"])
    asked = from_config(Settings, config)
    long = within_limit(asked.long_sequences, model.name, model.max_residues)
    known: Config = to_plain(asked.recipe | {"model": model.name, "long_sequences": long})
    with suppress(PlmEmbedError):
        # not prepared, or damaged: the rule `weights` or each embed job will say so
        known["weights_sha256"] = read_manifest(Path(weights_folder(config))).weights_sha256
    return known


def master_files(config: Config) -> dict[str, str]:
    """What gather writes of a model, by what it is."""
    folder = f"{config['results']}/{config['model']}"
    master = f"{folder}/{find_model(config['model']).family.master}"
    return {
        "master": f"{master}.h5",
        "index": f"{master}.parquet",
        "records": f"{folder}/records.parquet",
    }
