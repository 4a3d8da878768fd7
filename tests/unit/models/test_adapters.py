"""LoRA adapters in PEFT's layout, merged into weights as they are adopted."""

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import plm_embed
from plm_embed.errors import WeightsError
from plm_embed.inference.prepare_weights import prepare
from plm_embed.io.files import sha256_file
from plm_embed.models import published
from plm_embed.models.model import Model
from plm_embed.models.registry import MODELS
from plm_embed.models.sources import adapters, checkpoints
from plm_embed.models.sources.source_files import layout_of
from plm_embed.models.weights import load, remedy
from support.checkpoints import TINY_ESM2, random_state, write_fair_esm
from support.families import add_model, relative, source
from support.tiny_models import TINY

CONFIG = {"peft_type": "LORA", "r": 3, "lora_alpha": 6, "bias": "none", "lora_dropout": 0.1}
Tensors = dict[str, torch.Tensor]
QUERY = "esm.encoder.layer.1.attention.self.query"
OURS = "layers.1.self_attn.q_proj.weight"


def pair(module: str, rows: int, columns: int, rank: int = 3, seed: int = 1) -> Tensors:
    """A and B of a module, by the names that PEFT writes."""
    random = np.random.default_rng(seed)
    draw = {"A": (rank, columns), "B": (rows, rank)}
    return {
        f"base_model.model.{module}.lora_{part}.weight": torch.from_numpy(
            0.3 * random.standard_normal(shape, dtype=np.float32)
        )
        for part, shape in draw.items()
    }


def write(folder: Path, tensors: Mapping[str, torch.Tensor], **config: Any) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / adapters.CONFIG).write_text(json.dumps(CONFIG | config))
    save_file(dict(tensors), folder / adapters.TENSORS[0])
    return folder


def formula(tensors: Tensors, module: str, scale: float) -> np.ndarray:
    down, up = (
        tensors[f"base_model.model.{module}.lora_{part}.weight"].double().numpy() for part in "AB"
    )
    return scale * (up @ down)


@pytest.fixture(scope="module")
def state() -> Tensors:
    return random_state(TINY_ESM2, 1)


@pytest.mark.parametrize(
    ("config", "scale"),
    [
        ({}, 6 / 3),
        ({"use_rslora": True}, 6 / 3**0.5),
        ({"alpha_pattern": {"query": 12}, "r": 8, "rank_pattern": {"self.query": 3}}, 12 / 3),
        ({"alpha_pattern": {"uery": 12, r"layer\.0.*query": 9}}, 6 / 3),  # of another module
    ],
)
def test_what_is_merged_is_the_formula(
    config: dict[str, Any], scale: float, state: Tensors, tmp_path: Path
) -> None:
    tensors = pair(QUERY, 32, 32)
    merged = adapters.merge(write(tmp_path, tensors, **config), TINY_ESM2, state)
    wanted = state[OURS].double().numpy() + formula(tensors, QUERY, scale)
    np.testing.assert_allclose(merged[OURS].numpy(), wanted.astype(np.float32), rtol=1.2e-7)
    assert merged[OURS].dtype == torch.float32
    assert all(merged[name] is state[name] for name in state if name != OURS)


def test_half_precision_is_rounded_once(state: Tensors, tmp_path: Path) -> None:
    tensors = pair(QUERY, 32, 32)
    half = {name: tensor.half() for name, tensor in state.items()}
    found = adapters.merge(write(tmp_path, tensors), TINY_ESM2, half)[OURS]
    wanted = half[OURS].double().numpy() + formula(tensors, QUERY, 2)
    assert np.array_equal(found.numpy(), wanted.astype(np.float16))


@pytest.mark.parametrize(
    ("dtype", "bits"), [(torch.float32, 23), (torch.float16, 10), (torch.bfloat16, 7)]
)
def test_numbers_are_rounded_to_the_nearest(dtype: torch.dtype, bits: int) -> None:
    tie, step, little = 2.0 ** -(bits + 1), 2.0**-bits, 2.0**-50
    values = np.array([1, 1 + tie, 1 + tie + little, 1 + tie - little, 1 + step + tie - little])
    wanted = torch.tensor([1, 1, 1 + step, 1, 1 + step], dtype=torch.float64)
    for sign in (1, -1):
        found = adapters.rounded_once(sign * values, dtype)
        assert found.dtype == dtype
        assert torch.equal(found.double(), sign * wanted)
    large = adapters.rounded_once(np.array([1e39, -1e39, 0.0]), dtype)
    assert large.tolist() == [float("inf"), float("-inf"), 0.0]


@pytest.mark.parametrize(
    ("name", "module", "ours"),
    [
        ("dnabert", "bert.encoder.layer.0.attention.self.Wqkv",
         [f"layers.0.self_attn.{part}_proj.weight" for part in "qkv"]),
        ("nt_v2", "esm.encoder.layer.0.intermediate.dense",
         ["layers.0.fc_gate.weight", "layers.0.fc1.weight"]),
        ("prott5", "transformer.encoder.block.0.layer.0.SelfAttention.q",
         ["layers.0.self_attn.q_proj.weight"]),
        ("esmc", "esmc.layers.0.self_attn.q_proj", ["layers.0.self_attn.q_proj.weight"]),
    ],
)  # fmt: skip
def test_modules_of_every_family_are_found(
    name: str, module: str, ours: list[str], tmp_path: Path
) -> None:
    model, where = TINY[name], source(name)
    published = checkpoints.read(where, layout_of(where, model), model).tensors
    base = {each: tensor.float() for each, tensor in published.items()}
    rows, columns = sum(len(base[each]) for each in ours), base[ours[0]].shape[1]
    tensors = pair(module, rows, columns)
    merged = adapters.merge(write(tmp_path, tensors), model, base)
    changes = np.concatenate([(merged[each] - base[each]).double().numpy() for each in ours])
    assert relative(changes, formula(tensors, module, 2)) < 1e-6
    assert all(torch.equal(merged[each], base[each]) for each in base if each not in ours)


def test_a_table_of_embeddings_and_a_pickle(state: Tensors, tmp_path: Path) -> None:
    random = torch.Generator().manual_seed(1)
    table = "base_model.model.esm.embeddings.word_embeddings.lora_embedding_"
    tensors = {
        f"{table}A": torch.randn((3, 33), generator=random),
        f"{table}B": torch.randn((32, 3), generator=random),
    }
    folder = write(tmp_path / "adapter", tensors)
    (folder / adapters.TENSORS[0]).unlink()
    torch.save(tensors, folder / adapters.TENSORS[1])
    found = adapters.merge(folder, TINY_ESM2, state)["embed_tokens.weight"]
    product = (tensors[f"{table}B"].double() @ tensors[f"{table}A"].double()).T
    assert relative((found - state["embed_tokens.weight"]).numpy(), 2 * product.numpy()) < 1e-6


def test_heads_are_left_out_with_a_word(
    state: Tensors, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    tensors = pair(QUERY, 32, 32) | pair("lm_head.dense", 32, 32) | pair("classifier.dense", 32, 32)
    tensors["base_model.model.site_head.out.bias"] = torch.ones(3)
    folder = write(tmp_path, tensors, modules_to_save=["site_head"])
    adapters.merge(folder, TINY_ESM2, state)
    assert "classifier.dense, lm_head.dense, site_head.out: no part of the encoder" in caplog.text


NORM = "base_model.model.esm.encoder.layer.0.LayerNorm.weight"


@pytest.mark.parametrize(
    ("change", "extra", "words"),
    [
        ({"peft_type": "IA3"}, {}, "is of the kind 'IA3'; only LoRA can be merged"),
        ({"use_dora": True}, {}, "is made with DoRA"),
        ({"bias": "all"}, {}, "trains biases too (bias: 'all')"),
        ({"init_lora_weights": "pissa"}, {}, "began by changing the base model's weights"),
        ({"lora_bias": True}, {}, "asks for lora_bias, which can't be merged"),
        ({"base_model_name_or_path": "facebook/esm2_t6_8M_UR50D"}, {},
         "was trained on facebook/esm2_t6_8M_UR50D, but the model asked for is esm2_t2_tiny"),
        ({"r": 4}, {}, "self.query with rank 3, but its adapter_config.json says 4"),
        ({"lora_alpha": None}, {}, "names no r and lora_alpha"),
        ({}, pair(QUERY, 32, 16), "as a matrix of (32, 16), but that of esm2_t2_tiny has (32, 32)"),
        ({}, {"base_model.model.esm.lora_X": torch.ones(1)}, "which is no change of a matrix of"),
        ({"modules_to_save": ["LayerNorm"]}, {NORM: torch.ones(32)}, "which is no change"),
        ({}, pair("esm.encoder.layer.7.attention.self.query", 32, 32), "which is no change of"),
        ({}, {f"base_model.model.{QUERY}.lora_B.weight": torch.ones(32, 2)}, "no two matrices"),
        ({}, {f"base_model.model.{QUERY}.lora_B.weight": torch.full((32, 3), torch.nan)},
         "holds no finite matrix"),
        ({}, pair(QUERY.removeprefix("esm."), 32, 32), f"changes {OURS} twice"),
    ],
)  # fmt: skip
def test_what_cannot_be_merged_is_refused(
    change: dict[str, Any], extra: Tensors, words: str, state: Tensors, tmp_path: Path
) -> None:
    folder = write(tmp_path, pair(QUERY, 32, 32) | extra, **change)
    with pytest.raises(WeightsError) as caught:
        adapters.merge(folder, TINY_ESM2, state)
    assert words in str(caught.value)
    assert str(caught.value).startswith(f"adapter: {folder}")


def test_an_adapter_of_the_head_alone_and_an_empty_folder(state: Tensors, tmp_path: Path) -> None:
    folder = write(tmp_path / "head", pair("lm_head.dense", 32, 32))
    with pytest.raises(WeightsError, match="changes nothing of the encoder of esm2_t2_tiny"):
        adapters.merge(folder, TINY_ESM2, state)
    with pytest.raises(WeightsError, match="holds no adapter in PEFT's layout"):
        adapters.merge(tmp_path, TINY_ESM2, state)


def test_adopted_weights_say_both_sources(
    state: Tensors, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = write_fair_esm(tmp_path / "base.pt", TINY_ESM2, state)
    adapter = write(tmp_path / "adapter", pair(QUERY, 32, 32))
    out = tmp_path / "out"
    made = prepare(TINY_ESM2, base, out, adapter)
    assert made.source.sha256 == sha256_file(base)
    assert made.adapter is not None
    assert made.published == "no"
    assert made.adapter.sha256[:12] in published.caveat(made.model, made)
    assert f"--adapter {adapter}" in remedy(made, out)
    found = load(out)[1][OURS]
    assert torch.equal(found, adapters.merge(adapter, TINY_ESM2, state)[OURS])

    assert prepare(TINY_ESM2, base, out, adapter) == made
    write(adapter, pair(QUERY, 32, 32, seed=2))  # trained further
    with pytest.raises(WeightsError, match="holds other weights"):
        prepare(TINY_ESM2, base, out, adapter)
    with pytest.raises(WeightsError, match="holds other weights"):
        prepare(TINY_ESM2, base, out)
    with pytest.raises(WeightsError, match="is an adapter: name it as `adapter`"):
        prepare(TINY_ESM2, adapter, out)

    add_model(monkeypatch, TINY_ESM2)
    monkeypatch.setenv("PLM_EMBED_WEIGHTS", str(tmp_path / "cache"))
    vectors = [
        plm_embed.embed(["MKTAYIAK"], TINY_ESM2.name, weights=base, adapter=each, dtype="float32")
        for each in (None, adapter)
    ]
    assert relative(vectors[1], vectors[0]) > 0.01
    # trained further, or moved: the cache knows what they hold, not where they lie
    write(adapter, pair(QUERY, 32, 32, seed=3))
    moved = write(tmp_path / "moved", pair(QUERY, 32, 32, seed=2))
    again = [
        plm_embed.embed(["MKTAYIAK"], TINY_ESM2.name, weights=base, adapter=each, dtype="float32")
        for each in (adapter, moved)
    ]
    assert relative(again[0], vectors[1]) > 0.01
    assert np.array_equal(again[1], vectors[1])
    assert len([*(tmp_path / "cache").glob(f"{TINY_ESM2.name}-*/manifest.json")]) == 3
    with pytest.raises(WeightsError, match="is a folder of converted weights"):
        plm_embed.load(TINY_ESM2.name, weights=out, adapter=adapter)


def test_models_with_the_same_weights_share_adapters(tmp_path: Path) -> None:
    def problems(named: str, model: Model) -> str:
        folder = write(tmp_path, pair(QUERY, 32, 32), base_model_name_or_path=named)
        try:
            adapters.files_of(folder, model)
        except WeightsError as error:
            return str(error)
        return ""

    assert not problems("facebook/esm2_t6_8M_UR50D", MODELS["esm2_t6_8M_UR50D"])
    assert not problems("/models/prot_bert", MODELS["prot_bert"])
    assert not problems("my own", MODELS["prot_bert"])
    assert not problems("Rostlab/ProstT5", MODELS["ProstT5-3Di"])
    assert problems("Rostlab/ProstT5_fp16", MODELS["ProstT5-3Di"])
    assert "was trained on /models/prot_bert_bfd" in problems(
        "/models/prot_bert_bfd", MODELS["prot_bert"]
    )
