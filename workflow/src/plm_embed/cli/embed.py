"""The commands that compute: weights and embed."""

import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Literal, get_args

import click

from plm_embed.accuracy import check_dtype
from plm_embed.cli.options import PATH, WEIGHTS, Step, Workers
from plm_embed.cli.setting_options import settings_of
from plm_embed.fingerprint import MATRICES, ComputeDtype
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
    output: Path,
    record: Path | None,
    compute_dtype: Literal["auto"] | ComputeDtype,
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

    manifest = prepare(find_model(model), source, output)
    if compute_dtype != "auto":
        check_dtype(compute_dtype, manifest.roundings, manifest.model)
    if record:
        write_manifest(record, manifest)
    if check:
        from plm_embed.inference import check_weights

        for line in check_weights.check(output):
            print(line)


NODES = click.option(
    "--nodes",
    default=1,
    type=click.IntRange(1),
    help="Nodes of the PBS job; the workers are per node.",
)
WORKERS = click.option(
    "--workers",
    "--gpus",
    default=1,
    type=Workers(),
    metavar="N|all",
    help="Processes, one per GPU; all: of those visible.",
)


@click.command(cls=Step)
@click.argument("buckets", nargs=-1, required=True, type=PATH)
@WEIGHTS(required=True)
@click.option("--store", required=True, type=PATH, help="Store of vectors; shared by all buckets.")
@click.option(
    "--embedded", required=True, type=PATH, help="Folder for the buckets' completion records."
)
@click.option(
    "--output", required=True, type=PATH, help="Written when all these buckets are complete (JSON)."
)
@settings_of("settings", Settings, before={"threads": (NODES, WORKERS)})
@click.option(
    "--gpu-required",
    is_flag=True,
    envvar="PLM_EMBED_GPU_REQUIRED",
    help="Fail without a GPU unless --device is cpu; the workflow sets this in jobs that a "
    "scheduler starts.",
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
    settings: Settings,
    nodes: int,
    workers: int,
    gpu_required: bool,
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
    from plm_embed.jobs.gpus import Meter, taken, visible_gpus
    from plm_embed.jobs.nodes import on_all_nodes
    from plm_embed.jobs.submission import embed_buckets
    from plm_embed.models.manifest import check_record
    from plm_embed.sequences.summary import check_present
    from plm_embed.sites.scheduler import job_id

    if nodes > 1:
        # of a repeated option the last counts
        required = ["--gpu-required"] if gpu_required else []
        on_all_nodes(nodes, [*sys.argv[1:], "--nodes", "1", *required], output)
        return
    for bucket in buckets:
        check_present(bucket)
    check_record(weights_folder, embedded.parent)
    if MATRICES.intersection(settings.pooling):
        from plm_embed.planning.sizes import announce

        announce(buckets[0], weights_folder, settings)
    on_cpu = settings.device == "cpu"
    if gpu_required and not on_cpu:
        settings = replace(settings, device="cuda")
    workers = workers or (1 if on_cpu else max(1, len(visible_gpus())))
    plan = Plan(buckets, weights_folder, store, embedded, workers, minutes if job_id() else 0)
    names = [bucket.stem for bucket in buckets]
    with nullcontext() if on_cpu else taken(workers):
        energy = None if on_cpu else Meter(workers)
        with noted(embedded, output.stem, names, store, workers, energy=energy):
            embed_buckets(plan, settings, output)


COMMANDS = (weights, embed)
