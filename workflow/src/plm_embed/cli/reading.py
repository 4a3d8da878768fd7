"""Commands that read results: look for neighbors, export vectors, compare masters."""

import json
import sys
from errno import ENAMETOOLONG, ENOENT, ENOTDIR
from pathlib import Path
from typing import TYPE_CHECKING

import click

from plm_embed.cli.options import EXISTING, PATH
from plm_embed.errors import UnknownIdError
from plm_embed.io.files import atomic_path
from plm_embed.io.terminal import printable, say

if TYPE_CHECKING:
    import pyarrow as pa

    from plm_embed.reading.exports import Format
    from plm_embed.reading.search import Metric

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
@click.option(
    "--metric",
    default="cosine",
    type=click.Choice(["cosine", "dot", "euclidean"]),
    help="What near means.",
)
@click.option(
    "--name", default="emb", help="Which representation; emb is the first that is pooled."
)
@click.option(
    "--threads",
    default=1,
    type=click.IntRange(1),
    help="How many compare; more are faster where cores are idle.",
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
    metric: "Metric",
    name: str,
    threads: int,
    weights: Path | None,
    output: Path | None,
) -> None:
    """Find the nearest vectors of each sequence in QUERIES, or of each --id.

    RESULTS is a results folder, a master, or a store. The queries are embedded here, with the model
    and the settings of these vectors, and compared with every vector. What is printed: query, rank,
    similarity, and what the index says of each record that was found. A query that has no vector,
    such as one with letters of no residue, is named and left out.

    \b
    Examples:
      plm-embed search results query.fasta --top 10
      plm-embed search results --id P0DTC2 --output neighbors.parquet
    """
    import plm_embed

    if bool(ids) == (queries is not None):
        raise click.UsageError("give a file of queries, or --id")
    if queries and output and output.exists() and output.samefile(queries):
        raise click.UsageError(f"--output: {output} is the file of queries; name another one")
    with plm_embed.open(results) as embeddings:
        found = embeddings.nearest(
            ids or None,
            sequences=queries,
            k=top,
            metric=metric,
            name=name,
            weights=weights,
            on_error="skip",
            threads=threads,
        )
    if output is None:
        _print(found)
    else:
        with atomic_path(output) as temporary:
            _write(found, temporary, output.suffix)


def _print(found: "pa.Table") -> None:
    click.echo("\t".join(found.column_names))
    for line in found.to_pylist():
        click.echo("\t".join(printable(_text(value)) for value in line.values()))


def _text(value: object) -> str:
    return "" if value is None else f"{value:.6f}" if isinstance(value, float) else str(value)


def _write(found: "pa.Table", path: Path, suffix: str) -> None:
    from pyarrow import csv, parquet

    if suffix == ".parquet":
        parquet.write_table(found, path)
    else:
        options = csv.WriteOptions(delimiter="\t" if suffix == ".tsv" else ",")
        csv.write_csv(found, path, options)


FORMATS = ("parquet", "csv", "tsv", "npy", "uniprot-h5", "anndata")


def _ids(given: str) -> list[str]:
    """A list with commas, or of a file the first column, up to a tab. An id may begin and end with
    blanks: those of a list alone, where they follow commas, are left out.
    """
    try:
        lines = Path(given).read_text(encoding="utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        # what no file can be called is a list
        listed = isinstance(error, OSError) and error.errno in (ENOENT, ENOTDIR, ENAMETOOLONG)
        if listed:
            words = given.split(",")
            return words if len(words) == 1 else [word.strip() for word in words if word.strip()]
        raise click.BadParameter(f"{given}: not a file of ids", param_hint="--ids") from None
    return [line.partition("\t")[0] for line in lines if line.strip()]


def _where(_: click.Context, option: click.Parameter, given: tuple[str, ...]) -> dict[str, str]:
    pairs = [each.partition("=") for each in given]
    if wrong := [each for each, (_, equals, _) in zip(given, pairs, strict=True) if not equals]:
        raise click.BadParameter(f"{wrong[0]}: write COLUMN=VALUE", param=option)
    where = {column: value for column, _, value in pairs}
    if len(where) < len(pairs):
        raise click.BadParameter("a column is named twice; it has one value", param=option)
    return where


@click.command()
@click.argument("master", type=EXISTING)
@click.argument("output", type=PATH)
@click.option("--to", required=True, type=click.Choice(FORMATS), help="What other tools expect.")
@click.option(
    "--representation",
    default="emb",
    help="Such as mean_l33 or per_residue_l33; emb: the first pooled one.",
)
@click.option(
    "--ids",
    metavar="FILE|ID,...",
    help="Only these records: a file with an id in each line, or ids.",
)
@click.option(
    "--where",
    multiple=True,
    callback=_where,
    metavar="COLUMN=VALUE",
    help="Only records with this value in a column of the index; repeatable.",
)
def export(
    *,
    master: Path,
    output: Path,
    to: "Format",
    representation: str,
    ids: str | None,
    where: dict[str, str],
) -> None:
    """Write embeddings in the form that another tool loads.

    \b
    parquet      a table with a column of vectors: pandas, Polars, DuckDB, R
    csv, tsv     a table with a column for each dimension
    npy          one array, to be memory-mapped, and OUTPUT.ids.tsv
    uniprot-h5   one dataset per id, as UniProt's per-protein.h5 and per-residue.h5; for ProtSpace
    anndata      .h5ad, an observation per record; needs memory for all

    \b
    Examples:
      plm-embed export results/esm2_t33_650M_UR50D per-protein.h5 --to uniprot-h5
      plm-embed export results some.parquet --to parquet --where function=hemagglutinin
    """
    from plm_embed.reading.exports import export as run

    chosen = None if ids is None else _ids(ids)
    try:
        count, (written, *names) = run(master, to, output, representation, ids=chosen, where=where)
    except UnknownIdError as error:
        if chosen != [ids]:
            raise
        raise UnknownIdError(
            f"--ids {ids}: there is no such file, nor a vector of this id; records.parquet says "
            "what became of a record",
            path=error.path,
        ) from None
    beside = "".join(f"; {path.suffixes[-2][1:]} in {path}" for path in names)
    say(f"{'1 record' if count == 1 else f'{count:,} records'} in {written}{beside}")


@click.command()
@click.argument("first", type=EXISTING)
@click.argument("second", type=EXISTING)
@click.option(
    "--tolerance",
    default=0.0,
    type=click.FloatRange(0),
    help="Numbers that differ by no more are equal.",
)
@click.option("--json", "as_json", is_flag=True, help="Print everything that was found as JSON.")
def diff(*, first: Path, second: Path, tolerance: float, as_json: bool) -> None:
    """Compare two masters, vector by vector.

    It tells whether keys and vectors are the same, which differ, and by how much. Exit code 0: the
    same keys, and no number differs by more than --tolerance. 1: they differ.

    \b
    Example:
      plm-embed diff old/master_esm2_embeddings.h5 new/master_esm2_embeddings.h5 --tolerance 1e-3
    """
    from plm_embed.reading.diff import compare, in_words

    found = compare(first, second, tolerance)
    say(json.dumps(found.to_json(), indent=2) if as_json else in_words(found))
    if not found.equal:
        sys.exit(1)


COMMANDS = (search, export, diff)
