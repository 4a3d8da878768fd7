"""The sequences of a campaign, and the number of those that the store lacks."""

import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np

from plm_embed.errors import InputError, PlmEmbedError
from plm_embed.io.files import missing
from plm_embed.io.parquet import read_table
from plm_embed.jobs.completion_record import FOLDER, is_done
from plm_embed.keys import bucket_names, key_array
from plm_embed.models.registry import Model
from plm_embed.sequences.deduplicate import deduplicate
from plm_embed.sequences.settings import MEMORY_MB, Table
from plm_embed.sequences.summary import known_summary, read_summary
from plm_embed.store.parts import Part, parts_folder
from plm_embed.store.store import PartList, fingerprint_folders, read_fingerprint
from plm_embed.workflow.checks import known_settings
from plm_embed.workflow.config import Config, input_paths, input_tables, residues_of


@contextmanager
def deduplicated(config: Config) -> Iterator[Path]:
    """Yield the folder of the campaign's sequences: that in its results, or a temporary one where
    that is missing or of other inputs. InputError for an input that does not exist.
    """
    folder, policy = Path(config["results"], "sequences"), residues_of(config)
    paths = [Path(path) for path in input_paths(config)]
    for path in paths:
        if words := missing(path):
            raise InputError(f"inputs: {path}: {words}", path=path)
    if (summary := known_summary(folder)) and summary.policy in (None, policy):
        before = sorted((entry.path, entry.bytes) for entry in summary.inputs)
        if before == sorted((str(path), path.stat().st_size) for path in paths):
            yield folder
            return
    with tempfile.TemporaryDirectory(prefix="plm-embed-plan-") as temporary:
        deduplicate(
            paths,
            Path(temporary),
            buckets=64,  # of any number: these files are soon deleted
            table=Table(),
            tables=input_tables(config),
            policy=policy,
            memory_mb=MEMORY_MB,
        )
        yield Path(temporary)


def lengths_left(config: Config, model: Model, sequences: Path) -> Mapping[int, int]:
    """Count by length the sequences in a folder that the store lacks.

    The device that will compute decides the rest of the fingerprint (compute_dtype auto, the
    engine): of several fingerprints that fit the settings, the one that spares most counts.
    """
    results, settings = Path(config["results"], model.name), known_settings(config, model)
    store, summary = Path(config["store"] or results / "store"), read_summary(sequences)
    left: Mapping[int, int] = summary.lengths
    for folder in fingerprint_folders(store):
        fingerprint = read_fingerprint(folder)
        if settings.items() <= fingerprint.stated.items():
            parts, lacking = PartList(parts_folder(store, fingerprint)), Counter[int]()
            for name in bucket_names(summary.buckets):
                bucket = sequences / "buckets" / f"{name}.parquet"
                if not is_done(bucket, results / FOLDER / f"{name}.json", store, fingerprint):
                    lacking.update(_lengths_lacking(bucket, parts))
            left = min(left, lacking, key=lambda lengths: sum(lengths.values()))
    return left


def _lengths_lacking(bucket: Path, parts: PartList) -> list[int]:
    """Return the lengths of a bucket's sequences that no part holds."""
    table = read_table(bucket, ["key", "length"])
    keys, absent = key_array(table["key"]), np.ones(len(table), dtype=np.bool_)
    for path in parts.between(keys[0].decode(), keys[-1].decode()) if len(keys) else ():
        # a damaged one counts for nothing: its sequences will be computed again
        with suppress(PlmEmbedError), Part(path) as part:
            absent &= part.locate(keys) < 0
    lengths: list[int] = table["length"].to_numpy()[absent].tolist()
    return lengths
