"""Pythons in which Snakemake starts in two thirds of the time."""

import sysconfig
import venv
from pathlib import Path

HIDDEN = ("wcwidth", "PIL", "pillow")
"""Libraries that others import where they are."""
OF_SLURM = ("snakemake_executor_plugin_slurm", "pandas")
"""Snakemake imports all executors that it finds, some of them pandas."""


def lean_python(folder: Path, *more: str, slurm: bool = False) -> str:
    """A Python in the new `folder` with all packages of this one but those in HIDDEN, and more.

    slurm: what is in OF_SLURM is there for the Snakemake that submits jobs, not for those in jobs.
    """
    venv.create(folder, symlinks=True)
    packages = next((folder / "lib").glob("python3*")) / "site-packages"
    (packages / "slurm").mkdir()
    for path in Path(sysconfig.get_path("purelib")).iterdir():
        if not any(name in path.name for name in (*HIDDEN, *more)):
            submits = any(name in path.name for name in OF_SLURM)
            (packages / ("slurm" if submits else ".") / path.name).symlink_to(path)
    if slurm:
        line = f"import site, sys; 'remote' in sys.orig_argv or site.addsitedir('{packages}/slurm')"
        (packages / "slurm.pth").write_text(line + "\n")
    return str(folder / "bin" / "python")
