"""The command from sequence files to unique sequences in buckets."""

import json
from pathlib import Path
from typing import Literal, get_args

import click

from plm_embed.cli.options import ID_COLUMN, PATH, SEQUENCE_COLUMN, STRAND, ColumnarStep
from plm_embed.fingerprint import AlphabetName, Strand
from plm_embed.keys import MAX_BUCKETS
from plm_embed.sequences.settings import LEAST_MEMORY_MB, MEMORY_MB, ResiduePolicy, Table


@click.command(cls=ColumnarStep)
@click.argument("inputs", nargs=-1, required=True, type=PATH)
@click.option(
    "--output", required=True, type=PATH, help="Folder for records.parquet, buckets/ and members/."
)
@click.option(
    "--buckets", default=4, type=click.IntRange(1, MAX_BUCKETS), help="Number of buckets."
)
@ID_COLUMN
@SEQUENCE_COLUMN
@click.option(
    "--keep", multiple=True, help="Column to carry into the index (tables only; repeatable)."
)
@click.option(
    "--alphabet",
    default="protein",
    type=click.Choice(get_args(AlphabetName)),
    help="What the model reads.",
)
@click.option(
    "--unknown-residues",
    default="skip",
    type=click.Choice(["skip", "substitute"]),
    help="Letters outside the alphabet: skip the record, or substitute X (of DNA N).",
)
@click.option(
    "--gaps",
    default="remove",
    type=click.Choice(["remove", "skip"]),
    help="'-' and '.': remove them, or skip the record.",
)
@STRAND
@click.option(
    "--tables",
    default="",
    help="Columns of each input where they differ, as the workflow names them: a JSON list of "
    '{"id": ..., "sequence": ..., "keep": [...]}.',
)
@click.option(
    "--memory-mb",
    default=MEMORY_MB,
    type=click.IntRange(LEAST_MEMORY_MB),
    help="Memory to stay within.",
)
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
    tables: str,
    memory_mb: int,
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
    run(
        inputs,
        output,
        buckets=buckets,
        table=Table(id_column, sequence_column, keep),
        policy=ResiduePolicy(alphabet=alphabet, unknown=unknown_residues, gaps=gaps, strand=strand),
        memory_mb=memory_mb,
        tables=columns,
    )


COMMANDS = (deduplicate,)
