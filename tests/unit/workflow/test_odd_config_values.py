"""Whatever stands in a configuration is taken or refused in words."""

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from plm_embed.errors import PlmEmbedError
from plm_embed.workflow.config import checked, schema
from support.configs import config, keys

pytestmark = pytest.mark.usefixtures("in_a_folder_with_files")

SCHEMA = schema()


ODD = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters())
    | st.binary()
    | st.dates()
    | st.sampled_from(
        [
            "~",
            "~\0",
            "-",
            "--help",
            "$HOME",
            "a.fasta",
            "a.fasta/b",
            "<x>",
            "{y}",
            "[",
            "{a: [",
            "1e999",
            "!!int ''",
            "!!timestamp x",
            ".nan",
            "/dev/null",
            "/dev/zero",
            "/",
            "..",
            "x" * 5000,
            "\udc80",
            "0001-01-01 00:00:00 +23:59",
            "&a [*a]",
            "{? [a] : b}",
            "auto",
            "window",
            "2**70",
        ]
    ),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=5) | st.integers(), inner, max_size=3)
    ),
    max_leaves=5,
)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from([*keys(SCHEMA), "speed", "embedding", "table", "nothing"]), ODD)
def test_whatever_a_key_holds_is_taken_or_refused_in_words(key: str, value: Any) -> None:
    changes: Any = value
    for name in reversed(key.split(".")):
        changes = {name: changes}
    try:
        complete = checked(config(**changes))
    except PlmEmbedError as error:
        assert all(len(line) < 6000 for line in str(error).splitlines())
    else:
        assert checked(complete) == complete
