"""The notebook runs from its first cell to its last, without a network, and is kept with its
outputs and a picture.
"""

import lzma
import os
import shutil
import sys
from pathlib import Path

import nbformat
import pytest

ROOT = Path(__file__).parents[2]
NOTEBOOK = ROOT / "docs" / "notebook.ipynb"


def test_it_is_kept_with_outputs_and_a_picture() -> None:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(notebook)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    kinds = [output.output_type for cell in cells for output in cell.outputs]
    assert "error" not in kinds and len(kinds) > 8
    shown = [kind for cell in cells for output in cell.outputs for kind in output.get("data", ())]
    assert "image/png" in shown and "text/html" in shown
    assert NOTEBOOK.stat().st_size < 400_000


@pytest.mark.workflow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_it_runs(tmp_path: Path, prepared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(ROOT / "config" / "demo", tmp_path / "config" / "demo")
    docs = tmp_path / "docs"
    docs.mkdir()
    shutil.copytree(prepared, docs / "resources" / "weights" / "esm2_t3_untrained")
    table = lzma.decompress((ROOT / "docs" / "protein_final.csv.xz").read_bytes())
    shorter = b"".join(table.splitlines(keepends=True)[:600])
    (docs / "protein_final.csv.xz").write_bytes(lzma.compress(shorter))
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    monkeypatch.setenv("PATH", path)
    monkeypatch.setenv("PLM_EMBED_WEIGHTS", str(tmp_path / "cache"))
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")  # nothing is fetched
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("no_proxy", "127.0.0.1,localhost")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    from nbclient import NotebookClient  # takes its time, and other suites collect this file

    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(docs)}}).execute()
    text = "".join(
        output.get("text", "") for cell in notebook.cells for output in cell.get("outputs", [])
    )
    assert "validation  passed" in text
    (right,) = [line for line in text.splitlines() if line.startswith("right: ")]
    share, guessing = (int(word.strip("%")) for word in right.split() if word.endswith("%"))
    assert share > guessing + 20, right
