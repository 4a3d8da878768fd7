"""What a campaign took, against its plan."""

from dataclasses import replace
from pathlib import Path

import pytest

from plm_embed.reporting.facts import collect
from plm_embed.reporting.usage import comparison, failures


def test_plan_and_fact_are_of_the_same_work(results: Path) -> None:
    facts = collect(results)
    assert facts.plan
    (hours,) = [row for row in comparison(facts) if row[0].startswith("hours on")]
    mine = [one for one in facts.attempts if one.outcome == "complete"]
    # the attempt that failed ended before the first bucket began, and the killed one has no end
    assert float(hours[2]) == pytest.approx(sum(one.seconds for one in mine) / 3600, abs=6e-4)
    facts.plan = replace(facts.plan, made="2999")
    assert [row[2] for row in comparison(facts) if row[0] == "sequences to compute"] == ["0"]
    facts.attempts = []
    facts.plan = replace(facts.plan, made="")
    (hours,) = [row for row in comparison(facts) if row[0].startswith("hours on")]
    assert float(hours[2]) == pytest.approx(sum(run.seconds for run in facts.runs) / 3600, abs=6e-4)
    assert not failures(facts)
