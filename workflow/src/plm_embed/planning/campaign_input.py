"""What a campaign is to embed, before anything has run: counts and lengths of its sequences."""

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from plm_embed.errors import ConfigError, InputError
from plm_embed.io.paths import missing
from plm_embed.sequences.settings import Memory
from plm_embed.sequences.summary import SUMMARY, Summary, read_summary, summary_file
from plm_embed.workflow.config import Config, input_paths, input_tables, reading_of


@dataclass(frozen=True)
class Input:
    """What is to be embedded: counts, and the folder of deduplicated sequences if there is one."""

    counted: str
    """In words, how."""
    records: int
    accepted: int
    unique: int
    """Sequences."""
    residues: int
    """Of the unique sequences."""
    lengths: Mapping[int, int]
    """Unique sequences by their number of residues."""
    sequences: Path | None


def _input(counted: str, summary: Summary, sequences: Path | None) -> Input:
    return Input(
        counted,
        summary.records,
        summary.accepted,
        summary.unique,
        summary.residues,
        summary.lengths,
        sequences,
    )


@contextmanager
def given_input(config: Config, lengths: Path | None, measure: bool) -> Iterator[Input]:
    """The deduplicated sequences of the campaign, those of a temporary folder, or a table of
    lengths alone.
    """
    if lengths is not None:
        if measure:
            raise ConfigError(
                "--measure: needs the sequences", key="--measure", remedy="leave out --lengths"
            )
        yield read_lengths(lengths)
        return
    from plm_embed.sequences.deduplicate import deduplicate  # not to read a configuration

    folder, paths = Path(config["results"]) / "sequences", input_paths(config)
    for path in paths:
        if words := missing(Path(path)):
            raise InputError(f"inputs: {path}: {words}", path=path)
    wanted = sorted((path, Path(path).stat().st_size) for path in paths)
    reading = reading_of(config)
    policy = reading.policy
    if (folder / SUMMARY).is_file():
        summary = read_summary(folder)
        same = summary.has(policy.alphabet, policy.strand) and summary.policy in (None, policy)
        if same and sorted((one.path, one.bytes) for one in summary.inputs) == wanted:
            yield _input(f"as deduplicated in {folder}", summary, folder)
            return
    with tempfile.TemporaryDirectory(
        prefix="plm-embed-plan-", dir=existing(Path(config["results"]))
    ) as temporary:
        deduplicate(
            [Path(path) for path in paths],
            Path(temporary),
            **vars(reading),
            memory_mb=Memory.memory_mb,
            tables=input_tables(config),
        )
        how = "counted just now; the workflow will do it again and keep the result"
        yield _input(how, read_summary(Path(temporary)), Path(temporary))


def read_lengths(path: Path) -> Input:
    """Counts from a table of lengths: a summary.json, or lines of `length number`. InputError
    otherwise.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise InputError(
            f"--lengths: {path}: not text",
            path=path,
            remedy="give lines of `length number`, or a summary.json",
        ) from None
    if text.lstrip().startswith("{"):
        return _input(f"by the lengths in {path}", summary_file(path), None)
    lengths: dict[int, int] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if line.strip() and not line.startswith("#"):
            words = line.replace(",", " ").split()
            if len(words) != 2 or not all(word.isdecimal() and int(word) for word in words):
                raise InputError(
                    f"--lengths: {path}, line {number}: {line.strip()}: must be `length number`",
                    path=path,
                    line=number,
                )
            length = int(words[0])
            lengths[length] = lengths.get(length, 0) + int(words[1])
    unique = sum(lengths.values())
    residues = sum(length * count for length, count in lengths.items())
    return Input(f"by the lengths in {path}", unique, unique, unique, residues, lengths, None)


def existing(path: Path) -> Path:
    """The folder itself or the nearest one above it that exists."""
    return next(folder for folder in (path.absolute(), *path.absolute().parents) if folder.is_dir())
