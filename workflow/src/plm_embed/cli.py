"""The command line: one sub-command per rule of the workflow."""

import errno
import io
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

import click

from plm_embed import __version__, cli_export, cli_sequences, cli_store, cli_views, lean
from plm_embed.cli_parts import EXISTING, FOLDER, Step
from plm_embed.errors import PassingError, UserError, no_space
from plm_embed.fingerprint import ComputeDtype, LongPolicy, LongSequences, Pooling, StorageDtype
from plm_embed.terminal import log_to_stderr, printable, say

Command = TypeVar("Command", bound=Callable[..., Any])
OF_PATHS = (errno.EACCES, errno.EPERM, errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG)
"""What the system says when a path that a user named is of no use."""
LEAN = ("deduplicate", "scan", "split", "gather")


def main() -> None:
    """Entry point. Errors that a user can mend end with one or two lines and exit code 1; bugs keep their traceback.

    A log that says `error:` is not tried again by the workflow (see `retries`); `unfinished:` is.
    """
    log_to_stderr()
    try:
        group.main(prog_name="plm-embed", standalone_mode=False)
    except PassingError as error:
        sys.exit(printable(f"plm-embed: unfinished: {error}"))
    except UserError as error:
        sys.exit(printable(f"plm-embed: error: {error}"))
    except click.UsageError as error:
        words = io.StringIO()
        error.show(words)
        sys.exit(printable(words.getvalue().rstrip()))
    except click.Abort:
        sys.exit("plm-embed: stopped")
    except Exception as error:
        if isinstance(error, OSError) and error.errno in OF_PATHS:
            said = f"{error.filename}: {error.strerror}" if error.filename else error
            sys.exit(printable(f"plm-embed: error: {said}"))
        full = no_space(error)
        if not full:
            raise
        print(printable(f"plm-embed: error: {full}"), file=sys.stderr, flush=True)
        os._exit(1)  # at an orderly exit HDF5 would try to write again, and crash


@click.group(name="plm-embed", context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.version_option(__version__)
@click.pass_context
def group(context: click.Context) -> None:
    """Protein sequences to ESM-2 embeddings. Each step of the workflow also runs by hand.

    \b
    Examples:
      plm-embed plan --configfile my_config.yaml
      plm-embed watch results
      plm-embed COMMAND --help
    """
    if context.invoked_subcommand in LEAN:
        lean.set_up(huge_pages=context.invoked_subcommand == "gather")


def choice(literal: Any) -> click.Choice[str]:
    return click.Choice(list(get_args(literal)))


class Workers(click.ParamType[int]):
    """A number of workers; `all` is 0, which stands for one per visible GPU."""

    name = "workers"

    def convert(self, value: Any, param: click.Parameter | None, context: click.Context | None) -> int:
        number: int = 0 if value == "all" else click.IntRange(0).convert(value, param, context)
        return number


@group.command(cls=Step)
@click.option(
    "--model",
    required=True,
    help="Name or alias, such as esm2_t33_650M_UR50D, facebook/esm2_t33_650M_UR50D, esm2_650m.",
)
@click.option(
    "--source",
    type=FOLDER,
    help="A fair-esm .pt file or a Hugging Face folder; without it the published file is downloaded.",
)
@click.option(
    "--output", required=True, type=FOLDER, help="Folder for model.safetensors, manifest.json and self_test.npz."
)
@click.option("--record", type=FOLDER, help="Also write the manifest to this file: a campaign's note of what it uses.")
def weights(model: str, source: Path | None, output: Path, record: Path | None) -> None:
    """Adopt or download model weights, verify and convert them, and compute the self-test's golden vectors.

    \b
    Example:
      plm-embed weights --model esm2_650m --source esm2_t33_650M_UR50D.pt --output resources/weights/esm2_t33_650M_UR50D
    """
    from plm_embed.manifest import write_manifest
    from plm_embed.models import find_model
    from plm_embed.preparation import prepare

    manifest = prepare(find_model(model), source, output)
    if record:
        write_manifest(record, manifest)


@group.command(cls=Step)
@click.argument("buckets", nargs=-1, required=True, type=EXISTING)
@click.option("--weights", "weights_folder", required=True, type=EXISTING, help="Folder made by `plm-embed weights`.")
@click.option("--store", required=True, type=FOLDER, help="Store of vectors; shared by all buckets.")
@click.option("--records", required=True, type=FOLDER, help="Folder for the buckets' completion records.")
@click.option("--output", required=True, type=FOLDER, help="Written when all these buckets are complete (JSON).")
@click.option("--reuse", multiple=True, type=EXISTING, help="Earlier master (.h5) or store (repeatable).")
@click.option(
    "--layers", multiple=True, type=int, default=(-1,), help="0 to the number of layers, -1: last (repeatable)."
)
@click.option("--pooling", multiple=True, type=choice(Pooling), default=("mean",), help="What is stored (repeatable).")
@click.option(
    "--compute-dtype",
    default="auto",
    type=click.Choice(["auto", *get_args(ComputeDtype)]),
    help="auto: bfloat16 from compute capability 8.0 on, else float32.",
)
@click.option("--storage-dtype", default="float16", type=choice(StorageDtype), help="Number format on disk.")
@click.option("--long-sequences", default="whole", type=choice(LongPolicy), help="What happens above --max-residues.")
@click.option("--max-residues", default=0, type=click.IntRange(0), help="Longest piece for the model; 0: no limit.")
@click.option("--overlap", default=0, type=click.IntRange(0), help="Residues that neighbouring windows share.")
@click.option("--device", default="auto", type=click.Choice(["auto", "cpu", "cuda"]))
@click.option("--nodes", default=1, type=click.IntRange(1), help="Nodes of the PBS job; the workers are per node.")
@click.option(
    "--workers",
    "--gpus",
    default=1,
    type=Workers(),
    metavar="N|all",
    help="Processes, one per GPU; all: of those visible.",
)
@click.option("--threads", default=1, type=click.IntRange(1), help="CPU threads, shared by the workers.")
@click.option("--toks-per-batch", default=0, type=click.IntRange(0), help="Tokens per batch; 0: the device's default.")
@click.option("--scratch", default="auto", help="Node-local folder; auto: find one; '': write beside the store.")
@click.option("--flush-minutes", default=5.0, type=click.FloatRange(0), help="A kill loses at most this much work.")
@click.option("--per-residue-limit-gb", default=100.0, type=click.FloatRange(0), help="More per-residue output: stop.")
@click.option("--minutes", default=0.0, type=click.FloatRange(0), help="Walltime of the SLURM or PBS job; 0: none.")
def embed(
    *,
    buckets: tuple[Path, ...],
    weights_folder: Path,
    store: Path,
    records: Path,
    output: Path,
    reuse: tuple[Path, ...],
    layers: tuple[int, ...],
    pooling: tuple[Pooling, ...],
    compute_dtype: ComputeDtype | Literal["auto"],
    storage_dtype: StorageDtype,
    long_sequences: LongPolicy,
    max_residues: int,
    overlap: int,
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
      plm-embed embed results/sequences/buckets/*.parquet --weights resources/weights/esm2_t33_650M_UR50D \\
        --store results/esm2_t33_650M_UR50D/store --records results/esm2_t33_650M_UR50D/embedded \\
        --output results/esm2_t33_650M_UR50D/submissions/0000.json --gpus all
    """
    from plm_embed.attempts import noted
    from plm_embed.energy import Meter
    from plm_embed.gpus import visible_gpus
    from plm_embed.launch import on_all_nodes
    from plm_embed.per_residue import announce
    from plm_embed.settings import Settings
    from plm_embed.submission import Plan, embed_buckets

    if nodes > 1:
        on_all_nodes(nodes, [*sys.argv[1:], "--nodes", "1"], output)  # of a repeated option the last counts
        return
    settings = Settings(
        layers=layers,
        pooling=pooling,
        compute_dtype=compute_dtype,
        storage_dtype=storage_dtype,
        long_sequences=LongSequences(long_sequences, max_residues, overlap),
        device=device,
        toks_per_batch=toks_per_batch,
        scratch=scratch,
        flush_minutes=flush_minutes,
        threads=threads,
        reuse=reuse,
    )
    announce(buckets[0], weights_folder, settings, per_residue_limit_gb)
    workers = workers or (1 if device == "cpu" else max(1, len(visible_gpus())))
    scheduled = "SLURM_JOB_ID" in os.environ or "PBS_JOBID" in os.environ
    plan = Plan(buckets, weights_folder, store, records, workers, minutes if scheduled else 0)
    energy = None if device == "cpu" else Meter(workers)
    with noted(records, output.stem, [bucket.stem for bucket in buckets], workers, energy):
        embed_buckets(plan, settings, output)


def campaign_options(command: Command) -> Command:
    """The places of a campaign that both gather and validate need."""
    for option in (
        click.option(
            "--records", required=True, type=FOLDER, help="records.parquet: what became of every input record."
        ),
        click.option("--index", required=True, type=FOLDER, help="Parquet index of the master."),
        click.option("--master", required=True, type=FOLDER, help="Master HDF5 file."),
        click.option("--store", required=True, type=EXISTING, help="Store of vectors."),
        click.option("--embedded", required=True, type=EXISTING, help="Folder with the completion records."),
        click.option("--sequences", required=True, type=EXISTING, help="Folder made by `plm-embed deduplicate`."),
    ):
        command = option(command)
    return command


@group.command(cls=Step)
@campaign_options
@click.option("--output", type=FOLDER, help="gathered.json: a record that the three files were written.")
@click.option("--workflow-commit", default="", help="Commit of the workflow, for the master's provenance.")
def gather(
    *, sequences: Path, embedded: Path, store: Path, master: Path, index: Path, records: Path, output: Path | None,
    workflow_commit: str,
) -> None:  # fmt: skip
    """Merge the parts of the store into the master file, in key order, and write its index.

    \b
    Example (with M for results/esm2_t33_650M_UR50D):
      plm-embed gather --sequences results/sequences --embedded M/embedded --store M/store \\
        --master M/master_esm2_embeddings.h5 --index M/master_esm2_embeddings.parquet --records results/records.parquet
    """
    from plm_embed.gather import gather as run
    from plm_embed.gathered import write_record

    run(sequences, embedded, store, master, index, records, {"workflow_commit": workflow_commit})
    if output is not None:
        write_record(output, (master, index, records))


@group.command(cls=Step)
@campaign_options
@click.option("--weights", "weights_folder", required=True, type=EXISTING, help="Folder made by `plm-embed weights`.")
@click.option(
    "--spot-checks", default=16, type=click.IntRange(0), help="Random rows to embed again by the reference path."
)
@click.option("--report", required=True, type=FOLDER, help="validation.json: every check and its result.")
@click.option(
    "--checksums", required=True, type=FOLDER, help="SHA-256 list of the results, written only when all is well."
)
def validate(
    *,
    sequences: Path,
    embedded: Path,
    store: Path,
    master: Path,
    index: Path,
    records: Path,
    weights_folder: Path,
    spot_checks: int,
    report: Path,
    checksums: Path,
) -> None:
    """Prove that the master is complete and right, or say what is wrong.

    \b
    Example (with M for results/esm2_t33_650M_UR50D):
      plm-embed validate --sequences results/sequences --embedded M/embedded --store M/store \\
        --master M/master_esm2_embeddings.h5 --index M/master_esm2_embeddings.parquet \\
        --records results/records.parquet --weights resources/weights/esm2_t33_650M_UR50D \\
        --report validation.json --checksums M/checksums.sha256
    """
    from plm_embed.validate import validate as run

    problems = run(
        sequences=sequences,
        embedded=embedded,
        store=store,
        master=master,
        index=index,
        records=records,
        weights=weights_folder,
        spot_checks=spot_checks,
        report=report,
        checksums=checksums,
    )
    if problems:
        if not any("`" in problem for problem in problems):  # none says what to do: the fault is in what gather wrote
            problems += ["`snakemake --forcerun gather` writes these files again from the store"]
        raise UserError("\n  ".join([f"{master} is not valid ({report} has the details):", *problems]))


@group.command()
@click.argument("results", type=EXISTING, default=Path("results"))
def summary(results: Path) -> None:
    """Say what a campaign has produced and how to open it.

    \b
    Example:
      plm-embed summary results
    """
    from plm_embed.summary import summarise

    say(summarise(results))


for command in (*cli_sequences.COMMANDS, *cli_views.COMMANDS, *cli_store.COMMANDS, *cli_export.COMMANDS):
    group.add_command(command)
