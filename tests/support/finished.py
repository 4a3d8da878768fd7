"""A finished campaign for the tests of what is said about one."""

from pathlib import Path

from plm_embed.inference.settings import Settings
from plm_embed.inference.weights import prepare
from plm_embed.io.json_files import write_sealed
from plm_embed.keys import bucket_names
from plm_embed.master.gather import gather
from plm_embed.master.validate import validate
from plm_embed.models.registry import MODELS
from plm_embed.sequences.deduplicate import deduplicate
from plm_embed.sequences.residues import ResiduePolicy
from plm_embed.sequences.settings import Table
from support import checkpoints
from support.embedded import Embedder

DEMO = Path(__file__).parents[2] / "config" / "demo"
MODEL = "esm2_t3_untrained"


def finished_campaign(root: Path) -> Path:
    """A finished and validated campaign over the demo's proteins; its results folder."""
    folder, weights = root / "results", root / "weights"
    model = folder / MODEL
    sequences = folder / "sequences"
    inputs = [DEMO / "proteins.fasta", DEMO / "proteins.csv"]
    table = Table("protein_id", "sequence", ("assembly_id", "protein_name"))
    deduplicate(
        inputs,
        sequences,
        buckets=3,
        table=table,
        policy=ResiduePolicy(unknown="skip", gaps="remove"),
        memory_mb=1000,
    )
    write_sealed(model / "weights.json", prepare(MODELS[MODEL], checkpoints.DEMO, weights))
    embedder = Embedder(weights, model / "store", Settings(scratch=""))
    for name in bucket_names(3):
        embedder.embed(
            sequences / "buckets" / f"{name}.parquet", model / "embedded" / f"{name}.json"
        )
    master = model / "master_esm2_embeddings.h5"
    outputs = master, master.with_suffix(".parquet"), model / "records.parquet"
    gather(
        sequences,
        model / "embedded",
        model / "store",
        *outputs,
        {"workflow_commit": "0123456789abcdef"},
    )
    validation = validate(master, model / "store", weights, spot_checks=2)
    assert not validation.problems
    return folder
