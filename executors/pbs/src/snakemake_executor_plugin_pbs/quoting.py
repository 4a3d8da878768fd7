"""Snakemake's arguments, quoted for the shell of the job.

Snakemake quotes them with Python's repr: a path that has ' beside one of $ " \\ would be another
one for the shell.
"""

import contextlib
import shlex
from collections.abc import Iterator
from typing import Any

from snakemake_interface_executor_plugins import utils


@contextlib.contextmanager
def quoted_for_the_shell() -> Iterator[None]:
    """Within it, texts are quoted as a shell reads them."""
    original = utils.format_cli_value

    def value_for_the_shell(value: Any, quote: bool = False, base64_encode: bool = False) -> str:
        if isinstance(value, str) and quote and not base64_encode:
            return shlex.quote(value)
        return str(original(value, quote=quote, base64_encode=base64_encode))

    utils.format_cli_value = value_for_the_shell
    try:
        yield
    finally:
        utils.format_cli_value = original
