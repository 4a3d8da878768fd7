"""The manual is true: the blocks of its pages are run here, one after the other, in a clone with an
environment of its own. All pages share one campaign.

What cannot be run as it is written stands in `INSTEAD` of support/manual.py, with what runs in its
place, or nothing, and why. A line that has been run is not run again.
"""

import gzip
import lzma
import subprocess
import zipfile
from pathlib import Path

import pytest
import yaml

from support.clones import ROOT, clone, environment
from support.manual import INSTEAD, Block, blocks, made_smaller

ROWS = 200
"""Rows of the tutorial's table, which has more."""

LATER = ("umap_of_proteins.py", "neighbors.py")
"""The next block runs them."""


def test_the_citation_is_of_this_version() -> None:
    from plm_embed._version import __version__

    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert {"cff-version", "message", "title", "authors", "type"} <= set(cited)
    assert cited["version"] == __version__
    assert {one["doi"] for one in cited["references"]} >= {"10.1126/science.ade2574"}


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clone, with the files that the manual supposes that the user has."""
    folder = clone(tmp_path_factory.mktemp("clone") / "plm-embed")
    for left in ("first", "my_config.yaml"):  # by somebody who has followed the manual here
        subprocess.run(["rm", "-rf", str(folder / left)], check=True)
    demo = (folder / "config" / "demo" / "proteins.fasta").read_bytes()
    records = [b">" + record for record in demo.split(b">")[1:]]
    (folder / "proteins.fasta").write_bytes(b"".join(records[:10]))
    (folder / "query.fasta").write_bytes(records[0])
    (folder / "more.fasta.gz").write_bytes(gzip.compress(demo))
    table = folder / "docs" / "protein_final.csv.xz"
    shorter = lzma.decompress(table.read_bytes()).splitlines(keepends=True)[:ROWS]
    table.write_bytes(lzma.compress(b"".join(shorter)))
    return folder


@pytest.mark.workflow
def test_the_manual_runs_from_the_first_block_to_the_last(here: Path) -> None:
    ran: set[str] = set()
    printed = ""
    for block in blocks():
        if block.language == "bash":
            lines = [made_smaller(INSTEAD.get(line, line)) for line in block.lines]
            text = "\n".join(line for line in lines if line not in ran)
            ran.update(lines)
            printed += run(here, block, ["bash", "-euo", "pipefail", "-c", text])
        elif block.file:
            save(here, block)
        if block.language == "python" and block.file not in LATER:
            run(here, block, ["python", "-c", made_smaller(block.text)])
    for result in (
        "first/esm2_t3_untrained/report.html",
        "umap.html",
        "report.zip",
        "so_far.html",
        "per-protein.h5",
        "one_genome.csv",
        "results/esm2_t3_untrained/report.html",
    ):
        assert (here / result).stat().st_size > 1000, result
    with zipfile.ZipFile(
        here / "report.zip"
    ) as shown:  # what `snakemake --report` shows is the report itself
        folder = here / "results" / "esm2_t3_untrained"
        raw = [name for name in shown.namelist() if name.startswith("report/data/raw/")]
        for mine in ("report.html", "skipped.tsv"):
            (held,) = [name for name in raw if name.endswith(f"/{mine}")]
            assert shown.read(held) == (folder / mine).read_bytes()
    nearest = printed.partition("rank ")[2].splitlines()  # by neighbors.py
    assert "hemagglutinin" in nearest[1].lower()
    tuned = ["snakemake", "--configfile", "finetuned.yaml", "--cores", "1", "-n"]
    run(here, Block("", "bash", "finetuned"), tuned)


def save(here: Path, block: Block) -> None:
    """A block that the user saves as a file."""
    path, text = here / block.file, made_smaller(block.text)
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.name == "tutorial.yaml":  # the campaign of the other pages, under another name
        shared = yaml.safe_load((here / "my_config.yaml").read_text(encoding="utf-8"))
        assert yaml.safe_load(text) == shared | {"results": "results"}
    path.write_text(text, encoding="utf-8")


def run(here: Path, block: Block, command: list[str]) -> str:
    place = environment(here) | {
        "PLM_EMBED_WEIGHTS": str(here / "weights_cache"),  # not in the user's own folder
        "NUMBA_DISABLE_JIT": "1",  # umap's functions, which take longer to compile than to run
    }
    done = subprocess.run(command, cwd=here, env=place, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (
        f"{block.page}: {block.first}\n{done.stdout[-3000:]}{done.stderr[-3000:]}"
    )
    return done.stdout
