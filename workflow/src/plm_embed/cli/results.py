"""Commands about results: gather and prove them, import them, tidy their store."""

from functools import partial
from pathlib import Path
from typing import Any, get_args

import click
from click.core import ParameterSource

from plm_embed.cli.options import (
    EXISTING,
    PATH,
    WEIGHTS,
    ColumnarStep,
    campaign_options,
)
from plm_embed.cli.setting_options import settings_of
from plm_embed.errors import StoreError
from plm_embed.fingerprint import ComputeDtype, Fingerprint, StorageDtype
from plm_embed.inference.settings import MEANING, Proof, Settings
from plm_embed.io.terminal import say
from plm_embed.sequences.tables import Table
from plm_embed.setting import from_config


@click.command()
@click.argument("store", type=EXISTING)
@click.option(
    "--part-mb", default=1000, type=click.IntRange(1), help="Size that merged parts should have."
)
@click.option(
    "--keep-hours",
    default=24.0,
    type=click.FloatRange(0),
    help="How long replaced parts stay for readers.",
)
def compact(*, store: Path, part_mb: int, keep_hours: float) -> None:
    """Merge the small parts of a store into large ones. Safe while others read it and jobs publish.

    Replaced parts stay for --keep-hours, so that whoever reads them can end; the first run after
    that removes them. Until then the store takes twice the space of what was merged. Nothing else
    has to be done: completion records stay true.

    \b
    Example:
      plm-embed compact results/esm2_t33_650M_UR50D/store
    """
    from plm_embed.store.compact import compact as run

    done = run(store, 1_000_000 * part_mb, keep_hours)
    say(
        f"{done.merged:,} parts merged into {done.published:,}; {done.removed:,} replaced parts "
        "removed "
        f"({done.freed / 1e6:,.1f} MB)"
    )


@click.command("import")
@click.argument("master", type=EXISTING)
@click.option(
    "--index",
    required=True,
    type=EXISTING,
    help="Parquet index of the master: row, and ids or cache_key.",
)
@click.option("--index-id", default="id", help="Column of the index with the ids of the records.")
@click.option(
    "--sequences",
    required=True,
    multiple=True,
    type=EXISTING,
    help="The sequence files (repeatable).",
)
@settings_of("table", Table, without=["keep"])
@WEIGHTS(required=True)
@click.option("--store", required=True, type=PATH, help="Store to publish the vectors in.")
@click.option("--layer", default=-1, help="Layer of the vectors; -1: last.")
@click.option(
    "--compute-dtype",
    default="float32",
    type=click.Choice(["float32", "bfloat16", "float16"]),
    help="What the vectors were computed in; the campaign that "
    "reuses them has to ask for the same.",
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
    table: Table,
    weights_folder: Path,
    store: Path,
    layer: int,
    compute_dtype: ComputeDtype,
    storage_dtype: StorageDtype,
    sample: int,
) -> None:
    """Adopt the vectors of another program as a store, after a check of them.

    MASTER is an HDF5 file with the datasets emb and emb_keys. Random rows are computed again by
    fair-esm. If they are not the mean over the residues alone, as where the end token of padded
    sequences was pooled in, the master is refused with the measured deviation. Sequences that may
    have been cut, and rows without a sequence, are left out; a campaign computes them. Name the
    store in `reuse`: it counts for CPUs and GPUs alike.

    \b
    Example:
      plm-embed import old/master_esm2_embeddings.h5 \\
        --index old/master_esm2_embeddings.parquet --index-id brc_fea_id \\
        --sequences protein_final.csv --id-column brc_fea_id --sequence-column esm2_ready_seq \\
        --weights resources/weights/esm2_t33_650M_UR50D --store imported
"""
    from plm_embed.master.foreign.adopt import adopt
    from plm_embed.master.foreign.files import Files

    files = Files(master, index, sequences, table, index_id)
    settings = Settings(layers=(layer,), compute_dtype=compute_dtype, storage_dtype=storage_dtype)
    done = adopt(files, store, weights_folder, settings, sample)
    say(
        f"{done.rows:,} rows adopted into {store}; {done.checked} checked: largest relative "
        "distance to the reference "
        f"{done.relative_l2:.2g}, smallest cosine {done.cosine:.6f}"
    )
    for reason, count in done.left_out.items():
        say(f"  {count:,} left out: {reason}")


@click.command(cls=ColumnarStep)
@campaign_options
@click.option(
    "--output", type=PATH, help="gathered.json: a record that the three files were written."
)
@click.option(
    "--workflow-commit", default="", help="Commit of the workflow, for the master's provenance."
)
def gather(
    *,
    sequences: Path,
    embedded: Path,
    store: Path,
    master: Path,
    index: Path,
    records: Path,
    output: Path | None,
    workflow_commit: str,
) -> None:
    """Merge the parts of the store into the master file, in key order, and write its index.

    \b
    Example (with M for results/esm2_t33_650M_UR50D):
      plm-embed gather --sequences results/sequences --embedded M/embedded --store M/store \\
        --master M/master_esm2_embeddings.h5 --index M/master_esm2_embeddings.parquet \\
        --records M/records.parquet
"""
    from plm_embed.master.gather import gather as run
    from plm_embed.master.gather_record import write_record

    run(sequences, embedded, store, master, index, records, {"workflow_commit": workflow_commit})
    if output is not None:
        write_record(output, (master, index, records))


@click.command(cls=ColumnarStep)
@click.option(
    "--sequences",
    required=True,
    type=EXISTING,
    help="Folder made by `plm-embed deduplicate`.",
)
@WEIGHTS(required=True)
@settings_of("settings", Settings, only=MEANING)
@settings_of("proof", Proof)
@click.option("--output", required=True, type=PATH, help="reference.npz: their vectors.")
def reference(
    *, sequences: Path, weights_folder: Path, settings: Settings, proof: Proof, output: Path
) -> None:
    """Embed a few random sequences by the reference path, for validate to compare.

    That is the program of the model's authors, or a plain one that was compared with it, one
    sequence at a time in float32.

    \b
    Example:
      plm-embed reference --sequences results/sequences \\
        --weights resources/weights/esm2_t33_650M_UR50D \\
        --output results/esm2_t33_650M_UR50D/reference.npz
"""
    import torch

    from plm_embed.inference.resolve import fingerprint_of
    from plm_embed.master.expected_vectors import expect, write_expected
    from plm_embed.models.manifest import read_manifest

    asked = fingerprint_of(read_manifest(weights_folder), settings, torch.device("cpu"))
    write_expected(output, expect(sequences, weights_folder, asked, proof.spot_checks))


@click.command(cls=ColumnarStep)
@click.argument("results", required=False, type=EXISTING)
@partial(campaign_options, required=False)
@WEIGHTS()
@settings_of("proof", Proof)
@click.option(
    "--reference",
    type=PATH,
    help="File of `plm-embed reference`: vectors that were computed before, in place of "
    "--spot-checks.",
)
@click.option("--report", type=PATH, help="validation.json: every check and its result.")
@click.option(
    "--checksums",
    type=PATH,
    help="SHA-256 list of the results, written only when all is well.",
)
def validate(
    *, results: Path | None, proof: Proof, reference: Path | None, **given: Path | None
) -> None:
    """Prove that the master is complete and right, or say what is wrong.

    RESULTS is a results folder with one model, or the folder of a model in it. It stands for all
    options that are not given, as the run's own config.yaml has it.

    \b
    Examples:
      plm-embed validate results
      plm-embed validate results/esm2_t33_650M_UR50D --spot-checks 100
    """
    from plm_embed.master.expected_vectors import Expected, expect, read_expected
    from plm_embed.master.validate import validate as run
    from plm_embed.master.validation_record import read_validation
    from plm_embed.reading.find import find_master
    from plm_embed.reporting.repeat import kept_settings

    settings: dict[str, Any] = {}
    if results:
        there = find_master(results).absolute()
        settings = kept_settings(there.parent)
        given = {**_places(there, settings), **{key: path for key, path in given.items() if path}}
    for name, path in given.items():
        option = "weights" if name == "weights_folder" else name
        if path is None:
            raise click.UsageError(f"give a results folder, or --{option}")
        if results and name not in ("report", "checksums") and not path.exists():
            raise click.UsageError(f"{path}: not found; name it with --{option}")
    asked = click.get_current_context().get_parameter_source("spot_checks")
    if asked is ParameterSource.DEFAULT:
        proof = from_config(Proof, settings)
    places = {name: path for name, path in given.items() if path}
    master, report = places["master"], places["report"]
    sequences, weights = places["sequences"], places["weights_folder"]

    def expected(fingerprint: Fingerprint) -> Expected:
        if reference:
            return read_expected(reference)
        return expect(sequences, weights, fingerprint, proof.spot_checks)

    problems = run(
        sequences=sequences,
        embedded=places["embedded"],
        store=places["store"],
        weights=weights,
        master=master,
        index=places["index"],
        records=places["records"],
        expected=expected,
        report=report,
        checksums=places["checksums"],
    )
    if problems:
        # a run shows two lines of this, so what to do stands in them; where no problem says it, the
        # fault is in what gather wrote
        problems = sorted(problems, key=lambda problem: "`" not in problem)
        todo = "" if "`" in problems[0] else "; `snakemake --forcerun gather` writes it again"
        raise StoreError(
            "\n  ".join([f"{master} is not valid ({report} has the details){todo}:", *problems]),
            path=master,
        )
    if found := read_validation(report):
        say(f"valid: {len(found.checks)} checks, {found.counts.vectors or 0:,} vectors")


def _places(master: Path, settings: dict[str, Any]) -> dict[str, Path]:
    """Where the workflow keeps what validate reads and writes of a master; paths in the settings of
    its run are relative to the folder in which it ran.
    """
    from plm_embed.reporting.repeat import ran_in

    folder = master.parent
    began, store = ran_in(folder), folder / "store"
    weights = Path(settings.get("weights_folder") or "resources/weights", folder.name)
    return {
        "sequences": folder.parent / "sequences",
        "embedded": folder / "embedded",
        "store": store if store.is_dir() else began / (settings.get("store") or store),
        "master": master,
        "index": master.with_suffix(".parquet"),
        "records": folder / "records.parquet",
        "weights_folder": began / weights,
        "report": folder / "validation.json",
        "checksums": folder / "checksums.sha256",
    }


COMMANDS = (gather, reference, validate, import_, compact)
