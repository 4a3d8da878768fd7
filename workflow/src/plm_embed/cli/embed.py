"""The commands that compute: weights and embed."""

import sys
from pathlib import Path

import click

from plm_embed.cli.options import PATH, WEIGHTS, Step, Workers
from plm_embed.cli.setting_options import settings_of
from plm_embed.fingerprint import MATRICES
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
@click.argument("bucket", type=PATH)
@WEIGHTS(required=True)
@click.option("--store", required=True, type=PATH, help="Store of vectors; shared by all buckets.")
@click.option(
    "--record", required=True, type=PATH, help="Completion record (JSON), written at the end."
)
@settings_of("settings", Settings, before={"threads": (NODES, WORKERS)})
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
    settings: Settings,
    nodes: int,
    workers: int,
    minutes: float,
    share: Path | None,
    node: int | None,
) -> None:
    """Embed what the store lacks of a bucket.

    The record is written when the store lacks nothing more. Until then the exit status is 1, or 75
    when the fault is this node's. A repetition does only the rest.

    \b
    Example:
      plm-embed embed results/sequences/buckets/0000.parquet \\
        --weights resources/weights/esm2_t33_650M_UR50D \\
        --store results/esm2_t33_650M_UR50D/store \\
        --record results/esm2_t33_650M_UR50D/embedded/0000.json --gpus all
"""
    from plm_embed.jobs.gpus import visible_gpus
    from plm_embed.jobs.job import Job, embed_bucket
    from plm_embed.jobs.nodes import node_number
    from plm_embed.models.manifest import check_record
    from plm_embed.sequences.summary import check_present
    from plm_embed.sites.scheduler import job_id

    check_present(bucket)
    check_record(weights_folder, record.parent.parent)
    if MATRICES.intersection(settings.pooling):
        from plm_embed.planning.sizes import announce

        announce(bucket, weights_folder, settings)
    workers = workers or (1 if settings.device == "cpu" else max(1, len(visible_gpus())))
    job = Job(
        bucket=bucket,
        weights=weights_folder,
        store=store,
        record=record,
        workers=workers,
        minutes=minutes if job_id() else 0,
        nodes=nodes,
        arguments=tuple(sys.argv[1:]),
        node=node_number(node) if share else 0,
        share=share,
    )
    embed_bucket(job, settings)


COMMANDS = (weights, embed)
