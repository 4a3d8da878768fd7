"""Axes with round ticks, and sizes that stay bounded."""

from datetime import datetime

import pytest

from plm_embed.reporting.plots.charts import Axis, clock, extent, linear, logarithmic
from plm_embed.reporting.plots.figures import WORKERS_WITH_BARS, lengths, speed, timeline
from plm_embed.reporting.runs import Run


def labels(axis: Axis) -> list[str]:
    return [tick.label for tick in axis.ticks]


def test_ticks_are_round() -> None:
    assert labels(linear("", 0, 17)) == ["0", "5", "10", "15", "20"]
    assert labels(linear("", 0, 0)) == ["0", "0.2", "0.4", "0.6", "0.8", "1"]
    assert labels(linear("", -3.3, 1.9)) == ["-3", "-2", "-1", "0", "1"]
    assert labels(linear("", 0, 2.5e6))[1:] == [f"{n * 500_000:,}" for n in range(1, 6)]
    assert labels(logarithmic("", 41, 1155)) == ["50", "100", "200", "500", "1,000"]
    assert labels(logarithmic("", 7, 7)) == []
    noon = datetime.fromisoformat("2026-01-01T12:00:03+00:00").timestamp()
    assert labels(clock("", noon, noon + 25)) == [f"12:00:{n}" for n in (10, 20)]
    assert labels(clock("", noon, noon + 9 * 3600)) == [f"{n}:00" for n in (15, 18, 21)]
    assert labels(clock("", noon, noon + 4e5)) == ["01-03 00:00", "01-05 00:00"]


def test_values_that_are_alike_have_room() -> None:
    low, high = extent([97.0, 97.0 + 1e-13])
    assert (low, high) == pytest.approx((96, 98))
    assert extent([0.0, 100.0]) == (-4, 104)


def test_percent_of_an_axis() -> None:
    assert linear("", 0, 20).percent(5) == 25
    assert logarithmic("", 1, 100).percent(10) == 50


def test_lengths_add_up() -> None:
    chart = lengths({10: 1, 20: 2, 40: 1})
    assert sum(int(row[2]) for row in chart.table) == 4
    assert chart.table[-1] == (39, 40, 1, 100.0) and chart.line[-1][1] == 0
    assert chart.words == "From 10 to 40 residues, median 20."
    assert len(lengths({7: 3}).bars) == 1


def run(at: int, workers: int) -> Run:
    clock = f"2026-01-01T{at // workers:02}:00:00+00:00"
    end = f"2026-01-01T{at // workers:02}:50:00+00:00"
    name = f"x{at % workers:03}"
    return Run(f"{at:04}", name, name, "A100", clock, end, 3000.0, 10**6, 333.0, 0.9, 9, 9, 0, 0)


@pytest.mark.parametrize("workers", [3, WORKERS_WITH_BARS + 1])
def test_workers_have_names_while_they_are_few(workers: int) -> None:
    runs = [run(at, workers) for at in range(2 * workers)]
    chart, few = timeline(runs, []), workers <= WORKERS_WITH_BARS
    assert len(chart.bars) == 2 * workers and len(chart.texts) == (workers if few else 0)
    assert all(bar.y >= 0 and bar.y + bar.height <= 100.1 for bar in chart.bars)
    assert chart.height <= 44 * WORKERS_WITH_BARS
    assert hasattr(speed(runs), "rows") == few
