"""SaProt in memory: strings of residues and 3Di states, and its checkpoints."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import plm_embed
from plm_embed.errors import InputError, WeightsError
from plm_embed.fingerprint import LongSequences
from plm_embed.inference.reference import reference_vectors
from plm_embed.inference.weights import prepare
from plm_embed.models.checkpoints import model_of
from plm_embed.models.registry import MODELS, find_model
from support.checkpoints import read
from support.families import TINY, add_model, golden, relative, source

MODEL = TINY["saprot"]
KNOWN = golden("saprot")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("saprot")
    prepare(MODEL, source("saprot"), path)
    return path


def test_strings_of_both_have_the_vectors_of_the_formulas(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    add_model(monkeypatch, MODEL)
    with plm_embed.load(MODEL.name, weights=folder, dtype="float32", device="cpu") as model:
        for row, mean in zip(model.embed(KNOWN.sequences), KNOWN.means[:, -1], strict=True):
            assert relative(row, mean) < 1e-5
        (rows,) = model.embed(["MdEvVpQpLrVyQdYaKv"], pooling="per_residue")
        assert rows.shape == (9, 32)
        assert not caplog.records
        assert np.array_equal(model.embed(["MEV", "mev"] * 200)[:2], model.embed(["M#E#V#"] * 2))
        (warning,) = caplog.messages
        assert warning == "residues without 3Di letters are each read as unknown (#)"
        with pytest.raises(InputError, match=r"sequence 1: not_interleaved \(5 letters, "):
            model.embed(["MdEvV"])
        with pytest.raises(InputError, match="these are nucleotides, and the model reads proteins"):
            model.embed(["ACGT" * 50])
        few = LongSequences("skip", 8)
        with pytest.raises(InputError, match=r"too_long \(9 residues\)"):
            model.embed(["MdEvVpQpLrVyQdYaKv"], long_sequences=few)
        assert len(model.embed(["MdEvVpQpLrVyQdYa"], long_sequences=few)) == 1


def test_windows_are_of_residues(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add_model(monkeypatch, MODEL)
    windows = LongSequences("window", 20, 4)
    sequence = max(KNOWN.sequences, key=len)
    with plm_embed.load(MODEL.name, weights=folder, dtype="float32", device="cpu") as model:
        (mean,) = model.embed([sequence], long_sequences=windows)
        (rows,) = model.embed([sequence], pooling="per_residue", long_sequences=windows)
        fingerprint = model.fingerprint("mean", -1, windows)
    both = replace(fingerprint, pooling=("mean", "per_residue"))
    (expected,) = reference_vectors(folder, [sequence], both)
    assert len(rows) == len(sequence) // 2
    assert relative(mean, expected["mean_l3"]) < 1e-5
    assert relative(rows, expected["per_residue_l3"]) < 1e-5


def test_a_checkpoint_is_told_from_esm_2_of_its_shape() -> None:
    assert model_of("mine", source("saprot")).family.name == "saprot"
    assert find_model("westlake-repl/SaProt_650M_AF2") is MODELS["SaProt_650M_AF2"]
    with pytest.raises(WeightsError, match="it says vocab_size: 446, not 33"):
        read(source("saprot"), MODELS["esm2_t3_untrained"])


def test_esm_2_refuses_them_with_a_reason() -> None:
    with pytest.raises(InputError, match=r"interleaved_structure \(9 residues with a 3Di letter"):
        plm_embed.embed(["MdEvVpQpLrVyQdYaKv"], "esm2_t3_untrained", device="cpu")
    kept = ["MEV", "M#E#V#"]
    found = plm_embed.embed(kept, "esm2_t3_untrained", device="cpu", on_error="skip", bar=False)
    assert np.isfinite(found[0]).all() and np.isnan(found[1]).all()
