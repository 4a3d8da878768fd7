"""The script that PBS runs for a job."""

import os
import shlex
from collections.abc import Mapping
from pathlib import Path

from .site import Site


def script_text(command: str, site: Site, end: Path, variables: Mapping[str, str]) -> str:
    """The job's script: the site's choice of variables and `variables`, the site's lines, the
    command, and around it the record of its begin and its end.

    PBS runs it under the login shell's name with the PATH of /etc/profile, in the home folder,
    whatever qsub saw.
    """
    chosen = {key: os.environ[key] for key in site.environment if key in os.environ}
    exports = [
        f"export {key}={shlex.quote(value)}" for key, value in {**chosen, **variables}.items()
    ]
    record = shlex.quote(str(end))
    return "\n".join(
        [
            "#!/bin/sh",
            f'printf "%s\\n" "$PBS_JOBID" > {record}',
            *exports,
            *site.setup,
            f"( {command}\n)",
            "code=$?",
            f'printf "%s %s\\n" "$PBS_JOBID" "$code" > {record}.$$ && mv -f {record}.$$ {record}',
            "exit $code",
            "",
        ]
    )
