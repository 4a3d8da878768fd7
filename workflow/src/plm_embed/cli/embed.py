"""The commands that compute: weights and embed."""

import sys
from pathlib import Path
from typing import Literal, get_args

import click

from plm_embed.cli.options import EXISTING, PATH, STRAND, Step, Workers, choice
from plm_embed.fingerprint import (
    MATRICES,
    ComputeDtype,
    LongPolicy,
    LongSequences,
    Pooling,
    StorageDtype,
    Strand,
)
from plm_embed.inference.settings import Settings


@click.command(cls=Step)
@click.option(
    "--model",
    required=True,
    help="Name or alias, such as esm2_t33_650M_UR50D, facebook/esm2_t33_650M_UR50D, esm2_650m.",
)
@click.option(
    "--source",
    type=PATH,
    help="A fair-esm .pt file or a Hugging Face folder; without it "
    "the published file is downloaded.",
)
@click.option(
    "--adapter", type=PATH, help="A LoRA adapter in PEFT's layout, merged into the weights."
)
@click.option(
    "--output",
    required=True,
    type=PATH,
    help="Folder for model.safetensors, manifest.json and self_test.npz.",
)
@click.option(
    "--record",
    type=PATH,
    help="Also write the manifest to this file: a campaign's note of what it uses.",
)
@click.option(
    "--check",
    is_flag=True,
    help="Also load them on this machine, and compare what they answer with what their publisher's "
    "own program does, where that is known (ESM-2, ESM C, Ankh).",
)
def weights(
    *,
    model: str,
    source: Path | None,
    adapter: Path | None,
    output: Path,
    record: Path | None,
    check: bool,
) -> None:
    """Download or adopt the weights of a model, and verify them.

    They are converted, and the golden vectors of the self-test are computed beside them.

    \b
    Example:
      plm-embed weights --model esm2_650m --source esm2_t33_650M_UR50D.pt \\
        --output resources/weights/esm2_t33_650M_UR50D --check
    """
    from plm_embed.inference.prepare_weights import prepare
    from plm_embed.models.manifest import write_manifest
    from plm_embed.models.registry import find_model

    manifest = prepare(find_model(model), source, output, adapter)
    if record:
        write_manifest(record, manifest)
    if check:
        from plm_embed.inference import check_weights

        for line in check_weights.check(output):
            print(line)


@click.command(cls=Step)
@click.argument("buckets", nargs=-1, required=True, type=PATH)
@click.option(
    "--weights",
    "weights_folder",
    required=True,
    type=EXISTING,
    help="Folder made by `plm-embed weights`.",
)
@click.option("--store", required=True, type=PATH, help="Store of vectors; shared by all buckets.")
@click.option(
    "--embedded", required=True, type=PATH, help="Folder for the buckets' completion records."
)
@click.option(
    "--output", required=True, type=PATH, help="Written when all these buckets are complete (JSON)."
)
@click.option(
    "--reuse", multiple=True, type=EXISTING, help="Earlier master (.h5) or store (repeatable)."
)
@click.option(
    "--layers",
    multiple=True,
    type=int,
    default=Settings.layers,
    help="0 to the number of layers, -1: last (repeatable).",
)
@click.option(
    "--pooling",
    multiple=True,
    type=choice(Pooling),
    default=Settings.pooling,
    help="What is stored (repeatable).",
)
@click.option(
    "--compute-dtype",
    default=Settings.compute_dtype,
    type=click.Choice(["auto", *get_args(ComputeDtype)]),
    help="auto: bfloat16 from compute capability 8.0 on, else float32.",
)
@click.option(
    "--storage-dtype",
    default=Settings.storage_dtype,
    type=choice(StorageDtype),
    help="Number format on disk.",
)
@click.option(
    "--long-sequences",
    default=LongSequences.policy,
    type=choice(LongPolicy),
    help="What happens above --max-residues.",
)
@click.option(
    "--max-residues",
    default=LongSequences.max_residues,
    type=click.IntRange(0),
    help="Longest piece for the model; 0: no limit.",
)
@click.option(
    "--overlap",
    default=LongSequences.overlap,
    type=click.IntRange(0),
    help="Residues that neighboring windows share.",
)
@STRAND
@click.option(
    "--device",
    default=Settings.device,
    type=click.Choice(["auto", "cpu", "cuda"]),
    help="What to compute on; auto: GPUs where there are any.",
)
@click.option(
    "--nodes",
    default=1,
    type=click.IntRange(1),
    help="Nodes of the PBS job; the workers are per node.",
)
@click.option(
    "--workers",
    "--gpus",
    default=1,
    type=Workers(),
    metavar="N|all",
    help="Processes, one per GPU; all: of those visible.",
)
@click.option(
    "--threads",
    default=Settings.threads,
    type=click.IntRange(1),
    help="CPU threads, shared by the workers.",
)
@click.option(
    "--toks-per-batch",
    default=Settings.toks_per_batch,
    type=click.IntRange(0),
    help="Tokens per batch; 0: the device's default.",
)
@click.option(
    "--scratch",
    default=Settings.scratch,
    help="Node-local folder; auto: find one; '': write beside the store.",
)
@click.option(
    "--flush-minutes",
    default=Settings.flush_minutes,
    type=click.FloatRange(0, min_open=True),
    help="A kill loses at most this much work.",
)
@click.option(
    "--per-residue-limit-gb",
    default=100.0,
    type=click.FloatRange(0),
    help="More per-residue output: stop.",
)
@click.option(
    "--minutes",
    default=0.0,
    type=click.FloatRange(0),
    help="Walltime of the SLURM or PBS job; 0: none.",
)
def embed(
    *,
    buckets: tuple[Path, ...],
    weights_folder: Path,
    store: Path,
    embedded: Path,
    output: Path,
    reuse: tuple[Path, ...],
    layers: tuple[int, ...],
    pooling: tuple[Pooling, ...],
    compute_dtype: ComputeDtype | Literal["auto"],
    storage_dtype: StorageDtype,
    long_sequences: LongPolicy,
    max_residues: int,
    overlap: int,
    strand: Strand,
    device: Literal["auto", "cpu", "cuda"],
    nodes: int,
    workers: int,
    threads: int,
    toks_per_batch: int,
    scratch: str,
    flush_minutes: float,
    per_residue_limit_gb: float,
    minutes: float,
) -> None:
    """Embed what the store lacks of some buckets.

    \b
    Example:
      plm-embed embed results/sequences/buckets/*.parquet \\
        --weights resources/weights/esm2_t33_650M_UR50D \\
        --store results/esm2_t33_650M_UR50D/store --embedded results/esm2_t33_650M_UR50D/embedded \\
        --output results/esm2_t33_650M_UR50D/submissions/0000.json --gpus all
"""
    from plm_embed.jobs.attempts import noted
    from plm_embed.jobs.dispatch import Plan
    from plm_embed.jobs.gpus import Meter, visible_gpus
    from plm_embed.jobs.nodes import on_all_nodes
    from plm_embed.jobs.submission import embed_buckets
    from plm_embed.models.manifest import check_record
    from plm_embed.sequences.summary import present
    from plm_embed.sites.scheduler import job_id

    if nodes > 1:
        on_all_nodes(
            nodes, [*sys.argv[1:], "--nodes", "1"], output
        )  # of a repeated option the last counts
        return
    settings = Settings(
        layers=layers,
        pooling=pooling,
        compute_dtype=compute_dtype,
        storage_dtype=storage_dtype,
        long_sequences=LongSequences(long_sequences, max_residues, overlap),
        strand=strand,
        device=device,
        toks_per_batch=toks_per_batch,
        scratch=scratch,
        flush_minutes=flush_minutes,
        threads=threads,
        reuse=reuse,
    )
    for bucket in buckets:
        present(bucket)
    check_record(weights_folder, embedded.parent)
    if MATRICES.intersection(pooling):
        from plm_embed.planning.sizes import announce

        announce(buckets[0], weights_folder, settings, per_residue_limit_gb)
    workers = workers or (1 if device == "cpu" else max(1, len(visible_gpus())))
    plan = Plan(buckets, weights_folder, store, embedded, workers, minutes if job_id() else 0)
    energy = None if device == "cpu" else Meter(workers)
    with noted(embedded, output.stem, [bucket.stem for bucket in buckets], workers, energy):
        embed_buckets(plan, settings, output)


COMMANDS = (weights, embed)
