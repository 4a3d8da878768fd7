"""The executors as packages that others install: source archive, wheel, and the tests in them."""

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SITES = {"sites/generic.yaml", "sites/polaris.yaml"}
BUILD = "import sys; from setuptools import build_meta; print(build_meta.build_{}(sys.argv[1]))"


def build(kind: str, folder: Path, output: Path) -> Path:
    """Return the archive, sdist or wheel, of the project in a folder."""
    command = [sys.executable, "-c", BUILD.format(kind), str(output)]
    done = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True)
    return output / done.stdout.splitlines()[-1]


@pytest.mark.parametrize(
    ("folder", "package", "files", "tests"),
    [
        ("pbs", "snakemake_executor_plugin_pbs", SITES, "test_recorded.py"),
        ("slurm", "snakemake_executor_plugin_slurm_steady", set(), "test_reasons.py"),
    ],
)
def test_an_executor_is_built_and_serves_without_this_repository(
    folder: str, package: str, files: set[str], tests: str, tmp_path: Path
) -> None:
    """The wheel comes from the source archive, whose tests run on it; its manual is for any
    workflow.
    """
    # shared modules are links
    shutil.copytree(ROOT / "executors", tmp_path / "copy", symlinks=True)
    archive = build("sdist", tmp_path / "copy" / folder, tmp_path)
    shutil.rmtree(tmp_path / "copy")
    with tarfile.open(archive) as content:
        content.extractall(tmp_path / "source", filter="data")
    (source,) = (tmp_path / "source").iterdir()
    with zipfile.ZipFile(build("wheel", source, tmp_path)) as wheel:
        wheel.extractall(tmp_path / "wheel")
    shutil.rmtree(source / "src")
    modules = {path.name for path in (ROOT / "executors" / folder / "src" / package).glob("*.py")}
    built = tmp_path / "wheel" / package
    names = {str(path.relative_to(built)) for path in built.rglob("*") if path.is_file()}
    assert names == {*modules, *files, "py.typed"}
    (metadata,) = (tmp_path / "wheel").glob("*.dist-info/METADATA")
    assert "embed" not in metadata.read_text(encoding="utf-8").replace("plm-embed developers", "")
    assert list(metadata.parent.rglob("LICENSE"))
    program = (
        f"import sys, pytest, {package} as p; assert p.__file__.startswith({str(built)!r}); "
        f"sys.exit(pytest.main(['-q', 'tests/{tests}']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=source,
        env=os.environ | {"PYTHONPATH": str(tmp_path / "wheel")},
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == 0, done.stdout
