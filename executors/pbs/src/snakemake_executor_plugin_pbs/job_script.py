"""The script that PBS runs for a job."""

import os
import shlex
from collections.abc import Mapping
from pathlib import Path

from .site import Site

_TAKEN_ALONG = ("PATH", "LD_LIBRARY_PATH", "PYTHONPATH")


def script_text(command: str, site: Site, end: Path, variables: Mapping[str, str]) -> str:
    """Return the job's script: `variables` and where programs are found, the site's lines, the
    command, and around it the record of its begin and its end.

    PBS runs it under the login shell's name with the PATH of /etc/profile, in the home folder,
    whatever qsub saw.
    """
    places = {key: os.environ[key] for key in _TAKEN_ALONG if key in os.environ}
    exports = [
        f"export {key}={shlex.quote(value)}" for key, value in {**places, **variables}.items()
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
