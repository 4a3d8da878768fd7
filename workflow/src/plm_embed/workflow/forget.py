"""What says that a step is done though it no longer holds: it is removed, so that Snakemake does
the step again.

Snakemake goes by its own notes, which stay where it ran: beside results that were copied or moved
it would take whatever is there for what the configuration asks for.
"""

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

from plm_embed.errors import PlmEmbedError
from plm_embed.inference.prepare_weights import is_made_from
from plm_embed.io.files import sha256_file, touched
from plm_embed.jobs.completion_record import read_completion
from plm_embed.jobs.submission import FOLDER as SUBMISSIONS
from plm_embed.master.gather_record import outdated
from plm_embed.master.validation_record import PROOF
from plm_embed.models.manifest import MANIFEST, RECORD, read_record
from plm_embed.models.registry import find_model
from plm_embed.reading.find import GATHERED
from plm_embed.sequences.settings import Reading, ResiduePolicy
from plm_embed.sequences.summary import SUMMARY, Summary, known_summary, read_scan
from plm_embed.setting import from_config
from plm_embed.store.reuse import differing
from plm_embed.workflow.by_model import weights_folder
from plm_embed.workflow.campaign import known_settings
from plm_embed.workflow.config import Config
from plm_embed.workflow.ending import REFERENCE

_SMALL, _LARGE = 1 << 26, 1 << 30
"""Bytes of all inputs together that are hashed each time, and of one that is if it was touched."""


def forget(config: Config, looking: bool) -> list[str]:
    """Remove what says that a step is done whose files are gone or have changed since, or whose
    settings are others now, so that Snakemake does it again. Returns a line for each reason.

    looking: this call runs no job, and changes nothing. The weights of a campaign that is proven
    may be gone as long as nothing is to be done.
    """
    found = []
    with suppress(OSError):  # a folder that cannot be read or written: the first job says so
        found = list(_no_longer(config))
        for paths, _ in found:
            for path in [] if looking else paths:
                shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    does = "a run makes" if looking else "this run makes"
    return [
        f"plm-embed: {why}: {does} {paths[0].name if len(paths) == 1 else 'them'} again"
        for paths, why in found
    ]


def remove_scans(config: Config) -> None:
    """Remove the scans and splits of sequences that are whole. Snakemake does so itself, but for
    those of an earlier configuration, and where it was killed before their last job had ended.
    """
    sequences = Path(config["results"], "sequences")
    left = [sequences / name for name in ("scans", "splits") if (sequences / name).is_dir()]
    with suppress(OSError):
        whole = left and known_summary(sequences) is not None and not _changed_inputs(sequences)
        if whole and not other_sequences(config):
            for folder in left:
                shutil.rmtree(folder, ignore_errors=True)


def _no_longer(config: Config) -> Iterator[tuple[list[Path], str]]:
    """Files that no longer hold, and why."""
    folder = Path(config["results"], config["model"])
    proof, weights = folder / PROOF, Path(weights_folder(config))
    if wrong := outdated(folder / GATHERED, proof):
        yield [wrong[0]], wrong[1]
    sequences = Path(config["results"], "sequences")
    other = other_sequences(config)
    if other:
        yield [sequences / SUMMARY], f"{sequences} has {other}"
    elif other := _replaced_input(sequences, known_summary(sequences)):
        yield [sequences / SUMMARY], f"{other} is not the file that was read"
    for scan in sorted(sequences.glob("scans/*")):
        with suppress(PlmEmbedError):  # not whole: who reads it says so
            if replaced := _replaced_input(scan, read_scan(scan)):
                yield [scan], f"{replaced} is not the file that was read"
    ended, why = _other_vectors(config, folder)
    if ended:
        yield [*ended, folder / REFERENCE], f"{folder} has vectors of other settings ({why})"
    if _other_weights(config, folder):
        yield [folder / RECORD], f"{folder} has vectors of other weights"
    elif (folder / RECORD).exists() and not (weights / MANIFEST).exists():
        proven = proof.exists() and (folder / REFERENCE).exists() and not wrong
        if not proven or other or ended or _changed_inputs(sequences):
            yield [folder / RECORD], f"{weights} holds no weights now"


def other_sequences(config: Config) -> str:
    """What of the sequences that are there is not what the configuration asks for, or ''."""
    summary = known_summary(Path(config["results"], "sequences"))
    if summary is None:
        return ""
    if not _same([entry.path for entry in summary.inputs], config["inputs"]):
        return "the sequences of other inputs"
    alphabet = find_model(config["model"]).family.alphabet.name
    asked = from_config(Reading, config, alphabet=alphabet)
    done = summary.buckets, summary.keep, summary.policy or ResiduePolicy()
    tables = any(entry.format != "fasta" for entry in summary.inputs)
    columns = (summary.columns if tables else None) or asked.table.read
    if (*done, columns) != (asked.buckets, asked.table.keep, asked.policy, asked.table.read):
        return "sequences that were read with other settings"
    return ""


def inputs_changed(results: Path) -> bool:
    """Whether an input is not the file that was read for these results."""
    with suppress(OSError):
        return _changed_inputs(results / "sequences")
    return False


def _changed_inputs(sequences: Path) -> bool:
    """Whether an input is not the file that was read, or nothing says which that was. A file is
    hashed only where its time, but not its size, is another.
    """
    summary = known_summary(sequences)
    if summary is None:  # a damaged one is named by the steps that read it
        return not (sequences / SUMMARY).exists()
    read = (sequences / SUMMARY).stat().st_mtime_ns
    for entry in summary.inputs:
        path = Path(entry.path)
        with suppress(FileNotFoundError):  # another workflow has yet to make it
            found = path.stat()
            newer = found.st_mtime_ns > read
            if found.st_size != entry.bytes or (newer and _sha256(path) != entry.sha256):
                return True
    return False


def _replaced_input(folder: Path, summary: Summary | None) -> str:
    """An input of a folder of sequences, or of a scan, in whose place lies another file than was
    read, with a time at which Snakemake takes it for that one; or ''.

    Small inputs are hashed each time, larger ones where they were touched since.
    """
    if summary is None:
        return ""
    read = (folder / SUMMARY).stat().st_mtime_ns
    small = sum(entry.bytes for entry in summary.inputs) <= _SMALL
    for entry in summary.inputs:
        path = Path(entry.path)
        with suppress(FileNotFoundError):  # another workflow has yet to make it
            found = path.stat()
            if found.st_mtime_ns > read:
                continue
            hashed = small or (entry.bytes <= _LARGE and touched(path) >= read)
            if found.st_size != entry.bytes or (hashed and _sha256(path) != entry.sha256):
                return entry.path
    return ""


def _sha256(path: Path) -> str:
    return _sha256_once(path, path.stat().st_mtime_ns, touched(path))


@cache
def _sha256_once(path: Path, *_: int) -> str:
    """Every model of a campaign asks for it."""
    return sha256_file(path)


def _other_weights(config: Config, folder: Path) -> bool:
    """Whether the weights that the campaign has used are not those of the configuration."""
    record = folder / RECORD
    with suppress(PlmEmbedError, FileNotFoundError):  # the rule `weights` says what is wrong
        made = read_record(folder)
        if made is None:
            return False
        since, model = record.stat().st_mtime_ns, find_model(config["model"])
        return not is_made_from(made, model, config["weights"], since)
    return False


def _same(some: Sequence[str], others: Sequence[str]) -> bool:
    """Whether they are the same files in the same order, however they are spelled."""
    return [*map(os.path.realpath, some)] == [*map(os.path.realpath, others)]


def _other_vectors(config: Config, folder: Path) -> tuple[list[Path], str]:
    """The submissions whose vectors are of other settings than the configuration asks for, as far
    as these are known before anything is computed; and how they differ.
    """
    known, ended, why = known_settings(config), [], ""
    for path in sorted(folder.glob(f"{SUBMISSIONS}/*.json")):
        with suppress(PlmEmbedError):  # gone or damaged: gather says so
            first = read_completion(folder / "embedded" / path.name)
            if differences := differing(first.fingerprint, known):
                ended.append(path)
                why = "; ".join(differences)
    return ended, why
