"""Several models in one campaign: what is refused, and what is asked of each."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from plm_embed.errors import ConfigError
from plm_embed.fingerprint import Fingerprint, LongSequences
from plm_embed.models import registry
from plm_embed.models.registry import MODELS
from plm_embed.sequences.alphabet import DNA
from plm_embed.sequences.summary import write_summary
from plm_embed.workflow.by_model import by_model, weights_folder
from plm_embed.workflow.campaign import check_reuse, master_files
from plm_embed.workflow.config import checked
from plm_embed.workflow.resources import host_memory_mb, job_memory_mb, job_minutes
from support.campaigns import MEAN
from support.made_up_sequences import counted

SMALL, LARGE, BERT = "esm2_t6_8M_UR50D", "esm2_t33_650M_UR50D", "prot_bert"


@pytest.fixture(autouse=True)
def in_a_folder_with_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.fasta").write_text(">a\nMKV\n", encoding="utf-8")
    Path("esm2.pt").touch()
    Path("bert").mkdir()


def of_each(**changes: Any) -> dict[str, dict[str, Any]]:
    config = {"inputs": ["a.fasta"], "model": ["esm2_8m", "ProtBERT"], **changes}
    return by_model(checked(config))


def problems(**changes: Any) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        of_each(**changes)
    return [line.strip() for line in str(caught.value).splitlines()[1:]]


def test_each_model_has_its_settings_and_its_folder() -> None:
    weights = {"facebook/esm2_t6_8M_UR50D": "esm2.pt", "protbert": ""}
    found = of_each(weights=weights, weights_folder="w", embedding={"layers": [-1, 3]})
    assert list(found) == [SMALL, BERT]
    small, bert = found.values()
    assert (small["weights"], bert["weights"]) == ("esm2.pt", "")
    assert (small["store"], bert["store"]) == (f"results/{SMALL}/store", f"results/{BERT}/store")
    assert small["embedding"]["layers"] == [6, 3] and bert["embedding"]["layers"] == [30, 3]
    assert (weights_folder(small), weights_folder(bert)) == (f"w/{SMALL}", f"w/{BERT}")
    assert master_files(bert) == {
        "master": f"results/{BERT}/master_protbert_embeddings.h5",
        "index": f"results/{BERT}/master_protbert_embeddings.parquet",
        "records": f"results/{BERT}/records.parquet",
    }
    shared = of_each(store="both")
    assert {one["store"] for one in shared.values()} == {"both"}


def test_what_a_model_asks_for_is_that_of_a_campaign_of_its_own() -> None:
    several = of_each(weights={SMALL: "esm2.pt"})
    alone = of_each(model="esm2_8m", weights="esm2.pt")
    assert several[SMALL] == alone[SMALL]
    text = of_each(model=f"[{SMALL}, {BERT}]", weights=f'{{"{SMALL}": "esm2.pt"}}')  # --config
    assert text == several


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"model": []}, "model: []: must not be empty"),
        ({"model": ["esm2_8m", 5]}, "model[1]: 5: must be text"),
        ({"model": ["esm2_8m", SMALL]}, f"model: {SMALL}: names {SMALL} twice"),
        ({"model": ["esm2_8m", "esm5"]}, "model: 'esm5' is not known; did you mean"),
        ({"weights": "esm2.pt"}, "weights: esm2.pt: of which of the 2 models? Write `weights: {"),
        ({"weights": {"esm2_650m": ""}}, "weights.esm2_650m: is not a model of this campaign"),
        ({"weights": {"esm2": ""}}, "weights.esm2: is not a model of this campaign"),
        ({"weights": {"8m": "", SMALL: ""}}, f"weights.{SMALL}: names {SMALL} twice"),
        ({"weights": {SMALL: "esm3.pt"}}, "weights: esm3.pt: not found; did you mean esm2.pt?"),
        ({"weights": {SMALL: 3}}, f"weights.{SMALL}: 3: must be text"),
        ({"weights": [3]}, "weights: [3]: must be text or a block of keys"),
        ({"embedding": {"layers": [30]}}, f"embedding.layers: [30]: {SMALL} has layers 0 to 6"),
        ({"embedding": {"layers": [6, -1]}}, "embedding.layers: [6, 6]: names a layer twice, of"),
        (
            {"model": [SMALL, "prott5"], "embedding": {"pooling": ["bos"]}},
            "embedding.pooling: bos: prot_t5_xl_half_uniref50-enc has no <cls> token",
        ),
        (
            {
                "model": [SMALL, "esm1b"],
                "embedding": {"long_sequences": {"policy": "crop", "max_residues": 2000}},
            },
            "embedding.long_sequences.max_residues: 2000: esm1b_t33_650M_UR50S takes at most 1022",
        ),
    ],
)  # fmt: skip
def test_a_mistake_names_the_model(changes: dict[str, Any], expected: str) -> None:
    assert problems(**changes)[0].startswith(expected)


def test_models_of_one_campaign_read_the_same_letters(monkeypatch: pytest.MonkeyPatch) -> None:
    proteins = MODELS[SMALL]
    other = replace(proteins, name="dna", family=replace(proteins.family, alphabet=DNA))
    monkeypatch.setitem(registry._BY_NAME, "dna", other)
    (problem,) = problems(model=[SMALL, BERT, "dna"])
    assert problem == (
        f"model: {BERT} reads protein, dna reads dna: sequences are of one kind; make it several "
        "campaigns"
    )


def test_memory_and_time_are_those_of_the_model(tmp_path: Path) -> None:
    found = of_each(model=[SMALL, LARGE], buckets=1)
    small, large = found[SMALL], found[LARGE]
    folder = tmp_path / "results" / "sequences" / "buckets"
    folder.mkdir(parents=True)
    (folder / "0000.parquet").write_bytes(bytes(3_000_000))
    write_summary(folder.parent, counted(buckets=1, residues=40_000_000))
    assert job_minutes(small, ["0000"]) < 20
    assert job_minutes(large, ["0000"]) > 100
    more = host_memory_mb(LARGE) - host_memory_mb(SMALL)
    assert job_memory_mb(large, ["0000"]) - job_memory_mb(small, ["0000"]) == more > 3000


def earlier(folder: str, model: str) -> str:
    """A store with vectors of a model, by its fingerprint alone."""
    limit = MODELS[model].max_residues
    long = LongSequences("skip", limit) if limit else LongSequences()
    settings = {"storage_dtype": "float16", "long_sequences": long}
    layers = (MODELS[model].layers,)
    made: Fingerprint = replace(MEAN, model=model, layers=layers, pooling=("mean",), **settings)  # type: ignore[arg-type]
    (Path(folder) / made.id / "parts").mkdir(parents=True)
    (Path(folder) / made.id / "fingerprint.json").write_text(made.to_json())
    return folder


def test_an_earlier_result_serves_the_model_whose_vectors_it_holds() -> None:
    one, two, both = earlier("one", SMALL), earlier("two", BERT), earlier("both", BERT)
    earlier(both, SMALL)
    found = of_each(reuse=[one, two, both])
    assert found[SMALL]["reuse"] == [one, both] and found[BERT]["reuse"] == [two, both]
    for settings in found.values():
        check_reuse(settings)
    with pytest.raises(ConfigError, match=f"three: holds vectors of {LARGE}, none of {SMALL}, "):
        of_each(reuse=[one, earlier("three", LARGE)])
