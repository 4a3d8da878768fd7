"""Half precision in every family: what it cannot hold is refused, and weights are rounded once."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from plm_embed.errors import PlmEmbedError
from plm_embed.fingerprint import StorageDtype
from plm_embed.inference import golden_vectors, loading
from plm_embed.inference.inputs import named_sequences
from plm_embed.inference.language_model import LanguageModel
from plm_embed.inference.weights import prepare
from plm_embed.io.files import sha256_file
from plm_embed.models import weights
from support.families import TINY, add_model, golden, source

LAST_NORMS = "emb_layer_norm_after.weight", "layers.2.final_layer_norm.weight"


@pytest.fixture(scope="module", params=TINY)
def published(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, Path]:
    """A family, and the weights folder of its golden checkpoint."""
    folder = tmp_path_factory.mktemp("as_published")
    prepare(TINY[request.param], source(request.param), folder)
    return request.param, folder


def changed(published: Path, folder: Path, change: dict[str, torch.Tensor]) -> Path:
    """A copy of a weights folder that has some other tensors."""
    shutil.copytree(published, folder)
    manifest, tensors, _ = weights.load(folder)
    path = folder / weights.TENSORS
    changed = dict(tensors) | change
    weights.write(path, {name: weights.Stored.of(changed[name]) for name in changed})
    golden_vectors.seal(
        folder, replace(manifest, weights_sha256=sha256_file(path), bytes=path.stat().st_size)
    )
    return folder


def test_what_float16_cannot_store_is_refused(
    published: tuple[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last norm makes numbers above 65,504; bfloat16 and float32 hold them."""
    name, as_published = published
    add_model(monkeypatch, TINY[name])
    _, tensors, _ = weights.load(as_published)
    (norm, *_) = (each for each in LAST_NORMS if each in tensors)
    folder = changed(as_published, tmp_path / "large", {norm: tensors[norm].float() * 2.0**20})
    sequence = golden(name).sequences[0]
    with LanguageModel(TINY[name].name, folder, device="cpu", dtype="float32", threads=1) as model:
        named = list(named_sequences([sequence], model.policy))
        asked: dict[StorageDtype, object] = {}
        for storage in ("bfloat16", "float32"):
            fingerprint = replace(model.fingerprint(), storage_dtype=storage)
            asked[storage] = model.vectors(named, fingerprint)[0]
            assert np.abs(asked[storage]["mean_l3"]).max() > 65_504  # type: ignore[index]
        fingerprint = replace(model.fingerprint(), storage_dtype="float16")
        with pytest.raises(PlmEmbedError, match=r"mean_l3 .* not finite or too large to store"):
            model.vectors(named, fingerprint)


def test_weights_in_half_precision_are_rounded_once(
    published: tuple[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkpoint in float16 or bfloat16 gives the bits of the same numbers in float32, in
    every precision of the computation.
    """
    monkeypatch.setattr(loading, "PAIR_TOKENS", 60)  # eight models are loaded here
    name, as_published = published
    add_model(monkeypatch, TINY[name])
    _, tensors, _ = weights.load(as_published)
    floats = {key: each for key, each in tensors.items() if each.is_floating_point()}
    sequences = list(golden(name).sequences[:3])
    for stored in (torch.float16, torch.bfloat16):
        half = {key: each.to(stored) for key, each in floats.items()}
        same = {key: each.float() for key, each in half.items()}
        folders = [
            changed(as_published, tmp_path / f"{stored}_{number}", each)
            for number, each in enumerate((half, same))
        ]
        for dtype in ("float32", "bfloat16"):
            found = []
            for folder in folders:
                with LanguageModel(
                    TINY[name].name, folder, device="cpu", dtype=dtype, threads=1
                ) as model:  # type: ignore[arg-type]
                    found.append(model.embed(sequences, bar=False))
            assert np.array_equal(*found)
