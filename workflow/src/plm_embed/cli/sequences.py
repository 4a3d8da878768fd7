"""The command from sequence files to unique sequences in buckets."""

import json
from pathlib import Path

import click

from plm_embed.cli.options import PATH, ColumnarStep
from plm_embed.cli.setting_options import settings_of
from plm_embed.sequences.settings import Memory, Reading, Table


@click.command(cls=ColumnarStep)
@click.argument("inputs", nargs=-1, required=True, type=PATH)
@click.option(
    "--output", required=True, type=PATH, help="Folder for records.parquet, buckets/ and members/."
)
@settings_of("reading", Reading)
@click.option(
    "--tables",
    default="",
    help="Columns of each input where they differ, as the workflow names them: a JSON list of "
    '{"id": ..., "sequence": ..., "keep": [...]}.',
)
@settings_of("memory", Memory)
def deduplicate(
    *, inputs: tuple[Path, ...], output: Path, reading: Reading, tables: str, memory: Memory
) -> None:
    """Read sequence files, and write their unique sequences in buckets.

    Every record is accounted for, in records.parquet.

    \b
    Example:
      plm-embed deduplicate proteins.fasta.gz --output results/sequences --buckets 64
    """
    from plm_embed.sequences.deduplicate import deduplicate as run

    columns = [
        Table(one["id"], one["sequence"], tuple(one["keep"])) for one in json.loads(tables or "[]")
    ]
    run(inputs, output, **vars(reading), **vars(memory), tables=columns)


COMMANDS = (deduplicate,)
