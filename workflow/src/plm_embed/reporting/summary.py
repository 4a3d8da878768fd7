"""A few lines about a campaign: what came in, what came out, where it lies and how to open it."""

import os
from collections import Counter
from pathlib import Path

import pyarrow.compute as pc

from plm_embed.errors import StoreError, delete
from plm_embed.io.parquet import read_batches
from plm_embed.jobs.completion_record import campaign_records, savings
from plm_embed.master.validation_record import VALIDATION, read_validation
from plm_embed.models import manifest
from plm_embed.reading.find import MASTERS, masters
from plm_embed.reading.open import Embeddings
from plm_embed.reporting.facts import license_of, model_folders, outdated, weights_of
from plm_embed.reporting.outputs import REPORT, reader
from plm_embed.reporting.skipped import NAME
from plm_embed.sequences.summary import read_summary
from plm_embed.wording import in_python


def summarize(path: Path) -> str:
    """Plain text about each gathered model of a results folder, or about that of one model's
    folder. StoreError while there is no master.
    """
    folders = [folder for folder in model_folders(path) if masters(folder)]
    if not folders:
        raise StoreError(
            f"{path}: no {MASTERS} in it yet", path=path, remedy="run the workflow first"
        )
    blocks = [_of_model(folder) for folder in folders]
    if len(folders) > 1:
        blocks = [
            f"model       {folder.name}\n{block}"
            for folder, block in zip(folders, blocks, strict=True)
        ]
    return "\n\n\n".join(blocks)


def _of_model(folder: Path) -> str:
    sequences = Path(os.path.normpath(folder / ".." / "sequences"))
    statuses, reasons = _outcomes(folder / "records.parquet")
    counts = read_summary(sequences)
    skipped = ", ".join(f"{count:,} {reason}" for reason, count in sorted(reasons.items()))
    embedded = statuses["embedded"] + statuses["embedded_with_events"]
    lines = [
        ("records", f"{statuses.total():,}"),
        ("unique", f"{counts.unique:,} sequences"),
        ("embedded", _records(embedded) + _changed(statuses["embedded_with_events"])),
        ("skipped", _records(statuses["skipped"]) + (f" ({skipped})" if skipped else "")),
        ("validation", _validation(folder)),
        ("per record", f"{folder / 'records.parquet'}"),
        ("report", _if_there(folder / REPORT)),
        ("why skipped", _if_there(folder / NAME) if statuses["skipped"] else ""),
    ]
    if saved := savings(campaign_records(folder / "embedded", counts.buckets)):
        lines.insert(3, ("spared", saved))
    for path in masters(folder):
        with Embeddings(path) as embeddings:
            lines.append(("warning", outdated(sequences, counts, embeddings.metadata)))
    lines += [("warning", warning) for warning in counts.warnings]
    text = "\n".join(f"{name:<11} {value}" for name, value in lines if value)
    return "\n\n".join([text, *(_opening(path) for path in masters(folder))])


def _changed(count: int) -> str:
    """A word on records of which other letters were embedded, or fewer, or in several pieces."""
    return f", {count:,} of them changed (column `events` says how)" if count else ""


def _if_there(path: Path) -> str:
    return str(path) if path.is_file() else ""


def _records(count: int) -> str:
    return "1 record" if count == 1 else f"{count:,} records"


def _outcomes(path: Path) -> tuple[Counter[str], Counter[str]]:
    """Records by status, and skipped records by reason."""
    statuses, reasons = Counter[str](), Counter[str]()
    for table in read_batches(path, ["status", "reason"], delete(path)):
        for column, counter in (("status", statuses), ("reason", reasons)):
            for entry in pc.value_counts(table[column].drop_null()).to_pylist():
                counter[entry["values"]] += entry["counts"]
    return statuses, reasons


def _validation(folder: Path) -> str:
    path = folder / VALIDATION
    report = read_validation(path)
    if not report:
        return "not done"
    failed = [check.check for check in report.checks if check.problems]
    done = f"{len(report.checks)} checks, {len(report.spot_checks)} vectors computed again"
    if failed:
        return f"FAILED: {', '.join(failed)} (see {path})"
    return f"passed ({done})" + (f"; {report.rounding}" if report.rounding else "")


def _opening(path: Path) -> str:
    with Embeddings(path) as embeddings:
        model, rows, dim = embeddings.metadata["model_name"], len(embeddings), embeddings.dim
        caveat = manifest.caveat(
            model, weights_of(path.parent, embeddings.metadata["weights_sha256"])
        )
        method, first = reader(embeddings.names), embeddings.resolved("emb")
        others = [name for name in embeddings.names if name != first]
    example = _example(path.with_suffix(".parquet"))
    return "\n".join(
        [
            f"{path}: {model}, {rows:,} x {dim}, {path.stat().st_size / 1e6:,.1f} MB",
            *([f"emb is {first}; by name: {', '.join(others)}"] if others else []),
            *([f"weights: {caveat}"] if caveat else []),
            *([f"license of the weights: {terms}"] if (terms := license_of(model)) else []),
            "    import plm_embed",
            f"    e = plm_embed.open({in_python(path)})",
            f"    e.{method}([{example!r}])" if method == "get" else f"    e.{method}({example!r})",
        ]
    )


def _example(index: Path) -> str:
    """An id, if possible one that different sequences do not share."""
    for table in read_batches(index, ["id"], delete(index)):
        seen: Counter[str] = Counter(table["id"].to_pylist())
        return min(seen, key=lambda id: seen[id] > 1)
    return "an id"
