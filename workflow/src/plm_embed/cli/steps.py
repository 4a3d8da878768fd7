"""The commands that the rules of the workflow call, in the order of the data's way.

`snakemake --printshellcmds` shows whole calls.
"""

import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from click import BadParameter, Context, IntRange, Parameter, UsageError, argument, command, option

from plm_embed.cli.options import (
    AMOUNT,
    COUNT,
    DEVICE,
    EXISTING,
    NUMBER,
    PATH,
    WEIGHTS,
    Amount,
    json_block,
    log_command,
    required,
)
from plm_embed.errors import InputError, StoreError
from plm_embed.inference.settings import RECIPE, Settings
from plm_embed.io.terminal import say
from plm_embed.sequences.settings import LEAST_MEMORY_MB, MEMORY_MB, Table
from plm_embed.wording import count

JSON = partial(option, metavar="JSON", default="{}")
VECTORS = JSON(
    "--settings",
    "vectors",
    callback=partial(json_block, Settings, leave_out=vars(Settings()).keys() - RECIPE),
    help="JSON of the settings that decide a vector: keys of `embedding`, and `strand`.",
)


@command()
@required("--model", help="Name or alias, such as esm2_650m or facebook/esm2_t33_650M_UR50D.")
@option("--source", type=PATH, help="A fair-esm .pt, or a Hugging Face folder; else downloaded.")
@option(
    "--cache",
    type=PATH,
    show_default="$PLM_EMBED_WEIGHTS, or ~/.cache/plm-embed/weights",
    help="Folder for prepared weights.",
)
@option("--output", type=PATH, help="Prepare them in this folder itself.")
@option("--record", type=PATH, help="Also write a campaign's note of the weights it uses.")
@VECTORS
@option("--check", is_flag=True, help="Also load them, and compare vectors with known ones.")
def weights(
    *,
    model: str,
    source: Path | None,
    cache: Path | None,
    output: Path | None,
    record: Path | None,
    vectors: Settings,
    check: bool,
) -> None:
    """Download or adopt the weights of a model, and verify them.

    They are converted, and the golden vectors of the self-test are computed beside them. Weights
    that cannot serve the --settings are refused.

    \b
    Example:
      plm-embed weights --model esm2_650m --source esm2_t33_650M_UR50D.pt --check
    """
    from plm_embed.accuracy import check_dtype
    from plm_embed.inference.settings import resolved
    from plm_embed.inference.weights import prepare
    from plm_embed.io.json_files import write_sealed
    from plm_embed.models.checkpoints import model_of

    log_command()
    entry = model_of(model, source)
    resolved(vectors, entry)
    manifest = prepare(entry, source, output, cache=cache, scores=bool(vectors.scores))
    if vectors.compute_dtype != "auto":
        check_dtype(vectors.compute_dtype, manifest.roundings, manifest.model)
    if record:
        write_sealed(record, manifest)
    else:
        print(manifest.folder)
    if check:
        from plm_embed.inference import check_weights

        for line in check_weights.check(manifest.path):
            print(line)


def _policy(context: Context, parameter: Parameter, value: str) -> Any:
    from plm_embed.sequences.residues import ResiduePolicy  # loads Arrow

    return json_block(ResiduePolicy, context, parameter, value)


@command()
@argument("inputs", nargs=-1, required=True, type=PATH)
@required("--output", type=PATH, help="Folder for records.parquet, buckets/ and members/.")
@option("--buckets", default=4, type=IntRange(1, 20_000), help="Their number.")
@JSON(
    "--residues",
    "policy",
    callback=_policy,
    help="JSON of `residues` of the configuration, and the `alphabet`: protein, dna ...",
)
@JSON(
    "--tables",
    callback=partial(json_block, list[Table]),
    default="[]",
    help='JSON of the columns of each input: [{"id": ..., "sequence": ..., "keep": [...]}, ...].',
)
@option("--memory-mb", default=MEMORY_MB, type=IntRange(LEAST_MEMORY_MB), help="Memory limit.")
def deduplicate(
    *, inputs: tuple[Path, ...], output: Path, tables: list[Table], **options: Any
) -> None:
    """Read sequence files, and write their unique sequences in buckets.

    records.parquet says what became of every record.
    """
    from plm_embed.sequences.deduplicate import deduplicate as run

    log_command()
    if len(tables) not in (0, len(inputs)):
        raise BadParameter("must have an entry for each input", param_hint="--tables")
    for path in filter(Path.exists, inputs):  # Snakemake refuses results older than an input
        ahead = path.stat().st_mtime - time.time()
        if ahead > 60:
            words = f"{path}: its time lies {ahead:,.0f} s in the future"
            raise InputError(words, path=path, remedy="`touch` it, or set the clock")
        time.sleep(max(ahead, 0))
    run(inputs, output, table=Table(), tables=tables, **options)


@command()
@argument("bucket", type=PATH)
@WEIGHTS
@required("--store", type=PATH, help="Store of vectors; shared by all buckets.")
@required("--record", type=PATH, help="Completion record (JSON), written at the end.")
@VECTORS
@DEVICE
@option("--threads", default=1, type=COUNT, help="CPU threads, shared by the workers.")
@option(
    "--toks-per-batch", default=0, type=NUMBER, help="Tokens per batch; 0: the device's default."
)
@option(
    "--scratch",
    default="auto",
    help="Node-local folder; auto: find one; '': write beside the store.",
)
@option(
    "--flush-minutes",
    default=5.0,
    type=Amount(0, min_open=True),
    help="A kill loses at most this much work.",
)
@option(
    "--per-residue-limit-gb",
    default=100.0,
    type=AMOUNT,
    help="Refuse a bucket with more per-residue output.",
)
@option("--nodes", default=1, type=COUNT, help="Nodes of the PBS job, with --workers on each.")
@option(
    "--workers", default=1, type=NUMBER, help="Processes, one per GPU; 0: for each visible GPU."
)
@option("--gpu-required", is_flag=True, help="Fail without a GPU unless --device is cpu.")
@option("--minutes", default=0.0, type=AMOUNT, help="Walltime of the job; 0: none.")
@option("--share", type=PATH, hidden=True, help="File of the first node for the others.")
@option("--node", type=int, hidden=True, help="The number of this node.")
def embed(
    *,
    bucket: Path,
    weights: Path,
    vectors: Settings,
    workers: int,
    gpu_required: bool,
    minutes: float,
    **options: Any,
) -> None:
    """Embed what the store lacks of a bucket.

    The record is written when the store lacks nothing more. Until then the exit status is 1, or 75
    when the fault is this node's. The same command again does only the rest.
    """
    from plm_embed.inference.weights import prepared
    from plm_embed.jobs.gpus import take_gpus, visible_gpus
    from plm_embed.jobs.heartbeat import job_id
    from plm_embed.jobs.job import Job, embed_bucket
    from plm_embed.jobs.per_residue import check_per_residue
    from plm_embed.sequences.summary import read_again

    log_command()
    if not bucket.is_file():  # before workers start
        remedy = read_again(bucket.parent.parent)
        raise StoreError(f"{bucket}: there is no such file", path=bucket, remedy=remedy)
    parts = {name: options.pop(name) for name in ("store", "record", "nodes", "share", "node")}
    chosen = replace(vectors, **options)
    folder = prepared(weights, scores=bool(chosen.scores)).path
    check_per_residue(bucket, folder, chosen)
    on_cpu = chosen.device == "cpu"
    if gpu_required and not on_cpu:
        chosen = replace(chosen, device="cuda")
    workers = workers or (1 if on_cpu else max(1, len(visible_gpus())))
    if not on_cpu:
        take_gpus(workers)
    arguments = tuple(sys.argv[1:])
    minutes = minutes if job_id() else 0
    job = Job(bucket, folder, workers=workers, minutes=minutes, arguments=arguments, **parts)
    embed_bucket(job, chosen)


@command()
@required("--sequences", type=EXISTING, help="Folder made by `plm-embed deduplicate`.")
@required("--embedded", type=PATH, help="Folder with the completion records.")
@required("--store", type=PATH, help="Store of vectors.")
@required("--master", type=PATH, help="Master HDF5 file.")
@required("--index", type=PATH, help="Parquet index of the master.")
@required("--records", type=PATH, help="records.parquet: the outcome of every input record.")
def gather(**files: Path) -> None:
    """Merge the parts of the store into the master file, in key order, and write its index."""
    from plm_embed.master.gather import gather as run
    from plm_embed.master.gather import workflow_commit

    log_command()
    if len({files[name].absolute() for name in ("master", "index", "records")}) < 3:
        raise UsageError("--master, --index and --records must be three files")
    run(**files, provenance={"workflow_commit": workflow_commit()})


@command()
@argument("results", type=EXISTING)
@option("--store", type=PATH, show_default="as in the run", help="Store of vectors.")
@option("--spot-checks", default=16, type=NUMBER, help="Random rows to recompute.")
def validate(*, results: Path, store: Path | None, spot_checks: int) -> None:
    """Prove that the master is complete and right, or say what is wrong.

    RESULTS is the folder of a model, or a results folder with one model. validation.json gets every
    check and its result, and checksums.sha256 is written when all checks pass.

    \b
    Examples:
      plm-embed validate results
      plm-embed validate results/esm2_t33_650M_UR50D --spot-checks 100
    """
    from plm_embed.inference.weights import prepared
    from plm_embed.jobs.completion_record import store_of
    from plm_embed.master.validate import validate as run
    from plm_embed.models.weights import RECORD
    from plm_embed.reading.open import find_embeddings

    log_command()
    master = find_embeddings(results).absolute()
    weights = prepared(master.with_name(RECORD)).path
    validation = run(master, store or store_of(master.parent), weights, spot_checks)
    if validation.problems:
        # a run shows two lines of this, so the remedy stands in the first
        words = "; ".join(filter(None, [f"{master} is not valid", validation.remedy]))
        raise StoreError("\n  ".join([words, *validation.problems]), path=master)
    vectors = count(validation.counts.vectors or 0, "vector")
    say(f"valid: {count(len(validation.checks), 'check')}, {vectors}")
