"""ESM-2, ESM-1b and ESM-1v: one alphabet of tokens, two architectures, three names; and SaProt,
which is ESM-2 with tokens of its own.

The arithmetic is fair-esm 2.0.0's (`esm/model/esm2.py`, `esm/model/esm1.py`, `esm/modules.py`), the
tokens are those of `Alphabet.from_architecture("ESM-1b")` in its `esm/data.py`. '.' and '-' follow
the letters there; they are gaps, and never embedded. SaProt's tokens are those of `load_esm_saprot`
in utils/esm_loader.py of westlake-repl/SaProt.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from plm_embed.models.family import (
    Encoder,
    Family,
    Head,
    Learned,
    Names,
    Reference,
    Rotary,
    Vocabulary,
)
from plm_embed.sequences.residues import PROTEIN_3DI

if TYPE_CHECKING:
    import torch

    from plm_embed.models.registry import Model

CLS, PAD, EOS, MASK = 0, 1, 2, 32
ROWS = 33
"""Rows of the embedding table."""
VOCABULARY = Vocabulary("LAGVSERTIDPKQNFYMHWCXBUZO", first=4, prefix=(CLS,), suffix=(EOS,))


def fair_esm_states(
    model: "Model",
    tensors: Mapping[str, "torch.Tensor"],
    sequences: Sequence[str],
    layers: Sequence[int],
) -> list[dict[int, "torch.Tensor"]]:
    """Return representations (L + 2, D) of each sequence after each of `layers`, fp32, by
    fair-esm's own modules, one sequence at a time.

    The layers are loaded one after another, so that the memory needed is that of one layer, and
    even the 15B model can be checked on an ordinary machine. What is computed is `esm.ESM2.forward`
    / `esm.ProteinBertModel.forward`; a test compares with those on whole models.
    """
    import torch
    from esm.modules import ESM1bLayerNorm, TransformerLayer

    def part(prefix: str) -> dict[str, torch.Tensor]:
        names = [name for name in tensors if name.startswith(prefix)]
        return {name.removeprefix(prefix): tensors[name].float() for name in names}

    def norm(name: str, x: torch.Tensor) -> torch.Tensor:
        module = ESM1bLayerNorm(model.dim)
        module.load_state_dict(part(f"{name}."))
        normed: torch.Tensor = module(x)
        return normed

    def embed(ids: NDArray[np.int64]) -> torch.Tensor:
        x = tensors["embed_tokens.weight"].float()[ids]  # (T, D)
        if model.family.encoder.token_dropout:
            x = x * (1 - 0.15 * 0.8)
        if "embed_positions.weight" in tensors:
            x = x + tensors["embed_positions.weight"].float()[PAD + 1 : PAD + 1 + len(x)]
        before = "emb_layer_norm_before"
        return norm(before, x) if f"{before}.weight" in tensors else x

    with torch.inference_mode():
        tokenize = model.family.tokenizer.within(tensors).tokenize
        states = [embed(tokenize(sequence).astype(np.int64)) for sequence in sequences]
        by_layer = [{0: x} if 0 in layers else {} for x in states]
        block = TransformerLayer(
            model.dim,
            4 * model.dim,
            model.heads,
            add_bias_kv=False,
            use_esm1b_layer_norm=True,
            use_rotary_embeddings="embed_positions.weight" not in tensors,
        ).eval()
        for number in range(1, max(layers) + 1):
            # strict=False: the inverse frequencies of the rotary embedding are a constant buffer,
            # not a weight
            block.load_state_dict(part(f"layers.{number - 1}."), strict=False)
            states = [block(x[:, None])[0][:, 0] for x in states]  # (T, 1, D) inside
            for results, x in zip(by_layer, states, strict=True):
                if number in layers:
                    last = number == model.layers
                    results[number] = norm("emb_layer_norm_after", x) if last else x
    return by_layer


_HUGGING_FACE = {
    "embeddings.word_embeddings": "embed_tokens",
    "embeddings.layer_norm": "emb_layer_norm_before",
    "emb_layer_norm_after": "emb_layer_norm_after",
    "layer.N.attention.LayerNorm": "layers.N.self_attn_layer_norm",
    "layer.N.attention.self.query": "layers.N.self_attn.q_proj",
    "layer.N.attention.self.key": "layers.N.self_attn.k_proj",
    "layer.N.attention.self.value": "layers.N.self_attn.v_proj",
    "layer.N.attention.output.dense": "layers.N.self_attn.out_proj",
    "layer.N.LayerNorm": "layers.N.final_layer_norm",
    "layer.N.intermediate.dense": "layers.N.fc1",
    "layer.N.output.dense": "layers.N.fc2",
}
_FAIR_ESM = {name: name for name in (*_HUGGING_FACE.values(), "embed_positions")}
_NAMES = Names(
    modules=_FAIR_ESM | _HUGGING_FACE,
    prefixes=("esm.", "encoder.", "sentence_encoder."),
    # converters wrote untrained positions into the files of rotary models too
    unused=("lm_head.", "contact_head.", "pooler.", "embeddings.position_embeddings."),
    head={"lm_head.dense": "dense", "lm_head.layer_norm": "layer_norm", "lm_head": "out"},
)

ESM2 = Family(
    name="esm2",
    architecture="esm2",
    tokenizer=VOCABULARY,
    encoder=Encoder(ROWS, Rotary(), token_dropout=None),
    names=_NAMES,
    head=Head(MASK),
    config={
        "arch": "esm2",
        "model_type": "esm",
        "position_embedding_type": "rotary",
        "layer_norm_eps": 1e-5,
        "vocab_size": ROWS,
    },
    required=("token_dropout", "position_embedding_type"),
    reference=Reference("fair-esm", fair_esm_states),
)
ESM1B = replace(
    ESM2,
    name="esm1b",
    architecture="esm1b",
    encoder=Encoder(
        ROWS,
        Learned(1026, offset=PAD + 1),  # 1,024 tokens after the padding index
        token_dropout=None,
        embedding_norm="optional",  # of ESM-1b and ESM-1v only some checkpoints have it
    ),
    names=replace(
        _NAMES,
        modules={**_NAMES.modules, "embeddings.position_embeddings": "embed_positions"},
        unused=_NAMES.unused[:-1],
    ),
    config={
        "arch": "roberta_large",
        "model_type": "esm",
        "position_embedding_type": "absolute",
        "layer_norm_eps": 1e-5,
    },
    required=("token_dropout",),
    max_residues=1022,
    cleared_rows=(MASK,),  # never seen in training, where token dropout blanks it
)
ESM1V = replace(ESM1B, name="esm1v")
SAPROT = replace(
    ESM2,
    name="saprot",
    architecture="saprot",
    # 3 is <unk>: its tokenizer knows none of X, B, U, Z and O, and joins those that follow one
    # another, which here have a token each
    tokenizer=Vocabulary(
        "ACDEFGHIKLMNPQRSTVWY#",
        first=5,
        prefix=(CLS,),
        suffix=(EOS,),
        unknown_letters="XBUZO",
        unknown=3,
        states="pynwrqhgdlvtmfsaeikc#",
    ),
    encoder=replace(ESM2.encoder, rows=446),
    names=replace(_NAMES, modules=_HUGGING_FACE, head={}),
    head=None,  # of pairs, not of residues
    config={**ESM2.config, "vocab_size": 446},
    alphabet=PROTEIN_3DI,
)
