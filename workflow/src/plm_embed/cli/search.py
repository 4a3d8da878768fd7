"""The command that looks for neighbors."""

from pathlib import Path

import click
import pyarrow as pa

from plm_embed.cli.options import EXISTING, PATH, choice
from plm_embed.io.files import atomic_path
from plm_embed.io.terminal import printable
from plm_embed.reading.nearest import Metric

SUFFIXES = (".tsv", ".csv", ".parquet")


def _suffix(_: click.Context, option: click.Parameter, path: Path | None) -> Path | None:
    if path is not None and path.suffix not in SUFFIXES:
        raise click.BadParameter(f"{path}: ends with one of {', '.join(SUFFIXES)}", param=option)
    return path


@click.command()
@click.argument("results", type=EXISTING)
@click.argument("queries", type=EXISTING, required=False)
@click.option(
    "--id", "ids", multiple=True, help="Ask for the neighbors of this record; repeatable."
)
@click.option("--top", default=10, type=click.IntRange(1), help="How many neighbors of each query.")
@click.option("--metric", default="cosine", type=choice(Metric), help="What near means.")
@click.option(
    "--name", default="emb", help="Which representation; emb is the first that is pooled."
)
@click.option(
    "--weights",
    type=EXISTING,
    help="The weights that made the vectors: a weights folder, or what `weights:` was. Otherwise "
    "resources/weights is looked in, and what was downloaded before.",
)
@click.option(
    "--output",
    type=PATH,
    callback=_suffix,
    help="Write the table to this file (.tsv, .csv or .parquet) instead of the screen.",
)
def search(
    *,
    results: Path,
    queries: Path | None,
    ids: tuple[str, ...],
    top: int,
    metric: Metric,
    name: str,
    weights: Path | None,
    output: Path | None,
) -> None:
    """Find the nearest vectors of each sequence in QUERIES, or of each --id.

    RESULTS is a results folder, a master, or a store. The queries are embedded here, with the model
    and the settings of these vectors, and compared with every vector. What is printed: query, rank,
    similarity, and what the index says of each record that was found.

    \b
    Examples:
      plm-embed search results query.fasta --top 10
      plm-embed search results --id P0DTC2 --output neighbors.parquet
    """
    import plm_embed

    if bool(ids) == (queries is not None):
        raise click.UsageError("give a file of queries, or --id")
    with plm_embed.open(results) as embeddings:
        found = embeddings.nearest(
            ids or None, sequences=queries, k=top, metric=metric, name=name, weights=weights
        )
    if output is None:
        _print(found)
    else:
        with atomic_path(output) as temporary:
            _write(found, temporary, output.suffix)


def _print(found: pa.Table) -> None:
    click.echo("\t".join(found.column_names))
    for line in found.to_pylist():
        click.echo("\t".join(printable(_text(value)) for value in line.values()))


def _text(value: object) -> str:
    return "" if value is None else f"{value:.6f}" if isinstance(value, float) else str(value)


def _write(found: pa.Table, path: Path, suffix: str) -> None:
    import pyarrow.parquet as pq

    if suffix == ".parquet":
        pq.write_table(found, path)
    else:
        options = pa.csv.WriteOptions(delimiter="\t" if suffix == ".tsv" else ",")
        pa.csv.write_csv(found, path, options)


COMMANDS = (search,)
