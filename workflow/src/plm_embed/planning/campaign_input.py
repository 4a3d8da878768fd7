"""What a campaign is to embed, before anything has run: its configuration, and the lengths of its
sequences.
"""

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from plm_embed.errors import ConfigError, InputError
from plm_embed.sequences.summary import SUMMARY, Summary, read_summary, summary_file
from plm_embed.sites.data import laid_over
from plm_embed.workflow.config import Config, checked, input_reading
from plm_embed.workflow.repeated_keys import check_repeated_keys


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


def read_config(
    configfile: Path | None, settings: Sequence[str] = (), *, awaited: bool = False
) -> Config:
    """The configuration as the workflow sees it: `configfile`, or without one config/config.yaml,
    and the `KEY=VALUE` of Snakemake's --config laid over it. awaited: as in `checked`.
    """
    config = _yaml(configfile or Path("config/config.yaml"))
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not (equals and key):
            raise ConfigError(
                f"--config {setting}: write KEY=VALUE, as for snakemake, such as buckets=64; "
                "a file goes after --configfile",
                key="--config",
            )
        config = laid_over(config, {key: _value(value)})
    return checked(config, awaited=awaited)


def _value(text: str) -> Any:
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        return text


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

    folder = Path(config["results"]) / "sequences"
    wanted = sorted((path, Path(path).stat().st_size) for path in config["inputs"])
    reading = input_reading(config)
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
            [Path(path) for path in config["inputs"]],
            Path(temporary),
            **vars(reading),
            memory_mb=config["memory_mb"],
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


def _where(error: yaml.YAMLError) -> str:
    mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
    return f", line {mark.line + 1}: not YAML: {problem}" if mark else f": not YAML ({error})"


def _yaml(path: Path) -> dict[str, Any]:
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except FileNotFoundError:
        raise ConfigError(
            f"{path}: there is no such file", path=path, remedy="name yours with --configfile"
        ) from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}{_where(error)}", path=path) from None
    check_repeated_keys([path])
    if not isinstance(content, dict):
        raise ConfigError(f"{path}: not a configuration: it has no keys", path=path)
    return content
