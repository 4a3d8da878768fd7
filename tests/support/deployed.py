"""A folder as snakedeploy makes it: a configuration, and the rules of a repository by name."""

import shutil
import subprocess
from pathlib import Path

from support.campaign_runs import ROOT


def repository_of_the_rules(folder: Path) -> Path:
    """Files of this clone that Snakemake reads from a repository, tagged v1."""
    shutil.copytree(
        ROOT / "workflow", folder / "workflow",
        ignore=shutil.ignore_patterns("clone", "__pycache__", "*.egg-info"), symlinks=True,
    )  # fmt: skip
    shutil.copytree(ROOT / "envs", folder / "envs")
    subprocess.run(["git", "init", "--quiet", str(folder)], check=True)
    commit(folder, "v1")
    return folder


def commit(folder: Path, tag: str) -> None:
    git = ["git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@example.org"]
    subprocess.run([*git, "add", "."], check=True)
    subprocess.run([*git, "commit", "--quiet", "--message", tag], check=True)
    subprocess.run([*git, "tag", tag], check=True)


def deployed(folder: Path, repository: Path) -> Path:
    """The folder; the rules are those of the repository's tag v1."""
    (folder / "workflow").mkdir(parents=True)
    shutil.copytree(ROOT / "config", folder / "config")
    (folder / "workflow" / "Snakefile").write_text(
        f"""
configfile: "config/config.yaml"

module plm_embed:
    snakefile: "git+file://{repository}/workflow/Snakefile@v1"
    config: config

use rule * from plm_embed
""",
        encoding="utf-8",
    )
    return folder
