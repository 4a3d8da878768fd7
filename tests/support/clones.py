"""A clone of this repository as a user has it after `make .venv/installed`, without downloading
anything again.

Its environment is a real one of its own, in which the libraries of the present interpreter are
found, and the package and the executor plugins of the clone itself.
"""

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).parents[2]
SCRIPTS = {"plm-embed": "plm_embed.cli.main", "snakemake": "snakemake.cli"}

SCRIPT = """#!{venv}/bin/python
import sys
from {module} import main
if __name__ == "__main__":
    sys.exit(main())
"""


def clone(folder: Path, *, plugin: bool = True) -> Path:
    """Copy what git would clone, with the changes that are not committed, to `folder`, and make its
    environment.
    """
    listed = [
        "git",
        "-C",
        str(ROOT),
        "ls-files",
        "-z",
        "--cached",
        "--others",
        "--exclude-standard",
    ]
    names = subprocess.run(listed, check=True, capture_output=True, text=True).stdout.split("\0")
    for name in filter(None, names):
        source, target = ROOT / name, folder / name
        if not (source.exists() or source.is_symlink()):
            continue  # deleted, and not committed yet
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source, target, follow_symlinks=False)
    subprocess.run(["git", "init", "--quiet", str(folder)], check=True)
    _environment(folder, plugin=plugin)
    return folder


def _environment(folder: Path, *, plugin: bool) -> None:
    venv = folder / ".venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True)
    (site,) = venv.glob("lib/python*/site-packages")
    plugins = [folder / "executors" / name / "src" for name in ("pbs", "slurm")] if plugin else []
    own = [folder / "workflow" / "src", *plugins]
    # .pth files of the other environment do not count here, so what is editable there is not found
    (site / "clone.pth").write_text(
        "\n".join(map(str, [*own, sysconfig.get_path("purelib")])) + "\n"
    )
    for name, module in SCRIPTS.items():
        script = venv / "bin" / name
        script.write_text(SCRIPT.format(venv=venv, module=module))
        script.chmod(0o755)
    for stamp in ("installed", "installed-test"):
        (venv / stamp).touch()


def environment(folder: Path) -> dict[str, str]:
    """The variables of a shell in which the clone's environment is activated."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in ("PYTHONPATH", "PYTHONSAFEPATH", "VIRTUAL_ENV")
    }
    return kept | {"PATH": f"{folder / '.venv' / 'bin'}:{os.environ['PATH']}"}
