"""The demo's campaign, as Snakemake runs it: where its results lie, and what is in them."""

import hashlib
from pathlib import Path

from plm_embed.jobs.completion_record import Completion, read_completion
from plm_embed.master.validation_record import Validation, read_validation

MODEL = "esm2_t3_untrained"
MASTER = f"results/{MODEL}/master_esm2_embeddings.h5"
GATHERED = f"results/{MODEL}/records.parquet"
"""The goal of a test that looks at vectors alone."""
TABLE = {
    "path": "config/demo/proteins.csv",
    "id": "protein_id",
    "sequence": "sequence",
    "keep": ["assembly_id", "protein_name"],
}
INDEX = f"results/{MODEL}/master_esm2_embeddings.parquet"
ONE_THREAD = ("--cores", "2", "--set-threads", "embed=1")


def digests(folder: Path) -> dict[str, str]:
    files = (MASTER, INDEX, f"results/{MODEL}/records.parquet")
    return {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in files}


def completion_records(folder: Path) -> list[Completion]:
    paths = sorted((folder / "results" / MODEL / "embedded").glob("*.json"))
    return [read_completion(path) for path in paths]


def parts(folder: Path) -> list[Path]:
    return list(folder.glob(f"results/{MODEL}/store/*/parts/[!.]*.h5"))


def rows_in_store(folder: Path) -> int:
    """Vectors in all parts, by their names; a vector that was computed twice counts twice."""
    return sum(int(path.name.split("-")[2]) for path in parts(folder))


def report(folder: Path) -> Validation:
    found = read_validation(folder / "results" / MODEL / "validation.json")
    assert found
    return found
