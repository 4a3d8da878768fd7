"""ESM C 6B: its shape, and its layout of shards, on a smaller one, prepared in little memory."""

import json
import subprocess
import sys
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from plm_embed.inference.language_model import LanguageModel
from plm_embed.inference.weights import prepare
from plm_embed.models.checkpoints import model_of, tensor_shapes
from plm_embed.models.registry import MODELS, Model, find_model

WHOLE = MODELS["esmc_6b"]
HUB = {
    "self_attn_layer_norm.": "attn.layernorm_qkv.layer_norm_",
    "self_attn.q_layer_norm.": "attn.q_ln.",
    "self_attn.k_layer_norm.": "attn.k_ln.",
    "self_attn.out_proj.": "attn.out_proj.",
    "final_layer_norm.": "ffn.layer_norm_",
    "fc2.": "ffn.fc2_",
}
FUSED = {
    "attn.layernorm_qkv.weight": [f"self_attn.{part}_proj.weight" for part in "qkv"],
    "ffn.fc1_weight": ["fc_gate.weight", "fc1.weight"],
}

CONVERT = """
import re, sys
from pathlib import Path
import torch
from safetensors import safe_open
from plm_embed.models import checkpoints, weights
from plm_embed.models.checkpoints import model_of
from plm_embed.models.checkpoints import files_of

def memory(kind):
    status = Path("/proc/self/status").read_text()
    return 1024 * int(re.search(rf"{kind}:\\s+(\\d+) kB", status).group(1))

source, output = map(Path, sys.argv[1:])
torch.ones(2).isfinite().all()
model = model_of("my_esmc", source)
before = memory("VmRSS")
checkpoint = checkpoints.read(files_of(source, model), model)
print(weights.write(output, checkpoint.tensors))
print(memory("VmHWM") - before)
"""


def write_shards(folder: Path, model: Model) -> Path:
    """Biohub's layout: bfloat16 here, a layer in each file, and config.json."""
    random = torch.Generator().manual_seed(6)

    def draw(name: str) -> torch.Tensor:
        shape = shapes[name]
        if len(shape) == 1:
            mean = float(name.endswith("weight"))
            return (mean + 0.1 * torch.randn(shape, generator=random)).bfloat16()
        return (torch.randn(shape, generator=random) * shape[1] ** -0.5).bfloat16()

    shapes, files = tensor_shapes(model), defaultdict(dict)
    files["0.safetensors"] = {
        "esmc.embed.weight": draw("embed_tokens.weight"),
        "esmc.transformer.norm.weight": draw("emb_layer_norm_after.weight"),
    }
    for layer in range(model.layers):
        here, there = f"layers.{layer}.", f"esmc.transformer.blocks.{layer}."
        held = files[f"{layer}.safetensors"]
        for published, parts in FUSED.items():
            held[there + published] = torch.cat([draw(here + part) for part in parts])
        fused = [part for parts in FUSED.values() for part in parts]
        for name in shapes:
            part = name.removeprefix(here)
            if name.startswith(here) and part not in fused:
                old = next(old for old in HUB if part.startswith(old))
                held[there + HUB[old] + part.removeprefix(old)] = draw(name)
    folder.mkdir()
    weight_map = {name: file for file, tensors in files.items() for name in tensors}
    index = json.dumps({"weight_map": weight_map})
    (folder / "model.safetensors.index.json").write_text(index)
    config = {"model_type": "esmc", "num_attention_heads": model.heads}
    (folder / "config.json").write_text(json.dumps(config))
    for file, tensors in files.items():
        save_file(tensors, folder / file)
    return folder


def test_it_is_the_published_model() -> None:
    assert find_model("biohub/ESMC-6B") is find_model("esmc-6b") is WHOLE
    assert (WHOLE.layers, WHOLE.dim, WHOLE.heads, WHOLE.hidden) == (80, 2560, 40, 6912)
    numbers = sum(int(np.prod(shape)) for shape in tensor_shapes(WHOLE).values())
    assert round(4 * numbers / 1e9, 2) == pytest.approx(25.41, abs=0.05)  # as published


@pytest.mark.workflow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_shards_are_prepared_in_little_memory_and_compute_right(tmp_path: Path) -> None:
    small = replace(WHOLE, name="my_esmc", layers=12, dim=512, heads=8, ffn_dim=1408)
    source = write_shards(tmp_path / "hub", small)
    model = model_of("my_esmc", source)
    assert (model.layers, model.heads, model.hidden) == (12, 8, 1408)
    size = sum(path.stat().st_size for path in source.glob("*.safetensors"))
    command = [sys.executable, "-c", CONVERT, str(source), str(tmp_path / "tensors")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    sha256, taken = done.stdout.split()
    assert int(taken) < 0.6 * size  # the largest tensor, and its half beside it
    made = prepare(model, source, tmp_path / "weights")
    assert made.weights_sha256 == sha256
    # loaded as in a job, whose self-test compares it with the formulas in float64
    with LanguageModel("my_esmc", tmp_path / "weights", dtype="float32", device="cpu") as loaded:
        vectors = loaded.embed(["MKTAYIAKQRQISFVKSHFSRQ"], bar=False)
    assert vectors.shape == (1, 512) and np.isfinite(vectors).all()
