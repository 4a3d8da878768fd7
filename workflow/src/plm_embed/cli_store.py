"""Sub-commands about what is stored already: compare, merge, adopt."""

import json
import sys
from pathlib import Path

import click

from plm_embed.cli_parts import EXISTING, FOLDER
from plm_embed.fingerprint import ComputeDtype, StorageDtype
from plm_embed.terminal import say


@click.command()
@click.argument("store", type=EXISTING)
@click.option("--part-mb", default=1000, type=click.IntRange(1), help="Size that merged parts should have.")
@click.option("--keep-hours", default=24.0, type=click.FloatRange(0), help="How long replaced parts stay for readers.")
def compact(*, store: Path, part_mb: int, keep_hours: float) -> None:
    """Merge the small parts of a store into large ones. Safe while others read it and jobs publish.

    Replaced parts stay for --keep-hours, so that whoever reads them can end; the first run after that removes them.
    Until then the store takes twice the space of what was merged. Nothing else has to be done: completion records stay
    true.

    \b
    Example:
      plm-embed compact results/esm2_t33_650M_UR50D/store
    """
    from plm_embed.compact import compact as run

    done = run(store, 1_000_000 * part_mb, keep_hours)
    say(
        f"{done.merged:,} parts merged into {done.published:,}; {done.removed:,} replaced parts removed "
        f"({done.freed / 1e6:,.1f} MB)"
    )


@click.command()
@click.argument("first", type=EXISTING)
@click.argument("second", type=EXISTING)
@click.option("--tolerance", default=0.0, type=click.FloatRange(0), help="Numbers that differ by no more are equal.")
@click.option("--json", "as_json", is_flag=True, help="Print everything that was found as JSON.")
def diff(*, first: Path, second: Path, tolerance: float, as_json: bool) -> None:
    """Compare two masters: the same keys? the same vectors? which differ, and by how much?

    Exit code 0: the same keys, and no number differs by more than --tolerance. 1: they differ.

    \b
    Example:
      plm-embed diff old/master_esm2_embeddings.h5 new/master_esm2_embeddings.h5 --tolerance 1e-3
    """
    from plm_embed.diff import compare, in_words

    found = compare(first, second, tolerance)
    say(json.dumps(found.to_json(), indent=2) if as_json else in_words(found))
    if not found.equal:
        sys.exit(1)


@click.command("import")
@click.argument("master", type=EXISTING)
@click.option("--index", required=True, type=EXISTING, help="Parquet index of the master: row, and ids or cache_key.")
@click.option("--index-id", default="id", help="Column of the index with the ids of the records.")
@click.option("--sequences", required=True, multiple=True, type=EXISTING, help="The sequence files (repeatable).")
@click.option("--id-column", default="id", help="Column with the record id (tables only).")
@click.option("--sequence-column", default="sequence", help="Column with the residues (tables only).")
@click.option("--weights", "weights_folder", required=True, type=EXISTING, help="Folder made by `plm-embed weights`.")
@click.option("--store", required=True, type=FOLDER, help="Store to publish the vectors in.")
@click.option("--layer", default=-1, help="Layer of the vectors; -1: last.")
@click.option(
    "--compute-dtype",
    default="float32",
    type=click.Choice(["float32", "bfloat16", "float16"]),
    help="What the vectors were computed in; the campaign that reuses them has to ask for the same.",
)
@click.option("--storage-dtype", default="float16", type=click.Choice(["float16", "float32", "bfloat16"]))
@click.option("--sample", default=32, type=click.IntRange(1), help="Rows to compute again and compare.")
def import_(
    *,
    master: Path,
    index: Path,
    index_id: str,
    sequences: tuple[Path, ...],
    id_column: str,
    sequence_column: str,
    weights_folder: Path,
    store: Path,
    layer: int,
    compute_dtype: ComputeDtype,
    storage_dtype: StorageDtype,
    sample: int,
) -> None:
    """Adopt a master of another program (data sets emb and emb_keys) as a store, after a check of its vectors.

    Random rows are computed again by fair-esm. If they are not the mean over the residues alone, as where the end token
    of padded sequences was pooled in, the master is refused with the measured deviation. Sequences that may have been
    cut, and rows without a sequence, are left out; a campaign computes them. Name the store in `store` or `reuse`.

    \b
    Example:
      plm-embed import old/master_esm2_embeddings.h5 --index old/master_esm2_embeddings.parquet --index-id brc_fea_id \\
        --sequences protein_final.csv --id-column brc_fea_id --sequence-column esm2_ready_seq \\
        --weights resources/weights/esm2_t33_650M_UR50D --store imported
    """
    from plm_embed.adopt import Files, adopt
    from plm_embed.readers import Table
    from plm_embed.settings import Settings

    files = Files(master, index, sequences, Table(id_column, sequence_column), index_id)
    settings = Settings(layers=(layer,), compute_dtype=compute_dtype, storage_dtype=storage_dtype)
    done = adopt(files, store, weights_folder, settings, sample)
    say(
        f"{done.rows:,} rows adopted into {store}; {done.checked} checked: largest relative distance to the reference "
        f"{done.relative_l2:.2g}, smallest cosine {done.cosine:.6f}"
    )
    for reason, count in done.left_out.items():
        say(f"  {count:,} left out: {reason}")


COMMANDS = (compact, diff, import_)
