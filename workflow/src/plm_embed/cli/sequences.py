"""Sub-commands from sequence files to unique sequences in buckets."""

from pathlib import Path

import click

from plm_embed.cli.options import EXISTING, PATH, ColumnarStep
from plm_embed.cli.setting_options import settings_of
from plm_embed.sequences.settings import Memory, Reading


@click.command(cls=ColumnarStep)
@click.argument("inputs", nargs=-1, required=True, type=PATH)
@click.option(
    "--output", required=True, type=PATH, help="Folder for records.parquet, buckets/ and members/."
)
@settings_of("reading", Reading)
@settings_of("memory", Memory)
def deduplicate(
    *, inputs: tuple[Path, ...], output: Path, reading: Reading, memory: Memory
) -> None:
    """Read sequence files, and write their unique sequences in buckets.

    Every record is accounted for, in records.parquet.

    \b
    Example:
      plm-embed deduplicate proteins.fasta.gz --output results/sequences --buckets 64
    """
    from plm_embed.sequences.deduplicate import deduplicate as run

    run(inputs, output, **vars(reading), **vars(memory))


@click.command(cls=ColumnarStep)
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
@settings_of("reading", Reading)
def scan(*, sequences: Path, number: int, output: Path, reading: Reading) -> None:
    """Read one of many sequence files.

    scan, split and collect do in parallel jobs what deduplicate does in one.

    \b
    Example:
      plm-embed scan uniref_1.fasta.gz --number 1 --output scans/1 --buckets 1024
    """
    from plm_embed.sequences.scan import scan as run

    run(sequences, number, output, **vars(reading))


@click.command(cls=ColumnarStep)
@click.argument("scans", nargs=-1, required=True, type=EXISTING)
@click.option(
    "--range",
    "number",
    required=True,
    type=click.IntRange(0, 63),
    help="Which range of buckets, from 0.",
)
@click.option("--output", required=True, type=PATH, help="Folder for the files of these buckets.")
@settings_of("memory", Memory)
def split(*, scans: tuple[Path, ...], number: int, output: Path, memory: Memory) -> None:
    """Find the unique sequences of a range of buckets.

    It looks in the scans of all inputs, which are named in their order. The ranges are the buckets
    themselves when there are at most 64 of them, else 64 groups of neighbors.

    \b
    Example:
      plm-embed split scans/0 scans/1 --range 7 --output splits/7
    """
    from plm_embed.sequences.split import split as run

    run(scans, number, output, **vars(memory))


@click.command(cls=ColumnarStep)
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
    from plm_embed.sequences.collect import collect as run

    run(scans, splits, output)


COMMANDS = (deduplicate, scan, split, collect)
