"""The notes of a release come from the change log and the wheels, or are refused in one line."""

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CHANGES = """# Changelog

## Unreleased

- Not yet.

## 0.2.0 - 2026-12-01

### Added

- Whales.

## 0.1.0 - 2026-01-02

- The first one.
"""


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    for folder in ("packaging", "workflow/src/plm_embed", "dist"):
        (tmp_path / folder).mkdir(parents=True)
    shutil.copy(ROOT / "packaging" / "release_notes.py", tmp_path / "packaging")
    shutil.copy(ROOT / "Makefile", tmp_path)
    place = "workflow/src/plm_embed/_version.py"
    version = (ROOT / place).read_text(encoding="utf-8")
    (tmp_path / place).write_text(version.replace(version.split('"')[-2], "0.2.0"))
    (tmp_path / "CHANGELOG.md").write_text(CHANGES, encoding="utf-8")
    for name in ("plm_embed-0.2.0", "snakemake_executor_plugin_pbs-0.1.0"):
        (tmp_path / "dist" / f"{name}-py3-none-any.whl").write_bytes(name.encode())
    return tmp_path


def notes(repository: Path, tag: str) -> subprocess.CompletedProcess[str]:
    command = ["make", "--silent", "release-notes", f"TAG={tag}", f"PYTHON={sys.executable}"]
    return subprocess.run(command, cwd=repository, capture_output=True, text=True, check=False)


def test_the_section_of_the_version_and_the_sums_of_the_wheels(repository: Path) -> None:
    done = notes(repository, "v0.2.0")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("# plm-embed 0.2.0 - 2026-12-01\n\n### Added\n\n- Whales.\n")
    assert "Not yet" not in done.stdout and "The first one" not in done.stdout
    for wheel in (repository / "dist").iterdir():
        digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
        assert f"    {digest}  {wheel.name}\n" in done.stdout


def test_what_is_not_ready_is_refused(repository: Path) -> None:
    def refused(tag: str, words: str) -> None:
        done = notes(repository, tag)
        assert done.returncode and not done.stdout
        assert words in done.stderr and "Traceback" not in done.stderr

    refused("v0.1.0", "v0.1.0: this is version 0.2.0; tag it v0.2.0, or change _version.py")
    refused("0.2.0", "0.2.0: this is version 0.2.0; tag it v0.2.0")
    (repository / "dist" / "plm_embed-0.2.0-py3-none-any.whl").rename(
        repository / "dist" / "plm_embed-0.1.9-py3-none-any.whl"
    )
    refused("v0.2.0", "dist: no wheel of version 0.2.0; run make packages")
    changes = CHANGES.replace("0.2.0 - 2026-12-01", "0.2.0 (unreleased)")
    (repository / "CHANGELOG.md").write_text(changes, encoding="utf-8")
    refused("v0.2.0", "CHANGELOG.md: no section '## 0.2.0 - YYYY-MM-DD'; write it")
