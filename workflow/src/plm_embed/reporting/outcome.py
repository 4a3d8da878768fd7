"""The first screen of the report: is it complete, is it right, where is it, what now."""

import shlex
from collections.abc import Iterator
from dataclasses import dataclass

from plm_embed.reporting.facts import Facts
from plm_embed.reporting.failures import failures
from plm_embed.reporting.outputs import reader
from plm_embed.wording import duration, in_python, readable

STANDINGS = {
    "passed": "✓ complete and validated",
    "failed": "✗ validation FAILED",
    "pending": "not finished yet",
}

MEANINGS = {
    "completion records": "Every bucket has a record of the job that finished it, and all jobs "
    "used the same settings.",
    "parts": "Every file that the jobs wrote is there, unchanged since it was written.",
    "fingerprints in the store": "All stored vectors were computed with exactly these settings.",
    "weights": "The weights are the ones that the vectors were computed with.",
    "master": "The file with all vectors can be opened and read.",
    "attributes": "What that file says of itself (settings, inputs, versions) is true.",
    "shapes and types": "Each table in it has the rows, columns and number format that it should.",
    "keys": "Each distinct sequence has one row and no other row is there; rows are in order.",
    "rows equal their parts": "Each vector is, bit for bit, the one that its job wrote.",
    "finite": "No vector holds NaN or infinity.",
    "index": "The index leads each id to the row of its own sequence.",
    "records": "Every record of the input has one outcome, and the index agrees with it.",
    "counts": "Embedded and skipped records add up to the input, file by file.",
    "spot checks": "Some vectors, drawn at random, agree with those of an independent program.",
}
"""What each check of a validation means, in a sentence for those who did not write it."""


def standing(facts: Facts) -> str:
    """A key of STANDINGS."""
    return facts.validation.status if facts.validation else "pending"


def subtitle(facts: Facts) -> str:
    """What was embedded."""
    if not facts.summary:
        return f"{facts.results}"
    sources = len(facts.summary.inputs)
    files = "1 file" if sources == 1 else f"{sources} files"
    return (
        f"{facts.summary.records:,} records from {files}, "
        f"{facts.summary.unique:,} distinct sequences"
    )


def cards(facts: Facts) -> Iterator[tuple[str, str]]:
    """Numbers and what they count."""
    if facts.summary:
        yield f"{facts.summary.records:,}", "records"
        yield f"{facts.summary.unique:,}", "distinct sequences"
        yield f"{sum(facts.summary.skipped.values()):,}", "skipped when read"
    if facts.rows:
        yield f"{facts.rows:,}", f"vectors, {facts.dim:,} wide"
    if facts.runs:
        hours = sum(run.seconds for run in facts.runs) / 3600
        yield (f"{hours:,.1f} h" if hours >= 1 else duration(3600 * hours)), "device time"
        yield readable(sum(facts.sizes.values())), "on disk"


@dataclass(frozen=True)
class Answer:
    """A question, its answer (after a path where it is one), and the part of the page that has
    more: its id, and words for a link.
    """

    question: str
    answer: str
    section: str
    more: str
    path: str = ""


def answers(facts: Facts) -> Iterator[Answer]:
    """What people ask first."""
    yield Answer("Is it complete?", *_complete(facts))
    yield Answer("Is it right?", _right(facts), "validation", "All checks")
    if facts.metadata and facts.master:
        size = f"({readable(facts.sizes['master'])})"
        yield Answer("Where is it?", size, "files", "All files", str(facts.master))
    yield Answer("What now?", *_next(facts))


def _complete(facts: Facts) -> tuple[str, str, str]:
    if facts.outdated:
        return "No: the input has changed since these vectors were gathered.", "input", "Input"
    counts = facts.validation.counts if facts.validation else None
    if counts and counts.statuses and counts.records is not None:
        skipped = counts.statuses.get("skipped", 0)
        sure = "Yes: " if standing(facts) == "passed" else "By the records alone, "
        if not skipped:
            return f"{sure}all {counts.records:,} records have a vector.", "input", "Input"
        found = f"{counts.records - skipped:,} of {counts.records:,} records have a vector"
        were = "1 was skipped" if skipped == 1 else f"{skipped:,} were skipped"
        return f"{sure}{found}, and {were}.", "skipped", "Which, and why"
    if not facts.summary:
        return "Not yet: the sequences are being read.", "input", "Input"
    done, total = len(facts.runs), facts.summary.buckets
    if done < total:
        text = f"Not yet: {done:,} of {total:,} buckets are finished."
    else:
        text = "Every bucket is finished, but the vectors are not validated yet."
    return text, "computation", "Computation"


def _right(facts: Facts) -> str:
    validation = facts.validation
    if not validation:
        return "Not known yet: validation comes last."
    failed = [one.check for one in validation.checks if one.result == "failed"]
    if failed:
        return (
            f"No: {len(failed)} of {len(validation.checks)} checks failed ({', '.join(failed)}). "
            "Do not use these vectors."
        )
    spots = len(validation.spot_checks)
    again = f", and {spots:,} vectors agree with {facts.reference}" if spots else ""
    return f"Yes: all {len(validation.checks)} checks passed{again}."


def _next(facts: Facts) -> tuple[str, str, str]:
    if standing(facts) == "passed":
        return "Open the vectors, search them, export them.", "methods", "Methods for a paper"
    if standing(facts) == "failed":
        text = "Mend what the checks found. Then give the command of the run again."
        return text, "validation", "What they found"
    again = "give the command of the run again: what is finished stays."
    if found := failures(facts.results, [facts.model] if facts.model else []):
        text = f"A step failed: {found[-1].reason} ({found[-1].log}). When it is mended, {again}"
        return text, "computation", "Computation"
    return f"Wait while the run is at work. If it ended, {again}", "computation", "Computation"


def opening(facts: Facts) -> str:
    """Lines of Python that read the vectors; '' while there are none, and of wrong ones."""
    if not facts.metadata or standing(facts) == "failed":
        return ""
    example = repr(facts.example or "an id")
    method = reader(facts.names)
    asked = f"[{example}]" if method == "get" else example
    opened = f"vectors = plm_embed.open({in_python(facts.folder)})"
    return f"import plm_embed\n{opened}\nvectors.{method}({asked})"


def commands(facts: Facts) -> str:
    """Lines for a shell: what is often done with a result, or the way to one."""
    folder = shlex.quote(str(facts.folder))
    if standing(facts) == "pending":
        return f"plm-embed watch {shlex.quote(str(facts.results))}"
    if standing(facts) == "failed" or reader(facts.names) != "get":
        return f"plm-embed summary {folder}"
    lines = [f"plm-embed export {folder} vectors.parquet --to parquet"]
    if facts.example:
        lines.insert(0, f"plm-embed search {folder} --id {shlex.quote(facts.example)}")
    return "\n".join(lines)
