"""A campaign of pairs of chains: two columns of a table, and FASTA with colons."""

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

import plm_embed
from plm_embed.cli.main import group
from plm_embed.keys import key
from plm_embed.planning.plan import plan
from plm_embed.reading.exports import export
from support.campaign_runs import snakemake, working_folder
from support.demo import INDEX, MASTER, MODEL, ONE_THREAD, report

pytestmark = pytest.mark.workflow

HEAVY, LIGHT = "EVQLVESGGGLVQPGGSLRLSCAASGFTFS", "DIQMTQSPSSLSASVGDRVTITC"
TABLE = f"""\
name,heavy,light
ab,{HEAVY},{LIGHT}
same,{HEAVY.lower()},{LIGHT}
turned,{LIGHT},{HEAVY}
heavy only,{HEAVY},
"""
FASTA = f">twice\n{LIGHT}:\n{LIGHT}\n>alone\n{HEAVY}\n"
SETTINGS: dict[str, Any] = {
    "inputs": [
        {"path": "pairs.csv", "id": "name", "sequence": "heavy", "partner": "light"},
        "pairs.fasta",
    ],
    "embedding": {"pooling": ["mean", "mean_chain1", "mean_chain2", "per_residue"]},
}


def test_a_campaign_of_pairs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = working_folder(tmp_path / "work", buckets=1)
    (folder / "pairs.csv").write_text(TABLE)
    (folder / "pairs.fasta").write_text(FASTA)
    monkeypatch.chdir(folder)
    planned = plan(settings=[f"inputs={SETTINGS['inputs']}", f"model={MODEL}"])
    chains = [HEAVY + LIGHT, LIGHT + HEAVY, LIGHT + LIGHT]
    tokens = sum(len(residues) + 25 + 2 for residues in chains)
    assert f"3 sequences, {sum(map(len, chains))} residues" in dict(planned.facts)["unique"]
    assert planned.models[0].todo.tokens == tokens

    done = snakemake(folder, *ONE_THREAD, **SETTINGS)
    assert done.returncode == 0, done.stdout
    proof, results = report(folder), folder / "results" / MODEL
    assert proof.status == "passed" and len(proof.spot_checks) == 3 * 4
    records = pq.read_table(results / "records.parquet").to_pylist()
    assert {record["id"]: record["reason"] for record in records if record["reason"]} == {
        **{"heavy only": "empty", "alone": "not_a_pair"}
    }
    index = {line["id"]: line for line in pq.read_table(folder / INDEX).to_pylist()}
    assert index["ab"]["row"] == index["same"]["row"] != index["turned"]["row"]
    assert index["ab"]["cache_key"] == key(f"{HEAVY}:{LIGHT}")
    first = index["ab"]["first_chain_length"]
    assert (first, index["ab"]["length"]) == (len(HEAVY), len(HEAVY + LIGHT))

    check_vectors(folder / MASTER, first)
    export(folder / MASTER, "uniprot-h5", folder / "chains.h5", "per_residue_l3")
    with h5py.File(folder / "chains.h5") as file:
        assert len(file["twice"]) == 2 * len(LIGHT)
    (folder / "query.fasta").write_text(f">query\n{HEAVY}:{LIGHT}\n>alone\n{HEAVY}\n")
    shown = CliRunner().invoke(group, ["search", str(folder / MASTER), "query.fasta", "--top=1"])
    assert shown.exit_code == 0, shown.output
    assert "query\t1\t1.000000\tab" in shown.output
    page = (results / "report.html").read_text()
    assert 25 * "G" in page and "mean over the residues of the first chain" in page
    check_other_settings(folder)
    check_import(folder)


def check_vectors(path: Path, first: int) -> None:
    with plm_embed.open(path) as master:
        kind = master.fingerprint
        assert kind.linker == 25 * "G" and master.metadata["linker"] == kind.linker
        for pooling in ("mean", "mean_chain1", "mean_chain2"):
            (vector,) = plm_embed.embed(
                [(HEAVY, LIGHT)], MODEL, pooling=pooling, linker=kind.linker, threads=1
            )
            stored = master.get(["ab"], f"{pooling}_l3")[0]
            assert np.array_equal(stored, vector.astype(np.float16))
        matrix = master.per_residue("ab").astype(np.float64)
        assert len(matrix) == len(HEAVY + LIGHT)
        chains = {"mean": matrix, "mean_chain1": matrix[:first], "mean_chain2": matrix[first:]}
        for pooling, rows in chains.items():
            assert np.allclose(master.get(["ab"], f"{pooling}_l3")[0], rows.mean(0), atol=2e-3)
        nearest = master.nearest(sequences=[("query", (HEAVY, LIGHT))], k=1).to_pylist()
        assert {line["id"] for line in nearest} == {"ab", "same"}
        assert nearest[0]["query"] == "query" and nearest[0]["similarity"] > 0.999999


def check_other_settings(folder: Path) -> None:
    again = snakemake(folder, *ONE_THREAD, **SETTINGS)
    assert "Nothing to be done" in again.stdout
    longer = SETTINGS["embedding"] | {"linker": 50 * "G"}
    other = snakemake(folder, "-n", **SETTINGS | {"embedding": longer})
    assert "embed" in other.stdout and "deduplicate" not in other.stdout
    assert f"has vectors of other settings (linker {25 * 'G'})" in other.stdout
    refused = snakemake(
        folder, "-n", inputs=[{"path": "pairs.csv", "id": "name", "sequence": "heavy"}],
        embedding={"pooling": ["mean_chain1"]},
    )  # fmt: skip
    assert refused.returncode == 1
    assert "embedding.pooling: mean_chain1: sequences are single chains" in refused.stdout


def check_import(folder: Path) -> None:
    """Pairs that `export` wrote become a store of the same bits, by their keys and by their ids."""
    columns = ["--id-column=name", "--sequence-column=heavy", "--partner-column=light"]
    files = ["--sequences=pairs.csv", "--sequences=pairs.fasta"]
    weights = f"--weights=results/{MODEL}/weights.json"
    with h5py.File(folder / MASTER) as master:
        vectors = dict(
            zip(master["emb_keys"][...].tolist(), map(bytes, master["emb"]), strict=True)
        )
    for kind, name in (("parquet", "pairs.parquet"), ("uniprot-h5", "pairs.h5")):
        export(folder / MASTER, kind, folder / name)
        call = ["import", name, *files, weights, f"--store={kind}"]
        refused = CliRunner().invoke(group, [*call, *columns[:2]])
        assert refused.exit_code == 1 and "is asked for" in str(refused.exception)
        done = CliRunner().invoke(group, [*call, *columns])
        assert done.exit_code == 0 and "3 rows adopted" in done.output, done.output
        imported = {}
        for path in folder.glob(f"{kind}/*/parts/*.h5"):
            with h5py.File(path) as part:
                keys, rows = part["emb_keys"][...], part["representations/mean_l3"]
                imported |= dict(zip(keys.tolist(), map(bytes, rows), strict=True))
        assert imported == vectors
