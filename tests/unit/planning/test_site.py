"""The time of a profile's jobs, as Snakemake reads it."""

import re

import pytest
from snakemake.resources import Resources

from plm_embed.errors import ConfigError
from plm_embed.planning.site import first_attempt


@pytest.mark.parametrize(
    "runtime",
    [
        *(240, 30.5, "'30'", "4h", "4 h", "'90 min'", "100 seconds", "1.5 days", "2w"),
        *("240 * attempt", "attempt*60"),
    ],
)
def test_a_runtime_is_what_snakemake_reads_in_it(runtime: object) -> None:
    resources = Resources.parse([f"runtime={runtime}"], allow_expressions=True)
    first = resources["runtime"].evaluate(
        None, input=[], attempt=1, threads=1, rulename="embed", async_run=None
    )
    assert first_attempt("runtime", runtime) == first.value


@pytest.mark.parametrize("value", ["4:00:00", "long", "max(60, 4)", None])
def test_an_expression_is_refused(value: object) -> None:
    with pytest.raises(ConfigError, match="is neither minutes nor a time such as 4h"):
        first_attempt("runtime", value)
    for number in (value, "1.5", "4h"):
        words = f"gpu: {re.escape(str(number))}: is not a whole number"
        with pytest.raises(ConfigError, match=words):
            first_attempt("gpu", number)
    assert first_attempt("nodes", "2 * attempt") == 2
