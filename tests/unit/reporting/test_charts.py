"""The charts of the report: bars that lie within the plot and add up to what was counted."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plm_embed.reporting.charts import LANES, Chart, lengths, norms, timeline
from plm_embed.reporting.facts import collect

COUNTS = st.dictionaries(st.integers(1, 40_000), st.integers(1, 10**6), min_size=1, max_size=50)


def counted(chart: Chart) -> int:
    return sum(int(bar.tip.rpartition(": ")[2].replace(",", "")) for bar in chart.bars)


@given(COUNTS)
def test_every_length_is_counted_once(counts: dict[int, int]) -> None:
    chart = lengths(counts)
    assert counted(chart) == sum(counts.values())
    for bar in chart.bars:
        assert bar.x >= -1e-6 and bar.x + bar.width <= 100 + 1e-6
        assert bar.y >= -1e-6 and bar.y + bar.height <= 100 + 1e-6
    assert len(chart.x_ticks) <= 7 and all(0 <= tick.place <= 100 for tick in chart.x_ticks)


@pytest.mark.parametrize("values", [[1.0, 1.0, 1.0], [0.0, 3.0, 1e6]])
def test_every_norm_is_counted_once(values: list[float]) -> None:
    chart = norms(np.array(values))
    assert counted(chart) == len(values)


def test_jobs_at_the_same_time_lie_in_rows_of_their_own(results: Path) -> None:
    (first, *_) = collect(results).runs
    together = [replace(first, bucket=f"{at:04}") for at in range(LANES + 5)]
    chart = timeline(together, [])
    assert chart and len({bar.y for bar in chart.bars}) == len(chart.bars) == LANES
    assert f"The first {LANES} of {LANES + 5} rows are drawn" in chart.words
    assert timeline([], []) is None


def test_a_failed_attempt_stands_out_with_its_reason(results: Path) -> None:
    facts = collect(results)
    chart = timeline(facts.runs, facts.attempts)
    assert chart
    (failed,) = (bar for bar in chart.bars if bar.color == "red")
    assert "bucket 0000" in failed.tip and "no usable <device>" in failed.tip
    assert "3 finished buckets and 1 failed start (in red) on " in chart.words
