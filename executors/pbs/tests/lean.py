"""A Python in which Snakemake starts in two thirds of the time."""

import sysconfig
import venv
from pathlib import Path

HIDDEN = ("snakemake_executor_plugin_slurm", "pandas")
"""Snakemake imports all executors that it finds, some of them pandas; where that is, Snakemake and
pyarrow import it, too."""


def lean_python(folder: Path) -> str:
    """A Python in the new `folder` with all packages of this one but those in HIDDEN."""
    venv.create(folder, symlinks=True)
    packages = next((folder / "lib").glob("python3*")) / "site-packages"
    for path in Path(sysconfig.get_path("purelib")).iterdir():
        if not any(name in path.name for name in HIDDEN):
            (packages / path.name).symlink_to(path)
    return str(folder / "bin" / "python")
