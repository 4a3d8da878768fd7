"""The command `plm-embed export`."""

from pathlib import Path
from typing import Literal

import click

from plm_embed.cli_parts import EXISTING, FOLDER


@click.command()
@click.argument("master", type=EXISTING)
@click.argument("output", type=FOLDER)
@click.option(
    "--to",
    required=True,
    type=click.Choice(["uniprot-h5", "npy", "anndata", "pt", "pt-dict"]),
    help="What other tools expect.",
)
@click.option("--representation", default="emb", help="Such as mean_l33 or per_residue_l33; emb: the first pooled one.")
def export(
    master: Path, output: Path, to: Literal["uniprot-h5", "npy", "anndata", "pt", "pt-dict"], representation: str
) -> None:
    """Write embeddings in the form that another tool loads.

    \b
    uniprot-h5  one data set per id, as UniProt's per-protein.h5 and per-residue.h5
    npy         one array, to be memory-mapped, and OUTPUT.ids.tsv
    anndata     .h5ad, an observation per record
    pt          a folder with fair-esm's .pt file for each id
    pt-dict     one .pt file, a tensor by id; needs memory for all

    \b
    Example:
      plm-embed export results/esm2_t33_650M_UR50D per-protein.h5 --to uniprot-h5
    """
    from plm_embed.export import export as run

    run(master, to, output, representation)


COMMANDS = (export,)
