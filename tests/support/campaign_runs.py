"""Running the workflow as a user does: a working folder with the shipped configuration, and the
snakemake command.
"""

import atexit
import json
import multiprocessing
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(["snakemake.cli", "pandas"])  # which the plain SLURM plugin takes
"""A process without threads that has imported Snakemake: each run is a fork of it, and does what
the command does from there on.
"""


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
    command = [sys.executable, "-m", "snakemake"]
    command += ["--snakefile", str(ROOT / "workflow" / "Snakefile"), "--directory", str(folder)]
    return [*command, *options, *(["--config", *keys] if keys else [])]


def snakemake(folder: Path, *options: str, **config: Any) -> subprocess.CompletedProcess[str]:
    """Run it to its end; standard output and error together in `stdout`."""
    _, _, _, *arguments = snakemake_command(folder, *options, **config)
    with tempfile.NamedTemporaryFile() as said:
        process = _FORKS.Process(target=_main, args=(arguments, dict(os.environ), said.name))
        process.start()
        process.join()
        text = Path(said.name).read_text(encoding="utf-8")
    assert process.exitcode is not None
    return subprocess.CompletedProcess(arguments, process.exitcode, text)


def _main(arguments: list[str], environment: dict[str, str], said: str) -> None:
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = ["snakemake", *arguments]
    with Path(said).open("w", encoding="utf-8", buffering=1) as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    from snakemake.cli import main

    try:
        main()
    finally:
        atexit._run_exitfuncs()


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
