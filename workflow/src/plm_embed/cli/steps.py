"""The commands that the rules of the workflow call, in the order of the data's way."""

import json
import sys
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

import click

from plm_embed import startup
from plm_embed.cli.options import (
    DEVICE,
    DTYPE,
    EXISTING,
    ID_COLUMN,
    PATH,
    SEQUENCE_COLUMN,
    STRAND,
    WEIGHTS,
    log_command,
    required,
    several,
)
from plm_embed.errors import StoreError
from plm_embed.fingerprint import (
    MATRICES,
    AlphabetName,
    ComputeDtype,
    LongPolicy,
    LongSequences,
    Pooling,
    StorageDtype,
    Strand,
)
from plm_embed.inference.settings import Settings
from plm_embed.io.terminal import say
from plm_embed.sequences.settings import LEAST_MEMORY_MB, MEMORY_MB, ResiduePolicy, Table


@click.command()
@required("--model", help="Name or alias, as esm2_650m or facebook/esm2_t33_650M_UR50D.")
@click.option(
    "--source",
    type=PATH,
    help="A fair-esm .pt file, or a Hugging Face folder. Without it, the published file is "
    "downloaded.",
)
@click.option(
    "--cache",
    type=PATH,
    show_default="$PLM_EMBED_WEIGHTS, or ~/.cache/plm-embed/weights",
    help="Folder for prepared weights, which makes a folder for each content.",
)
@click.option(
    "--output",
    type=PATH,
    help="Prepare them in this folder itself: model.safetensors, manifest.json, self_test.npz.",
)
@click.option("--record", type=PATH, help="Also write a campaign's note of the weights it uses.")
@click.option(
    "--compute-dtype",
    type=DTYPE,
    default="auto",
    help="Refuse weights for which this dtype is too coarse.",
)
@click.option(
    "--check",
    is_flag=True,
    help="Also load them here, and compare their vectors with those of the publisher's program, "
    "where these are known (ESM-2, ESM C, Ankh).",
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
    from plm_embed.accuracy import check_dtype
    from plm_embed.inference.weights import prepare, prepare_cached
    from plm_embed.io.json_files import write_sealed
    from plm_embed.models.checkpoints import model_of

    log_command()
    if output:
        manifest = prepare(model_of(model, source), source, output)
        manifest = replace(manifest, folder=str(output.absolute()))
    else:
        manifest = prepare_cached(model_of(model, source), source, cache=cache)
    if compute_dtype != "auto":
        check_dtype(compute_dtype, manifest.roundings, manifest.model)
    if record:
        write_sealed(record, manifest)
    else:
        print(manifest.folder)
    if check:
        from plm_embed.inference import check_weights

        for line in check_weights.check(Path(manifest.folder or "")):
            print(line)


@click.command()
@click.argument("inputs", nargs=-1, required=True, type=PATH)
@required("--output", type=PATH, help="Folder for records.parquet, buckets/ and members/.")
@click.option("--buckets", default=4, type=click.IntRange(1, 20_000), help="Their number.")
@ID_COLUMN
@SEQUENCE_COLUMN
@several("--keep", help="Column to carry into the index (tables only; repeatable).")
@click.option(
    "--alphabet",
    default="protein",
    type=click.Choice(get_args(AlphabetName)),
    help="The kind of sequences.",
)
@click.option(
    "--unknown-residues",
    default="skip",
    type=click.Choice(["skip", "substitute"]),
    help="Letters outside the alphabet: skip the record, or put X (in DNA N) in their place.",
)
@click.option(
    "--gaps",
    default="remove",
    type=click.Choice(["remove", "skip"]),
    help="'-' and '.': remove them, or skip the record.",
)
@STRAND
@click.option(
    "--tables",
    default="[]",
    help="Columns of each input where they differ, as the workflow gives them: a JSON list of "
    '{"id": ..., "sequence": ..., "keep": [...]}.',
)
@click.option(
    "--memory-mb",
    default=MEMORY_MB,
    type=click.IntRange(LEAST_MEMORY_MB),
    help="Memory to stay within.",
)
def deduplicate(
    *,
    inputs: tuple[Path, ...],
    output: Path,
    buckets: int,
    id_column: str,
    sequence_column: str,
    keep: tuple[str, ...],
    alphabet: AlphabetName,
    unknown_residues: Literal["skip", "substitute"],
    gaps: Literal["remove", "skip"],
    strand: Strand,
    tables: str,
    memory_mb: int,
) -> None:
    """Read sequence files, and write their unique sequences in buckets.

    records.parquet says what became of every record.

    \b
    Example:
      plm-embed deduplicate proteins.fasta.gz --output results/sequences --buckets 64
    """
    from plm_embed.sequences.deduplicate import deduplicate as run
    from plm_embed.sequences.tables import columns_named

    log_command()
    startup.keep_pandas_out()
    columns = [
        Table(table["id"], table["sequence"], tuple(table["keep"]))
        for table in json.loads(tables or "[]")
    ]
    names = "--id-column, --sequence-column and --keep"
    with nullcontext() if columns else columns_named(f"name yours: {names}"):
        run(
            inputs,
            output,
            buckets=buckets,
            table=Table(id_column, sequence_column, keep),
            policy=ResiduePolicy(
                alphabet=alphabet, unknown=unknown_residues, gaps=gaps, strand=strand
            ),
            memory_mb=memory_mb,
            tables=columns,
        )


COUNT, NUMBER = click.IntRange(1), click.IntRange(0)
SETTINGS: tuple[tuple[str, Any, str], ...] = (
    ("layers", int, "0 to the number of layers, -1: last (repeatable)."),
    ("pooling", click.Choice(get_args(Pooling)), "The vectors to store (repeatable)."),
    ("compute-dtype", DTYPE, "auto: bfloat16 from compute capability 8.0 on, else float32."),
    ("storage-dtype", click.Choice(get_args(StorageDtype)), "Number format on disk."),
    ("long-sequences", click.Choice(get_args(LongPolicy)), "The policy above --max-residues."),
    ("max-residues", NUMBER, "Longest piece for the model; 0: no limit."),
    ("overlap", NUMBER, "Residues that neighboring windows share."),
    ("device", DEVICE, "auto: GPUs where there are any, else the CPU."),
    ("threads", COUNT, "CPU threads, shared by the workers."),
    ("toks-per-batch", NUMBER, "Tokens per batch; 0: the device's default."),
    ("scratch", str, "Node-local folder; auto: find one; '': write beside the store."),
    ("flush-minutes", click.FloatRange(0, min_open=True), "A kill loses at most this much work."),
    ("per-residue-limit-gb", click.FloatRange(0), "Refuse a bucket with more per-residue output."),
)
Command = TypeVar("Command", bound=Callable[..., Any])


def settings(command: Command) -> Command:
    """Add an option for each of the SETTINGS, with its default."""
    long = LongSequences()
    defaults = vars(Settings()) | vars(long) | {"long_sequences": long.policy}
    for name, kind, text in reversed(SETTINGS):
        default = defaults[name.replace("-", "_")]
        several_times = isinstance(default, tuple)
        option = click.option(
            f"--{name}", default=default, multiple=several_times, type=kind, help=text
        )
        command = option(command)
    return STRAND(command)


class Workers(click.ParamType[int]):
    """A number of workers; `all` is 0: one per visible GPU."""

    name = "workers"

    def convert(
        self, value: Any, param: click.Parameter | None, context: click.Context | None
    ) -> int:
        number: int = 0 if value == "all" else NUMBER.convert(value, param, context)
        return number


@click.command()
@click.argument("bucket", type=PATH)
@WEIGHTS(required=True)
@required("--store", type=PATH, help="Store of vectors; shared by all buckets.")
@required("--record", type=PATH, help="Completion record (JSON), written at the end.")
@settings
@click.option(
    "--nodes", default=1, type=COUNT, help="Nodes of the PBS job, with --workers on each."
)
@click.option(
    "--workers",
    "--gpus",
    default=1,
    type=Workers(),
    metavar="N|all",
    help="Processes, one per GPU; all: one for each visible GPU.",
)
@click.option(
    "--gpu-required",
    is_flag=True,
    help="Fail without a GPU unless --device is cpu. The workflow sets it in a scheduler's jobs.",
)
@click.option(
    "--minutes",
    default=0.0,
    type=click.FloatRange(0),
    help="Walltime of the SLURM or PBS job; 0: none.",
)
@click.option("--share", type=PATH, hidden=True, help="File of the first node for the others.")
@click.option("--node", type=int, hidden=True, help="The number of this node.")
def embed(
    *,
    bucket: Path,
    weights: Path,
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
    **options: Any,
) -> None:
    """Embed what the store lacks of a bucket.

    The record is written when the store lacks nothing more. Until then the exit status is 1, 75
    when the fault is this node's, or 78 when settings or the installation are wrong. The same
    command again does only the rest.

    \b
    Example:
      plm-embed embed results/sequences/buckets/0000.parquet \\
        --weights results/esm2_t33_650M_UR50D/weights.json \\
        --store results/esm2_t33_650M_UR50D/store \\
        --record results/esm2_t33_650M_UR50D/embedded/0000.json --gpus all
    """
    from plm_embed.inference.weights import prepared_folder
    from plm_embed.jobs.gpus import take_gpus, visible_gpus
    from plm_embed.jobs.heartbeat import job_id
    from plm_embed.jobs.job import Job, embed_bucket
    from plm_embed.sequences.summary import check_present

    log_command()
    check_present(bucket)
    folder = prepared_folder(weights)
    long = LongSequences(long_sequences, max_residues, overlap)
    chosen = Settings(long_sequences=long, **options)
    if MATRICES.intersection(chosen.pooling):
        from plm_embed.planning.costs import check_per_residue

        check_per_residue(bucket, folder, chosen)
    on_cpu = chosen.device == "cpu"
    if gpu_required and not on_cpu:
        chosen = replace(chosen, device="cuda")
    workers = workers or (1 if on_cpu else max(1, len(visible_gpus())))
    job = Job(
        bucket=bucket,
        weights=folder,
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
    embed_bucket(job, chosen)


def places(command: Command, required: bool = True) -> Command:
    """Add the options that name the files of a campaign."""
    for name, kind, text in (
        ("records", PATH, "records.parquet: the outcome of every input record."),
        ("index", PATH, "Parquet index of the master."),
        ("master", PATH, "Master HDF5 file."),
        ("store", PATH, "Store of vectors."),
        ("embedded", PATH, "Folder with the completion records."),
        ("sequences", EXISTING, "Folder made by `plm-embed deduplicate`."),
    ):
        command = click.option(f"--{name}", required=required, type=kind, help=text)(command)
    return command


@click.command()
@places
def gather(
    *, sequences: Path, embedded: Path, store: Path, master: Path, index: Path, records: Path
) -> None:
    """Merge the parts of the store into the master file, in key order, and write its index.

    \b
    Example (with M for results/esm2_t33_650M_UR50D):
      plm-embed gather --sequences results/sequences --embedded M/embedded --store M/store \\
        --master M/master_esm2_embeddings.h5 --index M/master_esm2_embeddings.parquet \\
        --records M/records.parquet
    """
    from plm_embed.master.gather import gather as run
    from plm_embed.master.gather import workflow_commit

    log_command()
    startup.keep_pandas_out()
    commit = {"workflow_commit": workflow_commit()}
    run(sequences, embedded, store, master, index, records, commit)


@click.command()
@click.argument("results", required=False, type=EXISTING)
@partial(places, required=False)
@WEIGHTS()
@click.option(
    "--spot-checks",
    type=click.IntRange(0),
    show_default="as in the run's config.yaml, else 16",
    help="Random rows to compute again by the reference.",
)
@click.option("--report", type=PATH, help="validation.json: every check and its result.")
@click.option(
    "--checksums", type=PATH, help="SHA-256 list of the results, written when all checks pass."
)
def validate(*, results: Path | None, spot_checks: int | None, **options: Path | None) -> None:
    """Prove that the master is complete and right, or say what is wrong.

    RESULTS is a results folder with one model, or the folder of a model in it. It replaces all
    options, by what the run's own config.yaml says.

    \b
    Examples:
      plm-embed validate results
      plm-embed validate results/esm2_t33_650M_UR50D --spot-checks 100
    """
    from plm_embed.inference.weights import prepared_folder
    from plm_embed.master.validate import validate as run

    log_command()
    startup.keep_pandas_out()
    files = {name: path for name, path in options.items() if path}
    if results:
        defaults, usual = _files_of(results)
        files = defaults | files
        spot_checks = usual if spot_checks is None else spot_checks
    for name in options:
        if name not in files:
            raise click.UsageError(f"give a results folder, or --{name}")
        if results and name not in ("report", "checksums") and not files[name].exists():
            raise click.UsageError(f"{files[name]}: not found; name it with --{name}")
    files["weights"] = prepared_folder(files["weights"])
    checks = 16 if spot_checks is None else spot_checks
    validation = run(**files, spot_checks=checks, reference=None)
    if validation.problems:
        # a run shows two lines of this, so the remedy stands in the first
        words = "; ".join(filter(None, [f"{files['master']} is not valid", validation.remedy]))
        lines = [f"{words} ({files['report']} has the details):", *validation.problems]
        raise StoreError("\n  ".join(lines), path=files["master"])
    say(f"valid: {len(validation.checks)} checks, {validation.counts.vectors or 0:,} vectors")


def _files_of(results: Path) -> tuple[dict[str, Path], int]:
    """Return where the workflow keeps the files that validate reads and writes, and how many rows
    it computes again; paths in the settings of a run are relative to the folder in which it ran.
    """
    from plm_embed.master.validation_record import PROOF, VALIDATION
    from plm_embed.models.weights import RECORD
    from plm_embed.reading.find import find_embeddings
    from plm_embed.reporting.outputs import CONFIG
    from plm_embed.workflow.kept_config import read_kept

    master = find_embeddings(results).absolute()
    folder = master.parent
    (settings, began), store = read_kept(folder / CONFIG), folder / "store"
    files = {
        "sequences": folder.parent / "sequences",
        "embedded": folder / "embedded",
        "store": store if store.is_dir() else began / (settings.get("store") or store),
        "master": master,
        "index": master.with_suffix(".parquet"),
        "records": folder / "records.parquet",
        "weights": folder / RECORD,
        "report": folder / VALIDATION,
        "checksums": folder / PROOF,
    }
    return files, settings.get("validate", {}).get("spot_checks", 16)
