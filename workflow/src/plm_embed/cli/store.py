"""The command that makes a store of the vectors of another program."""

from pathlib import Path
from typing import Literal, get_args

import click

from plm_embed.cli.options import EXISTING, ID_COLUMN, PATH, SEQUENCE_COLUMN, WEIGHTS
from plm_embed.fingerprint import ComputeDtype, StorageDtype
from plm_embed.inference.settings import Settings
from plm_embed.io.terminal import say
from plm_embed.sequences.settings import Table


@click.command("import")
@click.argument("master", type=EXISTING)
@click.option(
    "--index",
    required=True,
    type=EXISTING,
    help="Parquet index of the master: row, and ids or cache_key.",
)
@click.option(
    "--index-id",
    default="",
    show_default="id, if there is one",
    help="Column of the index with the ids of the records.",
)
@click.option(
    "--sequences",
    required=True,
    multiple=True,
    type=EXISTING,
    help="The sequence files (repeatable).",
)
@ID_COLUMN
@SEQUENCE_COLUMN
@WEIGHTS(required=True)
@click.option("--store", required=True, type=PATH, help="Store to publish the vectors in.")
@click.option("--layer", default=-1, help="Layer of the vectors; -1: last.")
@click.option(
    "--compute-dtype",
    default="float32",
    type=click.Choice(["float32", "bfloat16", "float16"]),
    help="What the vectors were computed in; the campaign that uses them has to ask for the same.",
)
@click.option(
    "--device",
    default="auto",
    type=click.Choice(["auto", "cpu", "cuda"]),
    help="What the campaign computes on; auto: a GPU if there is one here.",
)
@click.option(
    "--storage-dtype",
    default="float16",
    type=click.Choice(get_args(StorageDtype)),
    help="What the vectors are stored in.",
)
@click.option(
    "--sample", default=32, type=click.IntRange(1), help="Rows to compute again and compare."
)
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
    device: Literal["auto", "cpu", "cuda"],
    storage_dtype: StorageDtype,
    sample: int,
) -> None:
    """Adopt the vectors of another program into a store, after a check of them.

    MASTER is an HDF5 file with the datasets emb and emb_keys. Random rows are computed again by
    fair-esm. If they are not the mean over the residues alone, as where the end token of padded
    sequences was pooled in, the master is refused with the measured deviation. Sequences that may
    have been cut, and rows without a sequence, are left out; a campaign computes them. Rows are
    told by their keys (emb_keys, cache_key), where these are SHA-256 of sequences, else by the ids
    of their records; those must be the sequences that were embedded. The rows count as computed on
    --device: import where the campaign computes, into its store.

    \b
    Example:
      plm-embed import old/master_esm2_embeddings.h5 \\
        --index old/master_esm2_embeddings.parquet --index-id brc_fea_id \\
        --sequences protein_final.csv --id-column brc_fea_id --sequence-column esm2_ready_seq \\
        --weights results/esm2_t33_650M_UR50D/weights.json \\
        --store results/esm2_t33_650M_UR50D/store --compute-dtype bfloat16
"""
    from plm_embed.master.adopt import adopt
    from plm_embed.master.foreign import Files

    files = Files(master, index, sequences, Table(id_column, sequence_column), index_id)
    settings = Settings(
        layers=(layer,), compute_dtype=compute_dtype, device=device, storage_dtype=storage_dtype
    )
    done = adopt(files, store, weights_folder, settings, sample)
    say(
        f"{done.rows:,} rows adopted into {store}; {done.checked} checked: largest relative "
        f"distance to the reference {done.relative_l2:.2g}, smallest cosine {done.cosine:.6f}"
    )
    if not done.by_key:
        say(
            "  Rows were matched by id. If a sequence changed under the same id, only the sampled "
            "rows reveal it (--sample)."
        )
    for reason, count in done.left_out.items():
        say(f"  {count:,} left out: {reason}")


COMMANDS = (import_,)
