"""A few lines about a campaign: what came in, what came out, where it lies and how to open it."""

import os
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from plm_embed.errors import StoreError, delete
from plm_embed.io.parquet import read_batches
from plm_embed.jobs.completion_record import campaign_records, savings
from plm_embed.master.validation_record import VALIDATION, read_validation
from plm_embed.models.manifest import caveat
from plm_embed.reading.find import MASTERS, masters
from plm_embed.reading.open import Embeddings
from plm_embed.reporting.facts import license_of, model_folders, outdated, weights_of
from plm_embed.reporting.outputs import RECORDS, REPORT, SKIPPED, reader
from plm_embed.sequences.summary import read_summary
from plm_embed.wording import in_python


def summarize(path: Path) -> str:
    """Return plain text about each gathered model of a results folder, or about that of one
    model's folder. StoreError while there is no master.
    """
    folders = [folder for folder in model_folders(path) if masters(folder)]
    if not folders:
        what = f"{path}: no {MASTERS} in it yet"
        raise StoreError(what, path=path, remedy="run the workflow first")
    blocks = [
        (f"model       {folder.name}\n" if len(folders) > 1 else "") + _of_model(folder)
        for folder in folders
    ]
    return "\n\n\n".join(blocks)


def _of_model(folder: Path) -> str:
    sequences = Path(os.path.normpath(folder / ".." / "sequences"))
    counts, records = read_summary(sequences), folder / RECORDS
    statuses, reasons = Counter[str](), Counter[str]()
    for table in read_batches(records, ["status", "reason"], delete(records)):
        for column, counter in (("status", statuses), ("reason", reasons)):
            for entry in pc.value_counts(table[column].drop_null()).to_pylist():
                counter[entry["values"]] += entry["counts"]
    skipped = ", ".join(f"{count:,} {reason}" for reason, count in sorted(reasons.items()))
    changed = statuses["embedded_with_events"]
    embedded = _records(statuses["embedded"] + changed)
    if changed:
        embedded += f", {changed:,} of them changed (column `events` says how)"
    lines = [
        ("records", f"{statuses.total():,}"),
        ("unique", f"{counts.unique:,} sequences"),
        ("spared", savings(campaign_records(folder / "embedded", counts.buckets))),
        ("embedded", embedded),
        ("skipped", _records(statuses["skipped"]) + (f" ({skipped})" if skipped else "")),
        ("validation", _validation(folder / VALIDATION)),
        ("per record", f"{records}"),
        ("report", _if_there(folder / REPORT)),
        ("why skipped", _if_there(folder / SKIPPED) if statuses["skipped"] else ""),
    ]
    openings = []
    for path in masters(folder):
        with Embeddings(path) as embeddings:
            lines.append(("warning", outdated(sequences, counts, embeddings.metadata)))
            openings.append(_opening(path, embeddings))
    lines += [("warning", warning) for warning in counts.warnings]
    text = "\n".join(f"{name:<11} {value}" for name, value in lines if value)
    return "\n\n".join([text, *openings])


def _if_there(path: Path) -> str:
    return str(path) if path.is_file() else ""


def _records(count: int) -> str:
    return "1 record" if count == 1 else f"{count:,} records"


def _validation(path: Path) -> str:
    report = read_validation(path)
    if not report:
        return "not done"
    if failed := [check.check for check in report.checks if check.problems]:
        return f"FAILED: {', '.join(failed)} (see {path})"
    checks, spots = len(report.checks), len(report.spot_checks)
    rounding = f"; {report.rounding}" if report.rounding else ""
    return f"passed ({checks} checks, {spots} vectors computed again){rounding}"


def _opening(path: Path, embeddings: Embeddings) -> str:
    """Return lines about a master, and those of Python that read a vector of it."""
    metadata = embeddings.metadata
    model, first = metadata["model_name"], embeddings.resolved("emb")
    doubt = caveat(model, weights_of(path.parent, metadata["weights_sha256"]))
    size = f"{len(embeddings):,} x {embeddings.dim}, {path.stat().st_size / 1e6:,.1f} MB"
    more = [name for name in embeddings.names if name != first]
    example = _example(path.with_suffix(".parquet"))
    method = reader(embeddings.names)
    lines = [
        f"{path}: {model}, {size}",
        f"emb is {first}; by name: {', '.join(more)}" if more else "",
        f"weights: {doubt}" if doubt else "",
        f"license of the weights: {license_of(model)}" if license_of(model) else "",
        "    import plm_embed",
        f"    e = plm_embed.open({in_python(path)})",
        f"    e.{method}([{example!r}])" if method == "get" else f"    e.{method}({example!r})",
    ]
    return "\n".join(filter(None, lines))


def _example(index: Path) -> str:
    """Return one of the first ids, if possible one that different sequences do not share."""
    rows: dict[str, set[int]] = {}
    for table in read_batches(index, ["id", "row"], delete(index)):
        rows = rows or {id: set() for id in table["id"].slice(0, 10).to_pylist()}
        for line in table.filter(pc.is_in(table["id"], pa.array(list(rows)))).to_pylist():
            rows[line["id"]].add(line["row"])
    return min(rows, key=lambda id: len(rows[id]) > 1, default="an id")
