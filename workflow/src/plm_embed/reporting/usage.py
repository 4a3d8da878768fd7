"""What a campaign took: attempts, time, energy, what was spared."""

from collections import Counter
from collections.abc import Iterator

from plm_embed.jobs.heartbeat import Heartbeat
from plm_embed.models.registry import tokens as tokens_of
from plm_embed.reporting.facts import Facts
from plm_embed.reporting.runs import place, without_end
from plm_embed.wording import duration

LISTED = 10


def effort(facts: Facts) -> Iterator[tuple[str, str]]:
    """Names and values for people."""
    if facts.attempts:
        yield "jobs", _attempts(facts.attempts)
    yield "device time", _device_time(facts)
    joules = [one.joules for one in facts.attempts if one.joules is not None]
    if joules:
        part = (
            ""
            if len(joules) == len(facts.attempts)
            else f" in {len(joules):,} of {len(facts.attempts):,} attempts"
        )
        yield "energy", f"{sum(joules) / 3.6e6:,.3g} kWh, by the counters of the GPUs{part}"
    else:
        yield "energy", "not known: no GPU that counts its energy"
    yield "not computed again", facts.spared or "nothing: every vector was computed"
    repeats = facts.summary.accepted - facts.summary.unique if facts.summary else 0
    if repeats:
        yield "repeats, embedded once", f"{repeats:,} records{_repeats_time(facts, repeats)}"


def _attempts(attempts: list[Heartbeat]) -> str:
    attempts = [attempt for attempt in attempts if attempt.node == 0]
    outcomes = Counter(attempt.outcome for attempt in attempts)
    names = {attempt.bucket for attempt in attempts}
    text = f"{len(names):,} jobs, started {len(attempts):,} times"
    if outcomes["failed"]:
        text += f"; {outcomes['failed']:,} failed"
    if outcomes["no end"]:
        text += f"; {outcomes['no end']:,} without an end"
    return text


def _device_time(facts: Facts) -> str:
    text = (
        duration(sum(run.device_seconds for run in facts.runs))
        + " in the jobs whose buckets are finished"
    )
    lost = sum(one.device_seconds for one in facts.attempts if one.outcome == "failed")
    return text + (
        f"; {duration(lost)} in attempts that failed, whose parts were kept" if lost else ""
    )


def _repeats_time(facts: Facts, repeats: int) -> str:
    """An estimate by the mean length of the distinct sequences."""
    timed = [run for run in facts.runs if run.token_seconds]
    summary = facts.summary
    if not timed or not summary or not summary.residues:
        return ""
    tokens = repeats * tokens_of(facts.model, summary.residues, summary.unique) / summary.unique
    rate = sum(run.tokens for run in timed) / sum(run.token_seconds for run in timed)
    return f" (about {duration(tokens / rate)} of device time)"


def failures(facts: Facts) -> list[dict[str, str]]:
    """The last attempts that did not complete: bucket, when, where, why."""
    finished = {run.bucket for run in facts.runs}
    found = [one for one in facts.attempts if one.outcome != "complete"][-LISTED:]
    return [
        {
            "bucket": one.bucket,
            "started": one.started[:19].replace("T", " "),
            "place": place(one.host, one.job),
            "reason": without_end(one, finished) if one.outcome == "no end" else one.reason,
        }
        for one in found
    ]
