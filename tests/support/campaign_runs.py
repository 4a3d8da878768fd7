"""Running the workflow as a user does: a working folder with the shipped configuration, and the
snakemake command.
"""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from support import forked_snakemake

ROOT = Path(__file__).parents[2]


def snakemake_command(folder: Path, *options: str, **config: Any) -> list[str]:
    """The command that runs the shipped workflow in `folder`, with single keys of its configuration
    replaced.
    """
    if "inputs" in config:  # the demo's model is taken for the demo's inputs alone
        config = {"model": "esm2_t3_untrained", **config}
    keys = [
        f"{key}={value if isinstance(value, str) else json.dumps(value)}"
        for key, value in config.items()
    ]
    command = [
        sys.executable,
        "-m",
        "snakemake",
        "--snakefile",
        str(ROOT / "workflow" / "Snakefile"),
        "--directory",
        str(folder),
    ]
    return [*command, *options, *(["--config", *keys] if keys else [])]


def snakemake(folder: Path, *options: str, **config: Any) -> subprocess.CompletedProcess[str]:
    """Run it to its end; standard output and error together in `stdout`."""
    _, _, _, *arguments = snakemake_command(folder, *options, **config)
    return forked_snakemake.run(arguments)


def working_folder(folder: Path, buckets: int = 4) -> Path:
    """A new folder with the demo's inputs and the shipped configuration, but for the buckets: most
    tests need no more than two, and each costs a start of torch.
    """
    shutil.copytree(ROOT / "config", folder / "config")
    config = folder / "config/config.yaml"
    shipped = config.read_text(encoding="utf-8")
    assert "\nbuckets: 2\n" in shipped
    config.write_text(
        shipped.replace("\nbuckets: 2\n", f"\nbuckets: {buckets}\n"), encoding="utf-8"
    )
    return folder
