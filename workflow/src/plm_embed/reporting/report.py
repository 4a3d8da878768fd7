"""The report: one HTML file that stands by itself, offline, about a campaign that is finished or
under way. The template says what is read here.
"""

import os
import shlex
from dataclasses import astuple
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
from markupsafe import Markup

from plm_embed._version import __version__
from plm_embed.io.files import atomic_path, size
from plm_embed.io.terminal import printable
from plm_embed.jobs.completion_record import store_of
from plm_embed.reading.open import Embeddings
from plm_embed.reporting.citing import citation, methods
from plm_embed.reporting.facts import Facts, device_rows
from plm_embed.reporting.failures import AGAIN, failures
from plm_embed.reporting.maps import map_data
from plm_embed.reporting.outputs import RECORDS, outputs, skipped_records
from plm_embed.wording import count, readable

LISTED = 20
"""Skipped records at most that the page names."""


def write_report(facts: Facts, output: Path) -> None:
    """Write the report."""
    points = None
    if facts.master:
        with Embeddings(facts.master) as embeddings:
            points = map_data(embeddings, facts.folder / RECORDS)
    checks = facts.validation.checks if facts.validation else []
    records = facts.folder if facts.statuses else facts.results / "sequences"
    skipped = islice(skipped_records(records / RECORDS), LISTED) if facts.summary else ()
    write_page(
        "report.html.j2",
        output,
        facts=facts,
        failure=next(reversed(failures(facts.results, [facts.model])), None),
        again=AGAIN,
        map=points,
        inputs=[astuple(file) for file in facts.summary.inputs] if facts.summary else [],
        lengths=lengths(facts.summary.lengths if facts.summary else {}),
        outcomes=_outcomes(facts),
        listed=LISTED,
        skipped=[(id, reason.replace("_", " "), *others) for id, reason, *others in skipped],
        devices=list(device_rows(facts.runs)),
        checks=[(check.check, check.result, check.meaning) for check in checks],
        files=list(outputs(facts.folder, facts.master)),
        folder=os.path.relpath(facts.folder, output.parent),
        store=size(store_of(facts.folder)),
        methods=methods(facts),
        citation=citation(facts),
    )


def write_page(template: str, output: Path, **content: Any) -> None:
    """Write a page from a template of this package, with the style sheet and the script."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("plm_embed.reporting", ""),
        autoescape=True,
        trim_blocks=True,
        undefined=jinja2.StrictUndefined,
        # markup is of another type
        finalize=lambda value: printable(value) if type(value) is str else value,
    )
    environment.filters |= {"number": "{:,}".format, "quoted": lambda text: shlex.quote(str(text))}
    environment.filters |= {"count": count, "readable": readable, "size": size}
    style, script = (
        Markup(Path(__file__).with_name(name).read_text(encoding="utf-8"))
        for name in ("report.css", "report.js")
    )
    content |= {"style": style, "script": script, "version": __version__}
    time = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    page = environment.get_template(template).render(time=time, **content)
    with atomic_path(output) as temporary:
        temporary.write_text(page, encoding="utf-8")


def lengths(counts: dict[int, int]) -> str:
    """Return the range and the median of the distinct sequences' lengths, in words."""
    if not counts:
        return ""
    below, known = np.cumsum([counts[length] for length in sorted(counts)]), sorted(counts)
    median = known[int(np.searchsorted(below, below[-1] / 2))]
    return f"Their lengths are from {known[0]:,} to {known[-1]:,}, median {median:,}."


def _outcomes(facts: Facts) -> list[tuple[str, int]]:
    """Return outcomes and events with the numbers of their records: as gathered, or as read."""
    if not (summary := facts.summary):
        return []
    reasons = facts.reasons if facts.statuses else summary.skipped
    outcomes = {**(facts.statuses or {"accepted": summary.accepted})}
    outcomes.pop("skipped", None)
    outcomes |= {f"skipped: {reason}": number for reason, number in reasons.items()}
    outcomes |= {f"event: {event}": number for event, number in summary.events.items()}
    return [(name.replace("_", " "), number) for name, number in outcomes.items()]
