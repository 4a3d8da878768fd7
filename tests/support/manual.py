"""The blocks of commands in the manual, and what the tests do with each line of them."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]

PAGES = (
    "README.md",
    "docs/laptop.md",
    "docs/slurm.md",
    "docs/pbs.md",
    "docs/campaign.md",
    "docs/python.md",
    "docs/reading.md",
    "docs/exporting.md",
    "docs/speed.md",
    "docs/tutorial.md",
    "docs/models.md",
    "docs/containers.md",
    "docs/module.md",
    "docs/extending.md",
    "config/README.md",
    "profiles/README.md",
    "executors/pbs/README.md",
    "executors/slurm/README.md",
    "CONTRIBUTING.md",
)
"""In this order their blocks are run. Other pages have none, which a test holds them to."""

CPU_INDEX = "--extra-index-url https://download.pytorch.org/whl/cpu"
INSTALL_WHEELS = (
    'pip install "$(ls dist/plm_embed-*.whl)[all]" dist/snakemake_executor_plugin_*.whl '
    f"{CPU_INDEX}"
)
PIPX_INSTALL = (
    'PIPX_DEFAULT_BACKEND=pip pipx install "$(ls dist/plm_embed-*.whl)[all]" '
    f'--pip-args="{CPU_INDEX}"'
)
PIPX_INJECT = "pipx inject plm-embed dist/snakemake_executor_plugin_*.whl"
UVX = (
    'uvx --python 3.11 --torch-backend cpu --from "$(ls dist/plm_embed-*.whl)[all]" plm-embed run '
    "proteins.fasta --model esm2_8m"
)

UNTRAINED = "--model esm2_t3_untrained --set weights=config/demo/esm2_t3_untrained.pt"

PARSED = (
    # the environment of the tests is active
    "source .venv/bin/activate",
    # test_standalone.py runs a table
    "plm-embed run protein_final.csv more.fasta.gz --model esm2_650m --id-column brc_fea_id "
    "--sequence-column esm2_ready_seq --keep function --results flu",
    # real weights
    "plm-embed run proteins.fasta --model esm2_8m --results first --weights esm2_t6_8M_UR50D.pt",
    "plm-embed weights --model esmc_300m --source ESMC-300M --check",
    # the clone has an environment
    "rm -rf .venv && python3.11 -m venv .venv && source .venv/bin/activate",
    "pip install -r requirements/base.txt # torch and CUDA are those of the base environment",
    # 3 GB of CUDA libraries; test_requirements.py checks the pins
    "pip install -r requirements/cuda.txt",
    # 3 GB of CUDA libraries; test_requirements.py checks its version
    "pip install torch==2.13.0 --index-url https://download.pytorch.org/whl/cu126",
    # make does the same, in every run of continuous integration
    "pip install --no-deps -e . -e executors/pbs -e executors/slurm",
    # a release is not made here
    "git tag v0.2.0",
    # test_release_notes.py makes notes
    "make release-notes TAG=v0.2.0",
    # test_standalone.py makes an environment for the wheel
    "python3.12 -m venv elsewhere && source elsewhere/bin/activate",
    # test_standalone.py runs it
    INSTALL_WHEELS,
    PIPX_INSTALL,
    PIPX_INJECT,
    UVX,
    # needs conda; test_requirements.py checks it
    "conda env create --file environment.yaml",
    # needs conda
    "conda activate plm-embed",
    # needs a cluster
    "plm-embed run config/demo/proteins.fasta --model esm2_t3_untrained --results try --set "
    "buckets=2 --profile slurm",
    "plm-embed watch try --once",
    # needs SLURM: tests/slurm runs whole campaigns on one
    "snakemake --profile slurm --configfile my_config.yaml",
    # the configuration asks for no per-residue output; test_export.py does
    "plm-embed export results/esm2_t33_650M_UR50D per-residue.h5 --to uniprot-h5 --representation "
    "per_residue_l33",
    # requirements/test.txt installs it, and umap_of_proteins.py needs it
    "pip install umap-learn plotly",
    # needs Polaris
    "module use /soft/modulefiles; module load conda; conda activate base",
    "python -m venv --system-site-packages .venv && source .venv/bin/activate",
    # make installs it, in every run
    "pip install ./executors/pbs",
    "pip install ./executors/slurm",
    # needs PBS: tests/pbs
    "snakemake --executor pbs --jobs 20 --pbs-site polaris --pbs-account MyProject",
    # needs SLURM: tests/slurm
    "snakemake --executor slurm-steady --jobs 20 --slurm-steady-requeue",
    # needs a scheduler: tests/slurm, tests/pbs
    "plm-embed profile --output my_cluster",
    "plm-embed run proteins.fasta --model esm2_8m --profile my_cluster",
    # needs an image
    'docker run --rm -v "$PWD:/data" plm-embed run proteins.fasta --model esm2_8m',
    "apptainer run plm-embed.sif run proteins.fasta --model esm2_8m",
    "apptainer run --nv --bind /scratch plm-embed.sif run /scratch/proteins.fasta --model esm2_8m "
    "--results /scratch/results",
    "snakemake --profile slurm --configfile my_config.yaml --software-deployment-method apptainer "
    '--apptainer-args "--nv --bind /scratch"',
    # needs a network; test_module.py runs the workflow as a module
    "snakedeploy deploy-workflow https://github.com/OWNER/plm-embed my_campaign --tag v0.1.0",
    # this is the clone
    "git clone <address of this repository> plm-embed && cd plm-embed",
    # this test is a part of it
    "make test        # style, types, unit tests, whole campaigns, PBS in part: what needs no root",
    "make test-all    # everything; the SLURM part needs root and `make slurm-packages` (Debian, "
    "Ubuntu)",
    # the unit tests run in continuous integration
    "make coverage    # the unit tests again, and the lines that they leave out",
    # continuous integration builds it
    "make docs        # the manual as a site, in site/; refuses broken links",
    # the first page has it too
    "make demo        # makes .venv, installs the pinned packages, runs the whole workflow on the "
    "shipped sample",
)
"""Lines that are only read, below the reason."""

INSTEAD = dict.fromkeys(PARSED, "") | {
    # this test is a part of it
    "make test": "make -n test",
    # real weights have to be downloaded
    "plm-embed run proteins.fasta --model esm2_8m --results first": (
        f"plm-embed run proteins.fasta {UNTRAINED} --set buckets=1 --results first"
    ),
    # needs a network
    "make packages": "make -n packages",
    # needs GPUs; a dry run reads profile and configuration
    "snakemake --profile profiles/local --configfile my_config.yaml": (
        "snakemake --profile profiles/local --configfile my_config.yaml -n"
    ),
    # needs PBS: tests/pbs runs whole campaigns on a stand-in
    "snakemake --profile pbs --pbs-account my_project --configfile my_config.yaml": (
        "snakemake --profile pbs --pbs-account my_project --configfile my_config.yaml -n"
    ),
    # ends only with the campaign
    "plm-embed watch results": "plm-embed watch results --once || test $? = 3",
    # needs a network
    "make gpu-wheels": "make -n gpu-wheels",
    # needs a GPU
    "make gpu-check": "make -n gpu-check",
    # needs a GPU and real weights
    'make gpu-check GPU_CHECK="--weights esm2_t33_650M_UR50D.pt"': "make -n gpu-check",
}
"""Lines that are run in the place of others, '' for nothing, below the reason."""

FILES = {
    "inputs: # a table with its columns, and a FASTA file": "my_config.yaml",
    "results: tutorial": "tutorial.yaml",
    "inputs: [config/demo/proteins.fasta]": "finetuned.yaml",
    "base: generic": "profiles/our_cluster/site.yaml",
}
"""YAML that the user saves as a file, by its first line. Other YAML is a piece of a file."""

SMALLER = {
    "tutorial.yaml": "my_config.yaml",  # the tutorial's campaign is that of the other pages
    "tutorial/": "results/",
    "summary tutorial": "summary results",
    "results: tutorial": "results: results",
    "path: protein_final.csv,": "path: docs/protein_final.csv.xz,",
    "  - more.fasta.gz\n": "",
    "esm2_t33_650M_UR50D": "esm2_t3_untrained",  # 2.5 GB to download, and hours without a GPU
    "esm2_t6_8M_UR50D": "esm2_t3_untrained",
    'load("esm2_650m")': 'load("esm2_t3_untrained", weights="config/demo/esm2_t3_untrained.pt")',
    'weights: ""': "weights: config/demo/esm2_t3_untrained.pt",
    "weights: my_finetuned.pt": "weights: config/demo/esm2_t3_untrained.pt",
    "buckets: 64": "buckets: 1",
    "buckets: 2": "buckets: 1",
    "random_state=1)": "random_state=1, n_epochs=10)",  # of umap; it takes 500
    "--id P0DTC2": "--id WXH67530.1",
    "--ids protein_1,protein_2": "--ids WXH67530.1,FLUASM_00001_PB2",
    '["protein_1", "protein_2"]': '["WXH67530.1", "FLUASM_00001_PB2"]',
}
"""Stand-ins for a real model here: the demo's, and ids of the demo's records."""


class Block(NamedTuple):
    page: str
    language: str
    text: str

    @property
    def first(self) -> str:
        return self.text.splitlines()[0]

    @property
    def file(self) -> str:
        """The name under which the user saves it, '' if not at all. Python says it in a comment."""
        found = re.fullmatch(r"# (\w+\.py)", self.first)
        return found[1] if found else FILES.get(self.first, "")

    @property
    def lines(self) -> list[str]:
        return [line for line in self.text.splitlines() if line]


def blocks(pages: tuple[str, ...] = PAGES) -> Iterator[Block]:
    """The fenced blocks of the pages, in order."""
    for page in pages:
        text = (ROOT / page).read_text(encoding="utf-8")
        for found in re.finditer(r"^ *```(\w*)\n(.*?)^ *```$", text, re.MULTILINE | re.DOTALL):
            yield Block(page, found[1], found[2])


def made_smaller(text: str) -> str:
    """With the demo's model in place of real ones."""
    for words, smaller in SMALLER.items():
        text = text.replace(words, smaller)
    return text
