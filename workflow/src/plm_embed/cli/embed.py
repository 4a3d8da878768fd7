"""The commands that compute: weights and embed."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, get_args

import click

from plm_embed.accuracy import check_dtype
from plm_embed.cli.options import PATH, STRAND, WEIGHTS, Step, Workers
from plm_embed.fingerprint import (
    MATRICES,
    ComputeDtype,
    LongPolicy,
    LongSequences,
    Pooling,
    StorageDtype,
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
    "--cache",
    type=PATH,
    show_default="$PLM_EMBED_WEIGHTS, or ~/.cache/plm-embed/weights",
    help="Folder of prepared weights, with a folder in it for each content.",
)
@click.option(
    "--output",
    type=PATH,
    help="Prepare them in this very folder: model.safetensors, manifest.json, self_test.npz.",
)
@click.option(
    "--record",
    type=PATH,
    help="Also write this file: a campaign's note of what it uses, and where that lies.",
)
@click.option(
    "--compute-dtype",
    type=click.Choice(["auto", *get_args(ComputeDtype)]),
    default="auto",
    help="Refuse weights for which this dtype is too coarse.",
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
    cache: Path | None,
    output: Path | None,
    record: Path | None,
    compute_dtype: Literal["auto"] | ComputeDtype,
    check: bool,
) -> None:
    """Download or adopt the weights of a model, and verify them.

    They are converted, and the golden vectors of the self-test are computed beside them.

    \b
    Example:
      plm-embed weights --model esm2_650m --source esm2_t33_650M_UR50D.pt --check
    """
    from plm_embed.inference.weights import prepare, prepare_cached
    from plm_embed.models.manifest import write_manifest
    from plm_embed.models.registry import find_model

    if output:
        manifest = prepare(find_model(model), source, output)
        manifest = replace(manifest, folder=str(output.absolute()))
    else:
        manifest = prepare_cached(find_model(model), source, cache=cache)
    if compute_dtype != "auto":
        check_dtype(compute_dtype, manifest.roundings, manifest.model)
    if record:
        write_manifest(record, manifest)
    else:
        print(manifest.folder)
    if check:
        from plm_embed.inference import check_weights

        for line in check_weights.check(Path(manifest.folder or "")):
            print(line)


@click.command(cls=Step)
@click.argument("bucket", type=PATH)
@WEIGHTS(required=True)
@click.option("--store", required=True, type=PATH, help="Store of vectors; shared by all buckets.")
@click.option(
    "--record", required=True, type=PATH, help="Completion record (JSON), written at the end."
)
@click.option(
    "--layers",
    default=Settings.layers,
    multiple=True,
    type=int,
    help="0 to the number of layers, -1: last (repeatable).",
)
@click.option(
    "--pooling",
    default=Settings.pooling,
    multiple=True,
    type=click.Choice(get_args(Pooling)),
    help="What is stored (repeatable).",
)
@click.option(
    "--compute-dtype",
    default="auto",
    type=click.Choice(["auto", *get_args(ComputeDtype)]),
    help="auto: bfloat16 from compute capability 8.0 on, else float32.",
)
@click.option(
    "--storage-dtype",
    default=Settings.storage_dtype,
    type=click.Choice(get_args(StorageDtype)),
    help="Number format on disk.",
)
@click.option(
    "--long-sequences",
    default=LongSequences.policy,
    type=click.Choice(get_args(LongPolicy)),
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
    default="auto",
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
    default=Settings.per_residue_limit_gb,
    type=click.FloatRange(0),
    help="More per-residue output: stop.",
)
@click.option(
    "--gpu-required",
    is_flag=True,
    help="Fail without a GPU unless --device is cpu; the workflow sets this in jobs that a "
    "scheduler starts.",
)
@click.option(
    "--minutes",
    default=0.0,
    type=click.FloatRange(0),
    help="Walltime of the SLURM or PBS job; 0: none.",
)
@click.option("--share", type=PATH, hidden=True, help="Of the first node, for the others.")
@click.option("--node", type=int, hidden=True, help="The number of this node.")
def embed(
    *,
    bucket: Path,
    weights_folder: Path,
    store: Path,
    record: Path,
    long_sequences: LongPolicy,
    max_residues: int,
    overlap: int,
    nodes: int,
    workers: int,
    gpu_required: bool,
    minutes: float,
    share: Path | None,
    node: int | None,
    **given: Any,
) -> None:
    """Embed what the store lacks of a bucket.

    The record is written when the store lacks nothing more. Until then the exit status is 1, or 75
    when the fault is this node's. A repetition does only the rest.

    \b
    Example:
      plm-embed embed results/sequences/buckets/0000.parquet \\
        --weights results/esm2_t33_650M_UR50D/weights.json \\
        --store results/esm2_t33_650M_UR50D/store \\
        --record results/esm2_t33_650M_UR50D/embedded/0000.json --gpus all
"""
    from plm_embed.jobs.gpus import take_gpus, visible_gpus
    from plm_embed.jobs.heartbeat import job_id
    from plm_embed.jobs.job import Job, embed_bucket
    from plm_embed.sequences.summary import check_present

    check_present(bucket)
    long = LongSequences(long_sequences, max_residues, overlap)
    settings = Settings(long_sequences=long, **given)
    if MATRICES.intersection(settings.pooling):
        from plm_embed.planning.costs import check_per_residue

        check_per_residue(bucket, weights_folder, settings)
    on_cpu = settings.device == "cpu"
    if gpu_required and not on_cpu:
        settings = replace(settings, device="cuda")
    workers = workers or (1 if on_cpu else max(1, len(visible_gpus())))
    job = Job(
        bucket=bucket,
        weights=weights_folder,
        store=store,
        record=record,
        workers=workers,
        minutes=minutes if job_id() else 0,
        nodes=nodes,
        arguments=(*sys.argv[1:], *["--gpu-required"] * gpu_required),
        share=share,
        node=node,
    )
    if not on_cpu:
        take_gpus(workers)
    embed_bucket(job, settings)


COMMANDS = (weights, embed)
