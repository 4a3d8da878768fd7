"""Sub-commands from sequence files to unique sequences in buckets."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

import click

from plm_embed.cli.options import (
    EXISTING,
    ID_COLUMN,
    MEMORY_MB,
    PATH,
    SEQUENCE_COLUMN,
    STRAND,
    Step,
)
from plm_embed.fingerprint import AlphabetName, Strand

Command = TypeVar("Command", bound=Callable[..., Any])


def _reading(command: Command) -> Command:
    """Options about what is read and how it is judged."""
    for option in (
        STRAND,
        click.option(
            "--gaps",
            default="remove",
            type=click.Choice(["remove", "skip"]),
            help="'-' and '.': remove them, or skip the record.",
        ),
        click.option(
            "--unknown-residues",
            default="skip",
            type=click.Choice(["skip", "substitute"]),
            help="Letters outside the alphabet: skip the record, or substitute X (of DNA N).",
        ),
        click.option(
            "--alphabet",
            default="protein",
            type=click.Choice(get_args(AlphabetName)),
            help="What the model reads.",
        ),
        click.option(
            "--keep",
            multiple=True,
            help="Column to carry into the index (tables only; repeatable).",
        ),
        SEQUENCE_COLUMN,
        ID_COLUMN,
        click.option(
            "--buckets", default=4, type=click.IntRange(1, 20_000), help="Number of buckets."
        ),
    ):
        command = option(command)
    return command


@click.command(cls=Step)
@click.argument("inputs", nargs=-1, required=True, type=PATH)
@click.option(
    "--output", required=True, type=PATH, help="Folder for records.parquet, buckets/ and members/."
)
@_reading
@MEMORY_MB
def deduplicate(
    *,
    inputs: tuple[Path, ...],
    output: Path,
    buckets: int,
    id_column: str,
    sequence_column: str,
    keep: tuple[str, ...],
    alphabet: AlphabetName,
    unknown_residues: Literal["skip", "substitute"],
    gaps: Literal["remove", "skip"],
    strand: Strand,
    memory_mb: int,
) -> None:
    """Read sequence files, and write their unique sequences in buckets.

    Every record is accounted for, in records.parquet.

    \b
    Example:
      plm-embed deduplicate proteins.fasta.gz --output results/sequences --buckets 64
    """
    from plm_embed.sequences.deduplicate import deduplicate as run
    from plm_embed.sequences.normalize import ResiduePolicy
    from plm_embed.sequences.tables import Table

    run(
        inputs,
        output,
        buckets=buckets,
        table=Table(id_column, sequence_column, keep),
        policy=ResiduePolicy(unknown_residues, gaps, alphabet, strand),
        memory_mb=memory_mb,
    )


@click.command(cls=Step)
@click.argument("sequences", type=PATH)
@click.option(
    "--number",
    required=True,
    type=click.IntRange(0),
    help="Place of this file among the inputs, from 0.",
)
@click.option(
    "--output", required=True, type=PATH, help="Folder for what split and collect take up."
)
@_reading
def scan(
    *,
    sequences: Path,
    number: int,
    output: Path,
    buckets: int,
    id_column: str,
    sequence_column: str,
    keep: tuple[str, ...],
    alphabet: AlphabetName,
    unknown_residues: Literal["skip", "substitute"],
    gaps: Literal["remove", "skip"],
    strand: Strand,
) -> None:
    """Read one of many sequence files.

    scan, split and collect do in parallel jobs what deduplicate does in one.

    \b
    Example:
      plm-embed scan uniref_1.fasta.gz --number 1 --output scans/1 --buckets 1024
    """
    from plm_embed.sequences.first_pass import scan as run
    from plm_embed.sequences.normalize import ResiduePolicy
    from plm_embed.sequences.tables import Table

    table = Table(id_column, sequence_column, keep)
    run(
        sequences,
        number,
        output,
        buckets=buckets,
        table=table,
        policy=ResiduePolicy(unknown_residues, gaps, alphabet, strand),
    )


@click.command(cls=Step)
@click.argument("scans", nargs=-1, required=True, type=EXISTING)
@click.option(
    "--range",
    "number",
    required=True,
    type=click.IntRange(0, 63),
    help="Which range of buckets, from 0.",
)
@click.option("--output", required=True, type=PATH, help="Folder for the files of these buckets.")
@MEMORY_MB
def split(*, scans: tuple[Path, ...], number: int, output: Path, memory_mb: int) -> None:
    """Find the unique sequences of a range of buckets.

    It looks in the scans of all inputs, which are named in their order. The ranges are the buckets
    themselves when there are at most 64 of them, else 64 groups of neighbors.

    \b
    Example:
      plm-embed split scans/0 scans/1 --range 7 --output splits/7
    """
    from plm_embed.sequences.write_buckets import split as run

    run(scans, number, output, memory_mb=memory_mb)


@click.command(cls=Step)
@click.option(
    "--scan",
    "scans",
    multiple=True,
    required=True,
    type=EXISTING,
    help="A scan, in the inputs' order.",
)
@click.option(
    "--split",
    "splits",
    multiple=True,
    required=True,
    type=EXISTING,
    help="A split, in the ranges' order.",
)
@click.option(
    "--output", required=True, type=PATH, help="Folder for records.parquet, buckets/ and members/."
)
def collect(*, scans: tuple[Path, ...], splits: tuple[Path, ...], output: Path) -> None:
    """Bring scans and splits together.

    The result is what deduplicate writes, byte for byte.

    \b
    Example:
      plm-embed collect --scan scans/0 --scan scans/1 --split splits/0 --output results/sequences
    """
    from plm_embed.sequences.write_buckets import collect as run

    run(scans, splits, output)


COMMANDS = (deduplicate, scan, split, collect)
