"""A whole campaign per family, step by step, with its tiny model in the published layout."""

import json
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pyarrow.parquet as pq
import pytest

import plm_embed
from plm_embed.errors import PlmEmbedError
from plm_embed.fingerprint import LongSequences
from plm_embed.inference.inputs import named_sequences
from plm_embed.inference.language_model import LanguageModel, embed_like
from plm_embed.master.validation_record import read_validation
from plm_embed.models.registry import Model
from plm_embed.models.weights import UNPUBLISHED, read_record
from plm_embed.reading.exports import export
from plm_embed.sequences.residues import ResiduePolicy
from support import tiny_campaign, tiny_steps
from support.campaign_runs import snakemake, working_folder
from support.checkpoints import TINY_ESM2, random_state, write_hugging_face
from support.demo import ONE_THREAD
from support.families import TINY, add_model, golden, source, write_dnabert_s

pytestmark = pytest.mark.workflow


PROTEIN = [name for name, model in TINY.items() if model.family.alphabet.name == "protein"]


@pytest.mark.parametrize("name", PROTEIN)
def test_a_campaign_from_the_checkpoint_to_the_report(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = TINY[name]
    add_model(monkeypatch, model)
    tiny_campaign.load_package()
    tiny_campaign.make_inputs(tmp_path, 3)
    printed = run_campaign(tmp_path, name, source(name))
    check_campaign(tmp_path, model, printed)
    folder = tmp_path / "results" / model.name
    with plm_embed.open(folder / f"master_{name}_embeddings.h5") as embeddings:
        assert embeddings.dim == model.dim
        assert len(embeddings) > 10


def test_a_campaign_in_8_bit_products(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, dtype = TINY["esmc"], ["--settings", '{"compute_dtype": "int8"}']
    add_model(monkeypatch, model)
    tiny_campaign.load_package()
    tiny_campaign.make_inputs(tmp_path, 3)
    run_campaign(tmp_path, "esmc", source("esmc"), {"weights": dtype, "embed": dtype})
    folder = tmp_path / "results" / model.name
    proof = read_validation(folder / "validation.json")
    assert proof is not None and proof.status == "passed"
    assert min(spot.cosine for spot in proof.spot_checks) > 0.99
    with plm_embed.open(folder / "master_esmc_embeddings.h5") as embeddings:
        assert embeddings.fingerprint.compute_dtype == "int8"
        stored, vector = embeddings.fingerprint, embeddings["p0"]
    first = next(named_sequences(tmp_path / tiny_steps.INPUTS[0], ResiduePolicy()))
    assert first.id == "p0"
    weights = tmp_path / f"resources/weights/{model.name}"
    for texts in ([first.sequence], [first.sequence, "MKTAYIAK" * 20]):
        found = plm_embed.embed(texts, model.name, weights=weights, device="cpu", dtype="int8")
        assert np.array_equal(found[0].astype(np.float16), vector)
    _, found = embed_like(stored, stored.representations[0], [first.sequence], weights)
    assert np.array_equal(found[0], vector.astype(np.float32))


def test_a_campaign_of_dna_in_windows_with_three_poolings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DNABERT-S by the layout of its checkpoint."""
    model = TINY["dnabert"]
    add_model(monkeypatch, model)
    tiny_campaign.load_package()
    tiny_campaign.make_inputs(tmp_path, 3, "ACGTacgtNRY", 500)
    long = {"policy": "window", "max_residues": 200, "overlap": 20}
    settings = {"pooling": ["mean", "mean_special", "per_token"], "long_sequences": long}
    options = {
        "deduplicate": ["--residues", '{"alphabet": "dna"}'],
        "embed": ["--settings", json.dumps(settings)],
    }
    printed = run_campaign(tmp_path, "dnabert", write_dnabert_s(tmp_path / "published"), options)
    check_campaign(tmp_path, model, printed)
    folder = tmp_path / "results" / model.name
    with plm_embed.open(folder / "master_dnabert_embeddings.h5") as embeddings:
        pooled = ["mean_l3", "mean_special_l3"]
        assert embeddings.names == [*pooled, "per_token_l3", "per_token_spans"]
        vector, special = (embeddings.get(["p0"], name)[0] for name in pooled)
        assert not np.array_equal(vector, special)
        matrix, spans = embeddings.per_token("p0")
        key = embeddings.nearest(["p0"], k=1)["cache_key"][0].as_py()
        with pytest.raises(PlmEmbedError, match=r"use per_token\(id\)"):
            embeddings.get(["p0"], "per_token_l3")
        with pytest.raises(PlmEmbedError, match="has no representation per_residue"):
            embeddings.per_residue("p0")
    with plm_embed.open(folder / "store") as store:
        assert np.array_equal(store.per_token(key)[1], spans)
    check_exports(folder / "master_dnabert_embeddings.h5", matrix, spans)
    records = pq.read_table(folder / "records.parquet")["events"].to_pylist()
    assert any("windowed=3" in events for events in records)
    weights = tmp_path / f"resources/weights/{model.name}"
    with LanguageModel(model.name, weights, threads=1) as loaded:
        first = next(named_sequences(tmp_path / tiny_steps.INPUTS[0], loaded.policy))
        windows = LongSequences("window", 200, 20)
        again = loaded.embed([first.sequence], pooling="mean_special", long_sequences=windows)
        (rows,) = loaded.embed([first.sequence], pooling="per_token", long_sequences=windows)
    assert np.array_equal(rows.vectors.astype(np.float16), matrix)
    assert np.array_equal(rows.spans, spans)
    assert np.array_equal(again[0].astype(np.float16), special.astype(np.float16))
    proof = read_validation(folder / "validation.json")
    assert proof is not None and len(proof.spot_checks) == 2 * 3


def check_exports(master: Path, matrix: np.ndarray, spans: np.ndarray) -> None:
    for name, wanted in (("per_token_l3", matrix), ("per_token_spans", spans)):
        output = master.with_name(f"{name}.h5")
        export(master, "uniprot-h5", output, name)
        with h5py.File(output) as file:
            assert np.array_equal(file["p0"], wanted)


def run_campaign(
    folder: Path, name: str, weights: Path, options: dict[str, list[str]] | None = None
) -> str:
    """Text that the last step printed."""
    words = {
        tiny_steps.MODEL: TINY[name].name,
        "esm2_embeddings": f"{name}_embeddings",
        "model.pt": str(weights),
    }
    for step in tiny_steps.STEPS:
        for command in tiny_steps.commands(step):
            for old, new in words.items():
                command = [word.replace(old, new) for word in command]  # noqa: PLW2901
            command += (options or {}).get(command[0], [])  # noqa: PLW2901
            status, printed = tiny_campaign.run_command(folder, command)
            assert status == 0, printed
    return printed


def check_campaign(tmp_path: Path, model: Model, printed: str) -> None:
    assert f"license of the weights: {model.license}" in printed  # by summary, the last of all
    report = (tmp_path / "results" / model.name / "report.html").read_text()
    assert model.license in report
    assert model.papers[0][:20] in report
    assert "the published formulas in float64" in report
    record = read_record(tmp_path / "results" / model.name)
    assert record is not None
    assert record.license == model.license


def test_a_campaign_of_a_model_of_your_own(tmp_path: Path) -> None:
    """ESM-2 of a shape that nobody published, by Snakemake and in memory."""
    model = replace(TINY_ESM2, name="my_esm2", layers=4, dim=48, heads=6)
    folder = working_folder(tmp_path / "here", buckets=1)
    weights = write_hugging_face(folder / "tuned", model, random_state(model, 1))
    inputs = ["config/demo/proteins.fasta"]
    done = snakemake(folder, *ONE_THREAD, model=model.name, weights="tuned", inputs=inputs)
    assert done.returncode == 0, done.stdout
    results = folder / "results" / model.name
    report = (results / "report.html").read_text()
    assert UNPUBLISHED in report and "fair-esm" in report
    assert UNPUBLISHED in (results / "ro-crate-metadata.json").read_text()
    record = read_record(results)
    assert record is not None and record.source.path == str(weights)
    with plm_embed.open(results / "master_esm2_embeddings.h5") as master:
        name = next(iter(master))
        stored, length = master[name], master.dim
    sequence = next(
        record.sequence
        for record in named_sequences(folder / inputs[0], ResiduePolicy())
        if record.id == name
    )
    (vector,) = plm_embed.embed([sequence], model=model.name, weights=weights, bar=False)
    assert length == 48
    assert np.allclose(vector, stored, atol=2e-3)
    again = snakemake(folder, "-n", model="my_esm3", weights="absent", inputs=inputs)
    assert again.returncode == 1
    assert "absent does not exist. Name the published file or a Hugging Face folder" in again.stdout


def test_a_campaign_of_residues_with_3di_states(tmp_path: Path) -> None:
    """A checkpoint of SaProt under another name: strings of both, and a table of two columns."""
    folder = working_folder(tmp_path / "here", buckets=1)
    known = golden("saprot")
    both = [sequence for sequence in known.sequences if 20 < len(sequence) < 300]
    records = [f">s{i}\n{sequence}\n" for i, sequence in enumerate(both)]
    (folder / "both.fasta").write_text("".join([*records, ">uneven\nMdEvV\n", ">alone\nMEVQ\n"]))
    rows = [f"t{i}\t{one[::2]}\t{one[1::2].upper()}" for i, one in enumerate(both)]
    table = "\n".join(["id\tsequence\tstates", *rows, "unlike\tMEV\tDVPP\n"])
    (folder / "two.tsv").write_text(table)
    config = {
        "model": "my_saprot",
        "weights": str(source("saprot")),
        "inputs": ["both.fasta", {"path": "two.tsv", "structure": "states"}],
        "embedding": {
            "pooling": ["mean", "per_residue"],
            "long_sequences": {"policy": "window", "max_residues": 40, "overlap": 10},
        },
    }
    (folder / "mine.yaml").write_text(json.dumps(config))
    residues = sum(len(sequence) // 2 for sequence in both) + 4
    status, planned = tiny_campaign.run_command(folder, ["plan", "--configfile", "mine.yaml"])
    assert status == 0 and f"{len(both) + 1} sequences, {residues:,} residues" in planned, planned
    done = snakemake(folder, *ONE_THREAD, "--configfile", str(folder / "mine.yaml"))
    assert done.returncode == 0, done.stdout
    results = folder / "results" / "my_saprot"
    proof = read_validation(results / "validation.json")
    assert proof is not None and proof.status == "passed" and proof.spot_checks
    report = (results / "report.html").read_text()
    assert UNPUBLISHED in report and "residues and 3Di states" in report
    records = {row["id"]: row for row in pq.read_table(results / "records.parquet").to_pylist()}
    assert records["alone"]["status"] == "embedded_with_events"
    assert records["alone"]["events"] == "structure_unknown=4"
    assert records["uneven"]["reason"] == "not_interleaved"
    assert records["unlike"]["detail"] == "3 residues, 4 3Di letters"
    windows = LongSequences("window", 40, 10)
    weights = Path(str(read_record(results).folder))  # type: ignore[union-attr]
    with plm_embed.open(results) as master, LanguageModel("my_saprot", weights) as model:
        assert len(master) == len(set(both)) + 1
        for i, sequence in enumerate(both):
            assert np.array_equal(master[f"s{i}"], master[f"t{i}"])
            assert len(master.per_residue(f"s{i}")) == len(sequence) // 2
            assert records[f"t{i}"]["length"] == len(sequence) // 2
        again = model.embed(both, long_sequences=windows, bar=False)
        stored = master.get([f"t{i}" for i in range(len(both))])
        assert np.allclose(again, stored, atol=2e-3)
        assert master.nearest(sequences=both[:1], k=1)["similarity"][0].as_py() > 0.999
