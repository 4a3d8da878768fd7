"""Snakemake's arguments, quoted for the two shells that read them: sbatch's, and the job's.

Snakemake quotes them with Python's repr: a path that has ' beside one of $ " \\ would be another
one for the shell. The plain plugin then puts all of them between double quotes.
"""

import contextlib
import re
import shlex
import threading
from collections.abc import Iterator
from typing import Any

from snakemake_interface_executor_plugins import utils

_lock = threading.Lock()
"""Jobs are submitted by two threads, and the function that is replaced is there once."""


@contextlib.contextmanager
def quoted_for_the_shell() -> Iterator[None]:
    """Within it, texts are quoted as a shell reads them; those that have quotes keep them."""
    with _lock:
        original = utils.format_cli_value

        def value_for_the_shell(
            value: Any, quote: bool = False, base64_encode: bool = False
        ) -> str:
            plain = isinstance(value, str) and quote and not base64_encode
            if plain and not utils.is_quoted(value):
                return shlex.quote(value)
            return str(original(value, quote, base64_encode))

        utils.format_cli_value = value_for_the_shell
        try:
            yield
        finally:
            utils.format_cli_value = original


def between_double_quotes(words: str) -> str:
    """So that a shell takes them for themselves there; the plain plugin does the double quotes."""
    return re.sub(r"[\\$`]", r"\\\g<0>", words)
