"""The manual is true: every block of commands in README, tutorial and the pages about extending it
is run here.

They run one after the other, in the order of the pages, in a clone with an environment of its own.
What cannot be run as it is written stands in `INSTEAD`, with what runs in its place, or nothing,
and why. A block that is new fails the test until it is listed in `BLOCKS`.
"""

import gzip
import lzma
import re
import subprocess
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml

from support.clones import ROOT, clone, environment

README, TUTORIAL, EXTENDING, CONFIG = (
    "README.md",
    "docs/tutorial.md",
    "docs/extending.md",
    "config/README.md",
)
PAGES = (README, TUTORIAL, EXTENDING, CONFIG)

POLARIS = "PBS_DEFAULT=polaris-pbs-01.hsn.cm.polaris.alcf.anl.gov"
"""What makes this machine a login node of Polaris."""

BLOCKS = [
    (README, "make demo"),
    (README, "plm-embed run proteins.fasta --model esm2_8m --results first"),
    (README, "inputs: [protein_final.csv, more.fasta.gz]"),
    (README, "make .venv/installed"),
    (README, "python3 -m venv .venv && source .venv/bin/activate"),
    (README, "source .venv/bin/activate"),
    (README, "source .venv/bin/activate"),
    (README, "import plm_embed"),
    (README, "import plm_embed"),
    (README, "plm-embed search results query.fasta --top 10"),
    (README, "from torch.utils.data import DataLoader"),
    (README, "plm-embed export results/esm2_t33_650M_UR50D per-protein.h5 --to uniprot-h5"),
    (README, "plm-embed plan --configfile my_config.yaml"),
    (README, "plm-embed watch results"),
    (README, "plm-embed report results --output so_far.html"),
    (TUTORIAL, "results: tutorial"),
    (TUTORIAL, "plm-embed plan --configfile tutorial.yaml"),
    (TUTORIAL, "snakemake weights --configfile tutorial.yaml --cores 1"),
    (TUTORIAL, "snakemake --configfile tutorial.yaml --cores 2"),
    (TUTORIAL, "pip install umap-learn"),
    (TUTORIAL, "import plotly.express"),
    (TUTORIAL, "python umap_of_proteins.py"),
    (TUTORIAL, "import numpy as np"),
    (TUTORIAL, "python neighbors.py"),
    (EXTENDING, "inputs: [config/demo/proteins.fasta]"),
    (EXTENDING, "base: generic"),
    (EXTENDING, "plm-embed plan --site our_cluster"),
    (CONFIG, "snakemake --cores 4 --configfile my_config.yaml"),
    (CONFIG, "model: [esm2_t33_650M_UR50D, prot_bert]"),
    (CONFIG, "set-threads:"),
]
"""Page and first line of every fenced block, in order."""

INSTEAD: dict[str, tuple[str, str]] = {
    "plm-embed run proteins.fasta --model esm2_8m --results first": (
        "plm-embed run config/demo/proteins.fasta --model esm2_t3_untrained"
        " --set weights=config/demo/esm2_t3_untrained.pt --set buckets=1 --results run",
        "real weights, and hours without a GPU",
    ),
    "plm-embed run protein_final.csv more.fasta.gz --model esm2_650m --id brc_fea_id "
    "--sequence esm2_ready_seq --keep function --results flu": (
        "",
        "test_standalone.py runs a table",
    ),
    "make test": ("make help", "this test is a part of it"),
    "python3 -m venv .venv && source .venv/bin/activate": (
        "",
        "the clone has an environment; this one is as large as CUDA",
    ),
    "pip install -r requirements/cuda.txt": (
        "",
        "3 GB of CUDA libraries; test_requirements.py checks the pins",
    ),
    "pip install --no-deps -e . -e executors/pbs -e executors/slurm": (
        "",
        "make does the same, in every run of continuous integration",
    ),
    "snakemake --profile profiles/local --configfile my_config.yaml": (
        "snakemake --profile profiles/local --configfile my_config.yaml -n",
        "needs GPUs; a dry run reads profile and configuration",
    ),
    "snakemake --profile slurm --configfile my_config.yaml": (
        "",
        "needs SLURM: tests/slurm runs whole campaigns on one",
    ),
    "snakemake --profile pbs --configfile my_config.yaml": (
        f"{POLARIS} snakemake --profile pbs --configfile my_config.yaml -n 2>&1 | grep 'ALCF "
        "Polaris.*to my_project'",
        "needs PBS: tests/pbs runs whole campaigns on a stand-in",
    ),
    "plm-embed export results/esm2_t33_650M_UR50D per-residue.h5 --to "
    "uniprot-h5 --representation per_residue_l33": (
        "",
        "the configuration asks for no per-residue output; test_export.py does",
    ),
    "plm-embed search results query.fasta --top 10": (
        "head -2 config/demo/proteins.fasta > query.fasta; "
        "plm-embed search results query.fasta --top 10",
        "the reader's own file",
    ),
    "plm-embed watch results": ("plm-embed watch results --once", "ends only with the campaign"),
    "pip install umap-learn": ("python -c 'import umap'", "requirements/test.txt installs it"),
}
"""Line: what is run in its place, '' for nothing; and why."""

FILES = {
    "inputs: [protein_final.csv, more.fasta.gz]": "my_config.yaml",
    "results: tutorial": "tutorial.yaml",
    "import plotly.express": "umap_of_proteins.py",
    "import numpy as np": "neighbors.py",
    "import plm_embed": "read.py",
    "from torch.utils.data import DataLoader": "train.py",
    "inputs: [config/demo/proteins.fasta]": "finetuned.yaml",
    "base: generic": "profiles/our_cluster/site.yaml",
    "model: [esm2_t33_650M_UR50D, prot_bert]": "",
    "set-threads:": "",
}
"""Blocks that are the content of a file, by their first line. '': a piece of a file, which has to
be YAML.
"""

SMALLER = {
    "esm2_t33_650M_UR50D": "esm2_t3_untrained",  # 2.5 GB to download, and hours without a GPU
    "esm2_t6_8M_UR50D": "esm2_t3_untrained",
    'weights: ""': "weights: config/demo/esm2_t3_untrained.pt",
    "weights: my_finetuned.pt": "weights: config/demo/esm2_t3_untrained.pt",
    "buckets: 64": "buckets: 3",
    "--id P0DTC2": "--id WXH67530.1",
    "--ids protein_1,protein_2": "--ids WXH67530.1,FLUASM_00001_PB2",
    '["protein_1", "protein_2"]': '["WXH67530.1", "FLUASM_00001_PB2"]',
}
"""What stands for a real model here: the demo's, and ids of the demo's records."""


class Block(NamedTuple):
    page: str
    language: str
    text: str

    @property
    def first(self) -> str:
        return self.text.splitlines()[0]


def blocks() -> Iterator[Block]:
    for page in PAGES:
        text = (ROOT / page).read_text(encoding="utf-8")
        for found in re.finditer(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
            yield Block(page, found[1], found[2])


def commands(block: Block) -> str:
    """What is run of a block of shell commands."""
    return "\n".join(
        INSTEAD[line][0] if line in INSTEAD else line for line in block.text.splitlines()
    )


def test_every_block_is_known() -> None:
    assert [(block.page, block.first) for block in blocks()] == BLOCKS
    lines = {line for block in blocks() for line in block.text.splitlines()}
    assert set(INSTEAD) <= lines, "no longer in the manual"
    assert set(FILES) <= {first for _, first in BLOCKS}
    for block in blocks():
        assert block.language in ("bash", "python", "yaml"), block.first


def test_laptop_slurm_and_polaris_take_five_lines_each() -> None:
    text = (ROOT / README).read_text(encoding="utf-8")
    for title in ("On a laptop", "On SLURM", "On Polaris"):
        section = re.search(rf"^## {title}\n(.*?)^## ", text, re.MULTILINE | re.DOTALL)
        assert section
        first = re.search(r"^```bash\n(.*?)^```$", section[1], re.MULTILINE | re.DOTALL)
        assert first and len(first[1].splitlines()) <= 5


def test_links_lead_somewhere() -> None:
    for page in [ROOT / name for name in PAGES] + [ROOT / "docs" / "architecture.md"]:
        for target in re.findall(r"\]\(([^)]+)\)", page.read_text(encoding="utf-8")):
            if not target.startswith(("http:", "https:")):
                assert (page.parent / target.partition("#")[0]).exists(), f"{page}: {target}"


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
    table = lzma.decompress((folder / "docs" / "protein_final.csv.xz").read_bytes())
    (folder / "protein_final.csv").write_bytes(b"".join(table.splitlines(keepends=True)[:400]))
    fasta = (folder / "config" / "demo" / "proteins.fasta").read_bytes()
    (folder / "more.fasta.gz").write_bytes(gzip.compress(fasta))
    return folder


@pytest.mark.workflow
def test_the_manual_runs_from_the_first_block_to_the_last(here: Path) -> None:
    for block in blocks():
        text = block.text if block.language != "bash" else commands(block)
        for words, smaller in SMALLER.items():
            text = text.replace(words, smaller)
        if block.language == "bash":
            run(here, block, ["bash", "-euo", "pipefail", "-c", text])
        else:
            write(here, block, text)
    for result in (
        "umap.html",
        "report.zip",
        "so_far.html",
        "per-protein.h5",
        "tutorial/esm2_t3_untrained/report.html",
    ):
        assert (here / result).stat().st_size > 1000, result
    with zipfile.ZipFile(
        here / "report.zip"
    ) as shown:  # what `snakemake --report` shows is the report itself
        (mine,) = [name for name in shown.namelist() if name.startswith("report/data/raw/")]
        page = here / "results" / "esm2_t3_untrained" / "report.html"
        assert shown.read(mine) == page.read_bytes()
    assert "hemagglutinin" in said(here, "python neighbors.py").splitlines()[1].lower()
    said(here, "snakemake --configfile finetuned.yaml --cores 1 -n")


def write(here: Path, block: Block, text: str) -> None:
    if block.language == "yaml":
        assert isinstance(yaml.safe_load(text), dict)
    if FILES[block.first]:
        path = here / FILES[block.first]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    if block.page == README and block.language == "python":
        run(here, block, ["python", FILES[block.first]])


def run(here: Path, block: Block, command: list[str]) -> str:
    # what `plm_embed.embed` makes of weights stays out of the user's own folder
    place = environment(here) | {"PLM_EMBED_WEIGHTS": str(here / "weights_cache")}
    done = subprocess.run(command, cwd=here, env=place, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (
        f"{block.page}: {block.first}\n{done.stdout[-3000:]}{done.stderr[-3000:]}"
    )
    return done.stdout


def said(here: Path, line: str) -> str:
    return run(here, Block("", "bash", line), ["bash", "-c", line])
