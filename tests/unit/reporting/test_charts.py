"""The chart of the report: bars that lie within the plot and add up to what was counted."""

from hypothesis import given
from hypothesis import strategies as st

from plm_embed.reporting.charts import lengths

COUNTS = st.dictionaries(st.integers(1, 40_000), st.integers(1, 10**6), min_size=1, max_size=50)


@given(COUNTS)
def test_every_length_is_counted_once(counts: dict[int, int]) -> None:
    chart = lengths(counts)
    counted = sum(int(bar.tip.rpartition(": ")[2].replace(",", "")) for bar in chart.bars)
    assert counted == sum(counts.values())
    for bar in chart.bars:
        assert bar.x >= -1e-6 and bar.x + bar.width <= 100 + 1e-6
        assert 0 <= bar.height <= 100 + 1e-6
    for ticks in (chart.x_ticks, chart.y_ticks):
        assert len(ticks) <= 7 and all(0 <= tick.place <= 100 for tick in ticks)
