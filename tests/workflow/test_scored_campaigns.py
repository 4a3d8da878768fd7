"""Campaigns with scores, from the configuration to the exports."""

import random
import re
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
import yaml
from click.testing import CliRunner

import plm_embed
from plm_embed.cli.main import group
from plm_embed.errors import PlmEmbedError, StoreError
from plm_embed.fingerprint import SCORES
from plm_embed.io.json_files import write_sealed
from plm_embed.keys import key
from plm_embed.master.validation_record import read_validation
from plm_embed.models.weights import HEAD, read_record
from plm_embed.reading.exports import export
from plm_embed.store.store import fingerprint_folders
from support.campaign_runs import snakemake, working_folder

pytestmark = pytest.mark.workflow

MODEL = "esm2_t3_untrained"
LETTERS = "LAGVSERTIDPKQNFYMHWC"
WINDOWS = {"policy": "window", "max_residues": 60, "overlap": 20}


def sequences() -> dict[str, str]:
    draw = random.Random(3)
    lengths = [1, 5, 17, 30, 30, 44, 59, 60, 61, 90, 110]
    made = {f"p{i}": "".join(draw.choices(LETTERS, k=n)) for i, n in enumerate(lengths)}
    return made | {"again": made["p3"]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished campaign with all scores, and windows."""
    folder = working_folder(tmp_path_factory.mktemp("scored"), buckets=1)
    lines = [f">{id}\n{sequence}\n" for id, sequence in sequences().items()]
    (folder / "p.fasta").write_text("".join(lines) + ">bad\nMK1\n")
    done = run(folder, list(SCORES))
    assert done == 0
    return folder


def run(folder: Path, scores: list[str], *options: str) -> int:
    embedding = {"scores": scores, "long_sequences": WINDOWS}
    config = {"inputs": ["p.fasta"], "weights_folder": "weights", "embedding": embedding}
    (folder / "scored.yaml").write_text(yaml.safe_dump(config | {"model": MODEL}))
    path = str(folder / "scored.yaml")
    done = snakemake(folder, *options, "--cores", "1", "--configfile", path)
    print(done.stdout)
    return done.returncode


def test_scores_are_in_the_index_the_master_and_the_store(folder: Path) -> None:
    records = sequences()
    results = folder / "results" / MODEL
    expected = plm_embed.score([*records.values()], MODEL, scores=SCORES, long_sequences=WINDOWS)
    index = pq.read_table(results / "master_esm2_embeddings.parquet")
    assert index.column_names[:9] == [
        *("id", "cache_key", "row", "length", "source", "number", *SCORES),
    ]
    of_id = {line["id"]: line for line in index.to_pylist()}
    assert of_id.keys() == records.keys()
    for place, id in enumerate(records):
        for name in SCORES:
            assert np.float32(of_id[id][name]) == expected[name][place], (id, name)
    with plm_embed.open(results) as embeddings:
        assert embeddings.names == ["mean_l3"]
        for id, sequence in records.items():
            row = np.array([of_id[id]["row"]])
            for name in SCORES:
                assert embeddings.scores(name, row)[0] == np.float32(of_id[id][name])
            assert bytes(embeddings.keys[row[0]]).decode() == key(sequence)
        whole = {name: embeddings.scores(name) for name in SCORES}
        with pytest.raises(PlmEmbedError, match=r"no score likelihood; it has log_likelihood"):
            embeddings.scores("likelihood")
    with plm_embed.open(results / "store") as stored:
        for name in SCORES:
            assert np.array_equal(stored.scores(name), whole[name])


def test_vectors_have_the_bits_of_those_without_scores(folder: Path) -> None:
    records = sequences()
    vectors = plm_embed.embed([*records.values()], MODEL, long_sequences=WINDOWS)
    with plm_embed.open(folder / "results" / MODEL) as embeddings:
        assert np.array_equal(embeddings.get(records), vectors.astype(np.float16))


def test_every_score_is_computed_again_by_the_reference(folder: Path) -> None:
    proof = read_validation(folder / "results" / MODEL / "validation.json")
    assert proof and proof.status == "passed"
    checked = [spot.representation for spot in proof.spot_checks]
    assert checked.count("log_likelihood") == checked.count("entropy") == 11
    assert checked.count("pseudo_perplexity") >= 7  # those in one piece
    assert max(spot.relative_l2 for spot in proof.spot_checks) < 1e-3
    report = (folder / "results" / MODEL / "report.html").read_text(encoding="utf-8")
    assert '"name": "log_likelihood", "numbers": [' in report, "a color of the map"
    assert "entropy, mean entropy (nats) of" in report
    told = CliRunner().invoke(group, ["summary", str(folder / "results")]).output
    assert "\nscores: log_likelihood, entropy, pseudo_perplexity\n" in told
    assert "11 sequences recomputed" in told
    CliRunner().invoke(group, ["validate", str(folder / "results"), "--spot-checks", "1"])
    proof = read_validation(folder / "results" / MODEL / "validation.json")
    assert proof and proof.status == "passed" and not proof.not_compared
    masked = [s.key for s in proof.spot_checks if s.representation == "pseudo_perplexity"]
    assert key(sequences()["p0"]) in masked


def test_exports_have_the_columns(folder: Path, tmp_path: Path) -> None:
    master = folder / "results" / MODEL / "master_esm2_embeddings.h5"
    export(master, "csv", tmp_path / "a.csv")
    table = pyarrow.csv.read_csv(tmp_path / "a.csv")
    index = pq.read_table(master.with_suffix(".parquet"))
    for name in SCORES:
        assert np.allclose(table[name].to_numpy(), index[name].to_numpy())


def test_a_changed_score_is_noticed(folder: Path) -> None:
    master = folder / "results" / MODEL / "master_esm2_embeddings.h5"
    before = master.read_bytes()
    with h5py.File(master, "r+", locking=False) as file:
        file["entropy"][3] += 1e-3
    with plm_embed.open(master) as embeddings, pytest.raises(StoreError, match="row 3 of entropy"):
        embeddings.scores("entropy")
    done = CliRunner().invoke(group, ["validate", str(folder / "results"), "--spot-checks", "0"])
    assert isinstance(done.exception, StoreError)
    assert "row 3 of entropy: differs from its part" in str(done.exception)
    master.write_bytes(before)


def test_a_campaign_without_scores_computes_its_own_vectors(folder: Path) -> None:
    """And going back computes nothing."""
    results = folder / "results" / MODEL
    (with_scores,) = fingerprint_folders(results / "store")
    master = f"results/{MODEL}/master_esm2_embeddings.h5"
    assert run(folder, [], master) == 0
    assert len(fingerprint_folders(results / "store")) == 2
    index = pq.read_schema(results / "master_esm2_embeddings.parquet")
    assert not {*SCORES} & {*index.names}
    parts = sorted((with_scores / "parts").iterdir())
    assert run(folder, list(SCORES), master) == 0
    assert sorted((with_scores / "parts").iterdir()) == parts
    assert "log_likelihood" in pq.read_schema(results / "master_esm2_embeddings.parquet").names


def test_the_plan_says_what_masked_passes_cost(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    records = [f">p{i}\n{LETTERS[i] * (100 + 100 * (i % 2))}\n" for i in range(20)]
    (folder / "masked.fasta").write_text("".join(records))
    for scores, tokens in (("[pseudo_perplexity]", "509,040"), ("[entropy]", "3,040")):
        settings = f"embedding={{scores: {scores}}}"
        inputs = ["inputs=masked.fasta", f"model={MODEL}"]
        arguments = ["plan", "--device", "A100", "--config", settings, *inputs]
        done = CliRunner().invoke(group, arguments, catch_exceptions=False)
        assert done.exit_code == 0, done.output
        assert re.search(rf"A100 +{tokens} ", done.output)
        assert ("167 times" in " ".join(done.output.split())) == (tokens == "509,040")


def test_what_cannot_have_scores_is_refused_before_any_job(folder: Path) -> None:
    scores = {"embedding": {"scores": ["entropy"]}, "inputs": ["p.fasta"]}
    done = snakemake(folder, "-n", model="prot_t5_xl_uniref50", results="other", **scores)
    assert done.returncode == 1
    assert "embedding.scores: prot_t5_xl_uniref50 gives no probabilities" in done.stdout
    done = snakemake(folder, "-n", results="other", embedding={"scores": ["likelihood"]})
    assert "embedding.scores[0]: 'likelihood' is not one of ['log_likelihood'" in done.stdout
    (folder / "t.csv").write_text("id,sequence,entropy\na,MKT,1\n")
    table = {"path": "t.csv", "keep": ["entropy"]}
    done = snakemake(folder, "-n", results="other", **scores | {"inputs": [table]})
    assert "keep: entropy: is a score of `embedding.scores`" in done.stdout


def test_weights_without_a_head_are_completed(folder: Path) -> None:
    """As an earlier version prepared them: when they are prepared, and when a job needs them."""
    weights = read_record(folder / "results" / MODEL)
    assert weights and weights.folder
    prepared = Path(weights.folder)
    options = {"embedding": {"scores": ["entropy"]}, "inputs": ["p.fasta"]}
    options |= {"results": "third", "weights_folder": "weights"}
    for target in (f"third/{MODEL}/weights.json", f"third/{MODEL}/embedded/0000.json"):
        (prepared / HEAD).unlink()
        write_sealed(prepared / "manifest.json", replace(weights, head_sha256=None, folder=None))
        done = snakemake(folder, target, "--cores", "1", **options)
        assert done.returncode == 0, done.stdout
        assert (prepared / HEAD).is_file()
