"""Commands that read vectors: look for neighbors, export, compare, and adopt those of another
program.
"""

import os
import sys
from pathlib import Path
from typing import Any, get_args

from click import BadParameter, Choice, UsageError, argument, command, echo, option

from plm_embed.cli.options import (
    AMOUNT,
    COLUMN_REMEDIES,
    COUNT,
    DEVICE,
    EXISTING,
    ID_COLUMN,
    PATH,
    SEQUENCE_COLUMN,
    WEIGHTS,
    optional,
    required,
    several,
)
from plm_embed.fingerprint import StorageDtype
from plm_embed.inference.settings import Settings
from plm_embed.io.files import atomic_path, refuse_existing
from plm_embed.io.terminal import printable, say
from plm_embed.sequences.settings import Table
from plm_embed.wording import count

UNSEEN = ("cache_key", "row", "source", "number")
"""Columns of the neighbors that are of no use on a terminal; an output file has them."""
METRICS = ("cosine", "dot", "euclidean")
FORMATS = ("parquet", "csv", "tsv", "npy", "uniprot-h5", "anndata")


@command()
@argument("results", type=EXISTING)
@argument("queries", type=EXISTING, required=False)
@several("--id", "ids", help="Find the neighbors of this record; repeatable.")
@ID_COLUMN
@SEQUENCE_COLUMN
@option("--top", "k", default=10, type=COUNT, help="Number of neighbors of a query.")
@option("--metric", default="cosine", type=Choice(METRICS), help="Nearness.")
@option("--representation", "name", default="emb", help="emb: the first pooled one.")
@option("--threads", default=1, type=COUNT, help="Threads that compare vectors.")
@option("--weights", type=EXISTING, help="The weights of the vectors; else those in the cache.")
@option("--output", type=PATH, help="File for the table: .tsv, .csv or .parquet.")
def search(
    *,
    results: Path,
    queries: Path | None,
    ids: tuple[str, ...],
    id_column: str,
    sequence_column: str,
    output: Path | None,
    **options: Any,
) -> None:
    """Find the nearest vectors of each sequence in QUERIES, or of each --id.

    RESULTS is a results folder, a master, or a store. The queries, a FASTA file or a table, are
    embedded here, with the model and the settings of these vectors, and compared with every vector.
    Each line of the answer is a record: query, rank, similarity, id, length and the columns kept
    from the input; with --output, all columns of the index. A query without a vector, such as one
    with unknown letters, is named and left out.

    \b
    Examples:
      plm-embed search results query.fasta --top 10
      plm-embed search results --id P0DTC2 --output neighbors.parquet
    """
    from pyarrow import csv, parquet

    import plm_embed
    from plm_embed.sequences.records import Reader

    if bool(ids) == (queries is not None):
        raise UsageError("give a file of queries, or --id")
    if output:
        if output.suffix not in {".tsv", ".csv", ".parquet"}:
            raise UsageError(f"--output: {output} must end with .tsv, .csv or .parquet")
        refuse_existing(output)
    columns = Table(id_column, sequence_column, remedies=COLUMN_REMEDIES)
    sequences = Reader(queries, columns) if queries else None
    with plm_embed.open(results) as embeddings:
        table = embeddings.nearest(ids or None, sequences=sequences, on_error="skip", **options)
    if not output:
        table = table.select([name for name in table.column_names if name not in UNSEEN])
        echo("\t".join(table.column_names))
        for line in table.to_pylist():
            echo("\t".join(printable(_text(value)) for value in line.values()))
        return
    with atomic_path(output) as temporary:
        if output.suffix == ".parquet":
            parquet.write_table(table, temporary)
        else:
            separator = "\t" if output.suffix == ".tsv" else ","
            csv.write_csv(table, temporary, csv.WriteOptions(delimiter=separator))
    say(f"{count(len(table), 'neighbor')} in {output}")


def _text(value: object) -> str:
    return "" if value is None else f"{value:.6f}" if isinstance(value, float) else str(value)


def _ids(text: str) -> list[str]:
    """Return the ids of a list with commas, or of a file the first column, up to a tab. Blanks
    around an id in a file belong to it.
    """
    if not os.path.isfile(text):  # noqa: PTH113  # where a long list is no name at all
        return [id.strip() for id in text.split(",") if id.strip()]
    lines = Path(text).read_text(encoding="utf-8-sig", errors="replace").split("\n")
    return [line.partition("\t")[0] for line in lines if line.strip()]


def _where(_: object, __: object, values: tuple[str, ...]) -> dict[str, str]:
    where: dict[str, str] = {}
    for pair in values:
        column, equals, value = pair.partition("=")
        if not equals or column in where:
            raise BadParameter(f"{pair}: write COLUMN=VALUE, each column once")
        where[column] = value
    return where


@command()
@argument("master", type=EXISTING)
@argument("output", type=PATH)
@required("--to", type=Choice(FORMATS), help="The format.")
@option(
    "--representation", default="emb", help="Such as per_residue_l33; emb: the first pooled one."
)
@option(
    "--ids", metavar="FILE|ID,...", help="Only these records: ids, or a file with one per line."
)
@several("--where", callback=_where, metavar="COLUMN=VALUE", help="Only records with this value.")
def export(*, ids: str | None, **options: Any) -> None:
    """Write embeddings in a format that other tools load.

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
    number, (written, *tables) = run(ids=chosen, **options)
    beside = "".join(f"; {path.suffixes[-2][1:]} in {path}" for path in tables)
    say(f"{count(number, 'record')} in {written}{beside}")


@command()
@argument("first", type=EXISTING)
@argument("second", type=EXISTING)
@option("--tolerance", default=0.0, type=AMOUNT, help="Numbers this near count as equal.")
def diff(*, first: Path, second: Path, tolerance: float) -> None:
    """Compare the vectors and scores of two masters.

    The answer says whether keys and numbers are the same, which differ, and by how much. Exit code
    0: the same keys, and no number differs by more than --tolerance. 1: they differ.

    \b
    Example:
      plm-embed diff old/master_esm2_embeddings.h5 new/master_esm2_embeddings.h5 --tolerance 1e-3
    """
    from plm_embed.reading.diff import compare

    difference = compare(first, second, tolerance)
    say(difference.text)
    if not difference.equal:
        sys.exit(1)


@command("import")
@argument("vectors", type=EXISTING)
@option(
    "--index",
    type=EXISTING,
    show_default="the Parquet file beside a master, FILE.npy.ids.tsv beside an array",
    help="Names of the rows: Parquet, CSV, TSV or a list of ids.",
)
@optional("--index-id", show_default="id, if there is one", help="Its column with the ids.")
@required("--sequences", multiple=True, type=EXISTING, help="The sequence files (repeatable).")
@ID_COLUMN
@SEQUENCE_COLUMN
@optional("--partner-column", help="Column with the second chain of pairs.")
@WEIGHTS
@required("--store", type=PATH, help="Store to publish the vectors in.")
@option("--layer", default=-1, help="Layer of the vectors; -1: last.")
@option(
    "--compute-dtype",
    default="float32",
    type=Choice(["float32", "bfloat16", "float16"]),
    help="The dtype that computed the vectors, and that the campaign names.",
)
@DEVICE
@option(
    "--storage-dtype",
    default="float16",
    type=Choice(get_args(StorageDtype)),
    help="Number format on disk.",
)
@optional("--linker", help="Residues between the chains of pairs.")
@option("--sample", default=32, type=COUNT, help="Rows to compute again and compare.")
def import_(
    *,
    vectors: Path,
    index: Path | None,
    index_id: str,
    sequences: tuple[Path, ...],
    id_column: str,
    sequence_column: str,
    partner_column: str,
    weights: Path,
    store: Path,
    layer: int,
    sample: int,
    linker: str,
    **options: Any,
) -> None:
    """Adopt the vectors of another program into a store, after a check of them.

    \b
    VECTORS is one of
      .h5                    a master (datasets emb, emb_keys), or a dataset per sequence, as
                             UniProt, ProtTrans, biotrainer, bio_embeddings and export write it
      .npy                   an array, and the names of its rows (--index)
      .parquet, .csv, .tsv   a table with a column of lists, or the columns e0, e1 ...
      .h5ad                  AnnData

    Long and random rows are computed again by the reference. If they are not the mean over the
    residues alone, as where the end token of padded sequences was pooled in, the file is refused
    with the measured deviation. Left out, for a campaign to compute, are sequences that may have
    been cut, rows without a sequence, and B for models that read it as X (ProtTrans' scripts keep
    it). Rows are matched by their keys (emb_keys, cache_key) where these are SHA-256 of sequences,
    else by the ids of their records; those must be the sequences that were embedded. The rows count
    as computed on --device: import where the campaign computes, into its store. --partner-column or
    --linker (25 G) make sequences pairs of chains.

    \b
    Examples:
      plm-embed import old/master_esm2_embeddings.h5 --index-id brc_fea_id \\
        --sequences protein_final.csv --id-column brc_fea_id --sequence-column esm2_ready_seq \\
        --weights results/esm2_t33_650M_UR50D/weights.json \\
        --store results/esm2_t33_650M_UR50D/store --compute-dtype bfloat16
      plm-embed import per-protein.h5 --sequences uniprot_sprot.fasta.gz \\
        --weights results/prot_t5_xl_uniref50/weights.json \\
        --store results/prot_t5_xl_uniref50/store --compute-dtype float16
    """
    from plm_embed.inference.weights import prepared
    from plm_embed.master.adopt import adopt
    from plm_embed.master.foreign import Files
    from plm_embed.workflow.config import LINKER

    table = Table(id_column, sequence_column, partner=partner_column, remedies=COLUMN_REMEDIES)
    files = Files(vectors, index, sequences, table, index_id)
    linker = linker or (LINKER if partner_column else "")
    chosen = Settings(layers=(layer,), linker=linker, **options)
    adopted = adopt(files, store, prepared(weights).path, chosen, sample)
    say(
        f"{count(adopted.rows, 'row')} adopted into {store}; {adopted.checked:,} checked: largest "
        f"relative distance to the reference {adopted.relative_l2:.2g}, "
        f"smallest cosine {adopted.cosine:.6f}"
    )
    if not adopted.by_key:
        say(
            "  Rows were matched by id. If a sequence changed under the same id, only the sampled "
            "rows reveal it (--sample)."
        )
    for reason, number in adopted.left_out.items():
        say(f"  {number:,} left out: {reason}")
