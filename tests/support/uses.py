"""What users do with finished results: they read, export, report and sum up."""

import hashlib
import shutil
from pathlib import Path

from support.said import TIMES
from support.tiny_campaign import read_as_users_do, run_command
from support.tiny_steps import VECTORS

_USES: dict[Path, str] = {}


def use(folder: Path) -> tuple[str, str]:
    """Do with finished results what users do; which use failed, and what was read and said."""
    said = []
    for exported in folder.glob("vectors.npy*"):
        exported.unlink()
    uses = {
        "export": ["export", VECTORS, "vectors.npy", "--to", "npy"],
        "report": ["report", "results"],
        "summary": ["summary", "results"],
    }
    for name in ("read", *uses):
        status, words = (
            run_command(folder, uses[name]) if name in uses else read_as_users_do(folder)
        )
        if status:
            return name, f"exit status {status}\n{words}" if status != 1 else words
        said.append(words)
    said.append((folder / VECTORS / "report.html").read_text(encoding="utf-8"))
    numbers = said[0] + hashlib.sha256((folder / "vectors.npy").read_bytes()).hexdigest()
    return "", "\n".join([numbers.replace("\n", " "), *(TIMES.sub("", each) for each in said[1:])])


def undisturbed_uses(stages: Path) -> str:
    """What is read and said of the undisturbed results."""
    if stages not in _USES:
        folder = stages / "uses"
        shutil.copytree(stages / "read", folder, dirs_exist_ok=True)
        failed, _USES[stages] = use(folder)
        assert not failed, _USES[stages]
    return _USES[stages]
