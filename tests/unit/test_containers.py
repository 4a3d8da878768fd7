"""The recipes of images: one base, one list of files, and all that the installation reads."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCKER = (ROOT / "containers" / "Dockerfile").read_text(encoding="utf-8")
APPTAINER = (ROOT / "containers" / "plm-embed.def").read_text(encoding="utf-8")


def copied() -> set[str]:
    """Files of a clone that the Apptainer image gets."""
    (section,) = re.findall(r"%files\n(.*?)\n\n", APPTAINER, re.DOTALL)
    pairs = [line.split() for line in section.splitlines()]
    assert all(target == f"/opt/plm-embed/{source}" for source, target in pairs)
    return {source for source, _ in pairs}


def test_both_images_are_made_alike() -> None:
    (base,) = re.findall(r"^FROM (.*)", DOCKER, re.MULTILINE)
    assert f"\nFrom: {base}\n" in APPTAINER
    for line in ("procps gcc libc6-dev", "TORCH_INDEX=https://download.pytorch.org/whl/cpu"):
        assert line in DOCKER and line in APPTAINER
    lines = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert lines[1] == "*" and copied() == {line[1:] for line in lines if line.startswith("!")}


def test_the_image_has_what_the_installation_reads() -> None:
    script = (ROOT / "containers" / "install.sh").read_text(encoding="utf-8")
    (local,) = re.findall(r"^pip install --no-deps (.*)$", script, re.MULTILINE)
    read = {"containers/install.sh", "requirements/cpu.txt", "requirements/cuda.txt"}
    for folder in local.split():
        project = ROOT / folder
        read |= {f"{folder}/{name}" for name in ("pyproject.toml", "README.md", "LICENSE")}
        read |= {str(path.relative_to(ROOT)) for path in project.glob("*/src")}
    clone = ROOT / "workflow" / "src" / "plm_embed" / "clone"
    links = [path for path in (*clone.iterdir(), *clone.glob("workflow/*")) if path.is_symlink()]
    assert len(links) == 6
    read |= {str(path.resolve().relative_to(ROOT)) for path in links}
    assert all((ROOT / path).exists() for path in read | copied())
    assert {str(Path(path)).split("/")[0] for path in read} == copied()
