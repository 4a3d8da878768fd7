"""Golden vectors: what the authors' formulas give in float64, written out family by family.

To make the golden set of a new family, add a tiny model to `support.tiny_models`, and from the
authors' code, with the names of tensors that their files have, an entry to FORMULAS and one to
PUBLISHED, which must agree with the tiny model. Then run

PYTHONPATH=workflow/src:tests python -m support.golden amplify

It writes a checkpoint of random numbers in the published layout, sequences, and `reference.npz`:
token ids, means over the residues after each layer, and all tokens of some sequences. It fails if
the formulas leave a tensor unread that is not one of `heads`. Nothing here is shared with the
engine, or with the reference in models/reference.py.
"""

import json
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

from plm_embed.models.checkpoints import tensor_shapes
from plm_embed.models.registry import Model
from plm_embed.sequences.residues import Alphabet
from support.tiny_models import TINY

SETS = Path(__file__).parents[1] / "data" / "golden_families"
Weights = Mapping[str, Tensor]
Config = Mapping[str, Any]
States = list[Tensor]
"""Representations (T, D): what enters the first block, and what leaves each."""


def layer_norm(
    x: Tensor, weight: Tensor, bias: Tensor | float = 0.0, epsilon: float = 1e-5
) -> Tensor:
    x = x - x.mean(-1, keepdim=True)
    return rms_norm(x, weight, epsilon) + bias


def rms_norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    return x / torch.sqrt((x * x).mean(-1, keepdim=True) + epsilon) * weight


def gelu(x: Tensor) -> Tensor:
    return x / 2 * (1 + torch.erf(x / math.sqrt(2)))


def gelu_tanh(x: Tensor) -> Tensor:
    return x / 2 * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def silu(x: Tensor) -> Tensor:
    return x * torch.sigmoid(x)


def heads_of(x: Tensor, heads: int) -> Tensor:
    """(T, H d) -> (H, T, d)."""
    return x.view(len(x), heads, -1).transpose(0, 1)


def attention(q: Tensor, k: Tensor, v: Tensor, scale: float, bias: Tensor | float = 0.0) -> Tensor:
    """(H, T, d) each -> (T, H d)."""
    mixed = torch.softmax(q @ k.transpose(1, 2) * scale + bias, -1) @ v
    return mixed.transpose(0, 1).flatten(1)


def angles(length: int, width: int) -> Tensor:
    """(T, d / 2): position times 10000^(-2 i / d)."""
    frequencies = 10000.0 ** (-torch.arange(0, width, 2).double() / width)
    return torch.outer(torch.arange(length).double(), frequencies)


def rotate_halves(x: Tensor) -> Tensor:
    """esm/rotary_embedding.py: number i of a head and number i + d / 2."""
    angle = angles(x.shape[1], x.shape[2])
    first, second = x.chunk(2, -1)
    return torch.cat(
        (first * angle.cos() - second * angle.sin(), second * angle.cos() + first * angle.sin()), -1
    )


def rotate_neighbors(x: Tensor) -> Tensor:
    """llama's apply_rotary_emb: numbers 2 i and 2 i + 1 of a head as one complex number."""
    angle = angles(x.shape[1], x.shape[2])
    pairs = torch.view_as_complex(x.reshape(*x.shape[:2], -1, 2))
    return torch.view_as_real(pairs * torch.polar(torch.ones_like(angle), angle)).flatten(2)


def bert(w: Weights, c: Config, ids: Tensor) -> States:
    """transformers, modeling_bert.py; with Wqkv, bert_layers.py of DNABERT-2."""
    heads, epsilon = c["num_attention_heads"], c["layer_norm_eps"]
    w = {name.removeprefix("bert."): tensor for name, tensor in w.items()}
    mosaic = "encoder.layer.0.attention.self.Wqkv.weight" in w

    def linear(name: str, x: Tensor) -> Tensor:
        return x @ w[f"{name}.weight"].T + w.get(f"{name}.bias", 0.0)

    def norm(name: str, x: Tensor) -> Tensor:
        return layer_norm(x, w[f"{name}.weight"], w[f"{name}.bias"], epsilon)

    x = w["embeddings.word_embeddings.weight"][ids]
    x = x + w["embeddings.token_type_embeddings.weight"][0]
    bias: Tensor | float = 0.0
    if mosaic:
        at = torch.arange(len(ids)).double()
        slopes = torch.tensor(alibi_slopes(heads), dtype=torch.float64)
        bias = -slopes[:, None, None] * (at[:, None] - at).abs()
    else:
        x = x + w["embeddings.position_embeddings.weight"][: len(ids)]
    x = norm("embeddings.LayerNorm", x)
    states = [x]
    for number in range(c["num_hidden_layers"]):
        layer = f"encoder.layer.{number}"
        if mosaic:
            parts = linear(f"{layer}.attention.self.Wqkv", x).chunk(3, -1)
        else:
            parts = tuple(
                linear(f"{layer}.attention.self.{name}", x) for name in ("query", "key", "value")
            )
        q, k, v = (heads_of(part, heads) for part in parts)
        mixed = attention(q, k, v, q.shape[-1] ** -0.5, bias)
        x = norm(
            f"{layer}.attention.output.LayerNorm",
            x + linear(f"{layer}.attention.output.dense", mixed),
        )
        if mosaic:
            gate, up = linear(f"{layer}.mlp.gated_layers", x).chunk(2, -1)
            x = norm(f"{layer}.mlp.layernorm", x + linear(f"{layer}.mlp.wo", gelu(gate) * up))
        else:
            y = gelu(linear(f"{layer}.intermediate.dense", x))
            x = norm(f"{layer}.output.LayerNorm", x + linear(f"{layer}.output.dense", y))
        states.append(x)
    return states


def alibi_slopes(heads: int) -> list[float]:
    """Press et al.: of a number that is no power of two, those of the power below it, then every
    other one of the power above it.
    """
    power = 2 ** int(math.log2(heads))
    slopes = [2 ** (-8 * (head + 1) / power) for head in range(power)]
    return slopes + (alibi_slopes(2 * power)[::2][: heads - power] if heads > power else [])


def t5(w: Weights, c: Config, ids: Tensor) -> States:
    """transformers, modeling_t5.py."""
    epsilon, half = c["layer_norm_epsilon"], c["relative_attention_num_buckets"] // 2
    exact, farthest = half // 2, c["relative_attention_max_distance"]
    at = torch.arange(len(ids))
    distance = at - at[:, None]  # key - query
    near = distance.abs()
    steps = (near.clamp(min=1) / exact).double().log() / math.log(farthest / exact)
    # 1e-9: at a power of the factor the logarithm may round below the whole number that it is
    far = (exact + steps * (half - exact) + 1e-9).long().clamp(max=half - 1)
    bucket = torch.where(near < exact, near, far) + half * (distance > 0)
    first = "encoder.block.0.layer.0.SelfAttention"
    bias = w[f"{first}.relative_attention_bias.weight"][bucket].permute(2, 0, 1)
    x = w["shared.weight"][ids]
    states = [x]
    for number in range(c["num_layers"]):
        self_attention, dense = (f"encoder.block.{number}.layer.{part}" for part in (0, 1))
        y = rms_norm(x, w[f"{self_attention}.layer_norm.weight"], epsilon)
        q, k, v = (
            heads_of(y @ w[f"{self_attention}.SelfAttention.{name}.weight"].T, c["num_heads"])
            for name in "qkv"
        )
        mixed = attention(q, k, v, 1.0, bias)
        x = x + mixed @ w[f"{self_attention}.SelfAttention.o.weight"].T
        y = rms_norm(x, w[f"{dense}.layer_norm.weight"], epsilon)
        dense += ".DenseReluDense"
        if c["feed_forward_proj"] == "relu":
            y = torch.relu(y @ w[f"{dense}.wi.weight"].T)
        else:
            y = gelu_tanh(y @ w[f"{dense}.wi_0.weight"].T) * (y @ w[f"{dense}.wi_1.weight"].T)
        x = x + y @ w[f"{dense}.wo.weight"].T
        states.append(x)
    states[-1] = rms_norm(x, w["encoder.final_layer_norm.weight"], epsilon)
    return states


def esmc(w: Weights, c: Config, ids: Tensor) -> States:
    """The package esm: models/esmc.py, layers/blocks.py, layers/attention.py."""
    scale = math.sqrt(c["n_layers"] / 36)
    x = w["embed.weight"][ids]
    states = [x]
    for number in range(c["n_layers"]):
        attn, ffn = (f"transformer.blocks.{number}.{part}" for part in ("attn", "ffn"))
        y = layer_norm(x, w[f"{attn}.layernorm_qkv.0.weight"], w[f"{attn}.layernorm_qkv.0.bias"])
        q, k, v = (y @ w[f"{attn}.layernorm_qkv.1.weight"].T).chunk(3, -1)
        q, k = layer_norm(q, w[f"{attn}.q_ln.weight"]), layer_norm(k, w[f"{attn}.k_ln.weight"])
        q, k, v = (heads_of(part, c["n_heads"]) for part in (q, k, v))
        mixed = attention(rotate_halves(q), rotate_halves(k), v, q.shape[-1] ** -0.5)
        x = x + mixed @ w[f"{attn}.out_proj.weight"].T / scale
        y = layer_norm(x, w[f"{ffn}.0.weight"], w[f"{ffn}.0.bias"])
        gate, up = (y @ w[f"{ffn}.1.weight"].T).chunk(2, -1)
        x = x + (silu(gate) * up) @ w[f"{ffn}.3.weight"].T / scale
        states.append(x)
    states[-1] = layer_norm(x, w["transformer.norm.weight"])
    return states


def esm(w: Weights, c: Config, ids: Tensor) -> States:
    """transformers, modeling_esm.py; and that of the published Nucleotide Transformers, of which
    version 2 has a gate.
    """
    epsilon, heads = c["layer_norm_eps"], c["num_attention_heads"]
    rotary = c["position_embedding_type"] == "rotary"

    def linear(name: str, x: Tensor) -> Tensor:
        return x @ w[f"esm.{name}.weight"].T + w.get(f"esm.{name}.bias", 0.0)

    def norm(name: str, x: Tensor) -> Tensor:
        return layer_norm(x, w[f"esm.{name}.weight"], w[f"esm.{name}.bias"], epsilon)

    x = w["esm.embeddings.word_embeddings.weight"][ids]
    if c["token_dropout"]:  # no token is <mask>; with scores, some are
        x = x * (1 - 0.15 * 0.8)
    if not rotary:
        first = c["pad_token_id"] + 1
        x = x + w["esm.embeddings.position_embeddings.weight"][first : first + len(ids)]
    states = [x]
    for number in range(c["num_hidden_layers"]):
        layer = f"encoder.layer.{number}"
        y = norm(f"{layer}.attention.LayerNorm", x)
        q, k, v = (
            heads_of(linear(f"{layer}.attention.self.{name}", y), heads)
            for name in ("query", "key", "value")
        )
        if rotary:
            q, k = rotate_halves(q), rotate_halves(k)
        mixed = attention(q, k, v, q.shape[-1] ** -0.5)
        x = x + linear(f"{layer}.attention.output.dense", mixed)
        y = linear(f"{layer}.intermediate.dense", norm(f"{layer}.LayerNorm", x))
        if y.shape[-1] == 2 * w[f"esm.{layer}.output.dense.weight"].shape[1]:
            gate, up = y.chunk(2, -1)
            y = silu(gate) * up
        else:
            y = gelu(y)
        x = x + linear(f"{layer}.output.dense", y)
        states.append(x)
    states[-1] = norm("encoder.emb_layer_norm_after", x)
    return states


def amplify(w: Weights, c: Config, ids: Tensor) -> States:
    """chandar-lab/AMPLIFY, src/amplify/model: amplify.py, rotary.py, rmsnorm.py; the Embedder in
    src/amplify/inference takes what leaves the last block, before the head's norm.
    """
    heads, epsilon = c["num_attention_heads"], c["norm_eps"]
    x = w["encoder.weight"][ids]
    states = [x]
    for number in range(c["num_hidden_layers"]):
        block = f"transformer_encoder.{number}"
        y = rms_norm(x, w[f"{block}.attention_norm.weight"], epsilon)
        q, k, v = (heads_of(y @ w[f"{block}.{name}.weight"].T, heads) for name in "qkv")
        mixed = attention(rotate_neighbors(q), rotate_neighbors(k), v, q.shape[-1] ** -0.5)
        x = x + mixed @ w[f"{block}.wo.weight"].T
        y = rms_norm(x, w[f"{block}.ffn_norm.weight"], epsilon)
        gate, up = (y @ w[f"{block}.ffn.w12.weight"].T).chunk(2, -1)
        x = x + (silu(gate) * up) @ w[f"{block}.ffn.w3.weight"].T
        states.append(x)
    return states


def bert_head(w: Weights, c: Config, x: Tensor) -> Tensor:
    """transformers, modeling_bert.py: BertLMPredictionHead, tied to the embedding."""
    head = "cls.predictions"
    x = gelu(x @ w[f"{head}.transform.dense.weight"].T + w[f"{head}.transform.dense.bias"])
    norm = (w[f"{head}.transform.LayerNorm.{kind}"] for kind in ("weight", "bias"))
    x = layer_norm(x, *norm, c["layer_norm_eps"])
    return x @ w["bert.embeddings.word_embeddings.weight"].T + w[f"{head}.bias"]


def esmc_head(w: Weights, _: Config, x: Tensor) -> Tensor:
    """The package esm: layers/regression_head.py, after the stack's norm."""
    x = gelu(x @ w["sequence_head.0.weight"].T + w["sequence_head.0.bias"])
    x = layer_norm(x, w["sequence_head.2.weight"], w["sequence_head.2.bias"])
    return x @ w["sequence_head.3.weight"].T + w["sequence_head.3.bias"]


def amplify_head(w: Weights, c: Config, x: Tensor) -> Tensor:
    """chandar-lab/AMPLIFY, src/amplify/model/amplify.py."""
    return (
        rms_norm(x, w["layer_norm_2.weight"], c["norm_eps"]) @ w["decoder.weight"].T
        + w["decoder.bias"]
    )


LOGITS: dict[str, tuple[Callable[[Weights, Config, Tensor], Tensor], int]] = {
    "esmc": (esmc_head, 32),
    "protbert": (bert_head, 4),
    "amplify": (amplify_head, 2),
}
"""Formulas of families that have scores, from the output of the last block to the logits (T, V) of
all tokens, and the id of <mask>. Nothing is written for them; tests compute them.
"""
FORMULAS: dict[str, Callable[[Weights, Config, Tensor], States]] = {
    "esmc": esmc,
    "prott5": t5,
    "prostt5": t5,
    "prostt5_3di": t5,
    "ankh": t5,
    "protbert": bert,
    "amplify": amplify,
    "dnabert": bert,
    "nt_v1": esm,
    "nt_v2": esm,
    "saprot": esm,
}


@dataclass(frozen=True)
class Published:
    """The files of a family as its authors publish them, with the tiny model's sizes.

    words: all tokens in the order of their ids. around: the first and last token of a sequence.
    config: config.json. heads: tensors that no embedding needs. prefixes: what stands before names
    of the family's table that begin so; the first that fits counts.
    """

    words: Sequence[str]
    around: tuple[str, str]
    config: Config
    heads: Mapping[str, tuple[int, ...]]
    prefixes: Mapping[str, str] = field(default_factory=lambda: {"": ""})


PUBLISHED = {
    "amplify": Published(
        words=["<pad>", "<unk>", "<mask>", "<bos>", "<eos>", "|", *"LAGVSERTIDPKQNFYMHWCB"],
        around=("<bos>", "<eos>"),
        config={
            "architectures": ["AMPLIFY"],
            "model_type": "AMPLIFY",
            "vocab_size": 27,
            "hidden_size": 32,
            "num_hidden_layers": 3,
            "num_attention_heads": 2,
            "intermediate_size": 128,  # of which two thirds, up to a multiple of 8, are used: 88
            "hidden_act": "SwiGLU",
            "rms_norm": True,
            "norm_eps": 1e-05,
            "att_bias": False,
            "ffn_bias": False,
            "layer_norm_after_embedding": False,
            "layer_norm_before_last_layer": True,
            "pad_token_id": 0,
            "max_length": 2048,
        },
        heads={"layer_norm_2.weight": (32,), "decoder.weight": (27, 32), "decoder.bias": (27,)},
    ),
    "saprot": Published(
        words=[  # utils/esm_loader.py of westlake-repl/SaProt
            *("<cls>", "<pad>", "<eos>", "<unk>", "<mask>"),
            *map("".join, product("ACDEFGHIKLMNPQRSTVWY#", "pynwrqhgdlvtmfsaeikc#")),
        ],
        around=("<cls>", "<eos>"),
        config={
            "architectures": ["EsmForMaskedLM"],
            "attention_probs_dropout_prob": 0.0,
            "emb_layer_norm_before": False,
            "hidden_act": "gelu",
            "hidden_dropout_prob": 0.0,
            "hidden_size": 32,
            "intermediate_size": 128,
            "layer_norm_eps": 1e-05,
            "mask_token_id": 4,
            "max_position_embeddings": 1026,
            "model_type": "esm",
            "num_attention_heads": 2,
            "num_hidden_layers": 3,
            "pad_token_id": 1,
            "position_embedding_type": "rotary",
            "token_dropout": True,
            "vocab_size": 446,
        },
        heads={
            "lm_head.bias": (446,),
            "lm_head.dense.weight": (32, 32),
            "lm_head.dense.bias": (32,),
            "lm_head.layer_norm.weight": (32,),
            "lm_head.layer_norm.bias": (32,),
        },
        prefixes={"embeddings.": "esm.", "": "esm.encoder."},
    ),
}
"""The families whose golden sets are made here."""
STANDARD = "ACDEFGHIKLMNPQRSTVWY"
"""Letters that every family of proteins has tokens for."""


def random_checkpoint(files: Published, model: Model, seed: int) -> dict[str, Tensor]:
    """Random tensors by their published names: scores are far from flat, no gain is 1."""
    random = torch.Generator().manual_seed(seed)
    shapes, made = tensor_shapes(model), {}
    for published, engine in model.family.names.modules.items():
        engine_names = (engine,) if isinstance(engine, str) else engine
        prefix = next(text for begin, text in files.prefixes.items() if published.startswith(begin))
        for layer in range(model.layers if "N" in published.split(".") else 1):
            for kind in ("weight", "bias"):
                names = [f"{part.replace('.N.', f'.{layer}.')}.{kind}" for part in engine_names]
                if names[0] not in shapes:
                    continue
                rows = sum(shapes[part][0] for part in names)
                drawn = torch.randn((rows, *shapes[names[0]][1:]), generator=random)
                number = published.replace(".N.", f".{layer}.")
                made[f"{prefix}{number}.{kind}"] = scaled(names[0], drawn)
    heads = {key: torch.randn(shape, generator=random) for key, shape in files.heads.items()}
    return made | heads


def scaled(name: str, drawn: Tensor) -> Tensor:
    if drawn.ndim == 1:
        return 0.1 * drawn if name.endswith("bias") else 1 + 0.2 * drawn
    if name.startswith("embed_"):
        return drawn
    return drawn * (2.0 if "q_proj" in name or "k_proj" in name else 1.0) / drawn.shape[-1] ** 0.5


def tokenize(files: Published, sequence: str, width: int) -> list[int]:
    """Token ids of a sequence whose tokens are of `width` letters each."""
    numbers = {word: number for number, word in enumerate(files.words)}
    first, last = (numbers[word] for word in files.around)
    words = [sequence[start : start + width] for start in range(0, len(sequence), width)]
    if absent := {word for word in words if word[0] in STANDARD} - numbers.keys():
        sys.exit(f"golden: {', '.join(sorted(absent))} are not among the words of the family")
    return [first, *(numbers.get(word, numbers["<unk>"]) for word in words), last]


def write_set(name: str, folder: Path, sequences: Mapping[str, str], seed: int = 1) -> None:
    """Write the golden set of a family into a folder."""
    model, files, formulas = TINY[name], PUBLISHED[name], FORMULAS[name]
    rows = model.family.encoder.rows
    counts = {"words": len(files.words), "vocab_size": files.config.get("vocab_size", rows)}
    for key, shape in files.heads.items():
        counts |= {f"heads: {key}": size for size in shape if size != model.dim}
    if wrong := [f"{key}: {count}" for key, count in counts.items() if count != rows]:
        sys.exit(f"golden: the encoder of {name} has {rows} rows, but {', '.join(wrong)}")
    folder.mkdir(parents=True, exist_ok=True)
    state = random_checkpoint(files, model, seed)
    (folder / "config.json").write_text(json.dumps(files.config, indent=2) + "\n")
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    lines = [f">{title}\n{sequence}\n" for title, sequence in sequences.items()]
    (folder / "sequences.fasta").write_text("".join(lines))
    weights = {key: tensor.double() for key, tensor in state.items()}
    width = model.family.alphabet.letters_of_residue
    ids = [torch.tensor(tokenize(files, sequence, width)) for sequence in sequences.values()]

    def lacks(key: str) -> bool:
        """Return whether the formulas give numbers although this tensor holds none."""
        spoiled = {**weights, key: weights[key] * math.nan}
        return bool(formulas(spoiled, files.config, ids[0])[-1].isfinite().all())

    if unread := [key for key in weights if key not in files.heads and lacks(key)]:
        sys.exit(f"golden: the formulas of {name} do not read {', '.join(unread)}")
    states = [torch.stack(formulas(weights, files.config, row)).numpy() for row in ids]
    short = sorted(range(len(ids)), key=lambda i: len(ids[i]))[2:6]
    np.savez_compressed(
        folder / "reference.npz",
        input_ids=np.concatenate(ids).astype(np.int32),
        token_counts=np.array([len(row) for row in ids]),
        mean=np.stack([each[:, 1:-1].mean(1) for each in states]),
        mean_with_special=np.stack([each[-1].mean(0) for each in states]),
        **{f"tokens_{i}": states[i] for i in short},
    )


def read_fasta(path: Path) -> dict[str, str]:
    records = (record.split("\n", 1) for record in path.read_text().split(">")[1:])
    return {title: residues.replace("\n", "") for title, residues in records}


def sequences_of(alphabet: Alphabet) -> dict[str, str]:
    """Proteins; where the alphabet has states, with one behind each residue, any will do."""
    proteins = read_fasta(SETS / "protbert" / "sequences.fasta")
    if not (known := alphabet.states):
        return proteins
    made = {}
    for title, residues in proteins.items():
        states = (x if x in known else known[-1] for x in residues[::-1].lower())
        made[title] = "".join(map("".join, zip(residues, states, strict=True)))
    return made


def main(names: Sequence[str], sets: Path = SETS) -> None:
    tables: dict[str, Mapping[str, object]] = {
        "FORMULAS": FORMULAS,
        "PUBLISHED": PUBLISHED,
        "support.tiny_models.TINY": TINY,
    }
    for name in names or [""]:
        if empty := [table for table, families in tables.items() if name not in families]:
            known = ", ".join(sorted(set.intersection(*map(set, tables.values()))))
            sys.exit(f"golden: family {name!r} is not in {', '.join(empty)}; complete: {known}")
        write_set(name, sets / name, sequences_of(TINY[name].family.alphabet))
        print(*sorted((sets / name).iterdir()), sep="\n")


if __name__ == "__main__":
    main(sys.argv[1:])
