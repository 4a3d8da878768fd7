"""ESM C (ESM Cambrian): 300M, 600M and 6B.

Sources: esm/models/esmc.py, esm/layers/blocks.py, esm/layers/attention.py and
esm/layers/transformer_stack.py of evolutionaryscale/esm and Biohub/esm.
"""

from plm_embed.models.family import Encoder, Family, Head, Names, Rotary, Vocabulary

_QKV = ("layers.N.self_attn.q_proj", "layers.N.self_attn.k_proj", "layers.N.self_attn.v_proj")
_GATE_UP = ("layers.N.fc_gate", "layers.N.fc1")
_MODULES: dict[str, str | tuple[str, ...]] = {
    "embed": "embed_tokens",
    "embed_tokens": "embed_tokens",
    "norm": "emb_layer_norm_after",
    # the .pth of the package `esm`
    "blocks.N.attn.layernorm_qkv.0": "layers.N.self_attn_layer_norm",
    "blocks.N.attn.layernorm_qkv.1": _QKV,
    "blocks.N.attn.q_ln": "layers.N.self_attn.q_layer_norm",
    "blocks.N.attn.k_ln": "layers.N.self_attn.k_layer_norm",
    "blocks.N.attn.out_proj": "layers.N.self_attn.out_proj",
    "blocks.N.ffn.0": "layers.N.final_layer_norm",
    "blocks.N.ffn.1": _GATE_UP,
    "blocks.N.ffn.3": "layers.N.fc2",
    # the first safetensors of the hub, whose norms are fused
    "blocks.N.attn.layernorm_qkv.layer_norm_weight": "layers.N.self_attn_layer_norm.weight",
    "blocks.N.attn.layernorm_qkv.layer_norm_bias": "layers.N.self_attn_layer_norm.bias",
    "blocks.N.ffn.layer_norm_weight": "layers.N.final_layer_norm.weight",
    "blocks.N.ffn.layer_norm_bias": "layers.N.final_layer_norm.bias",
    "blocks.N.attn.layernorm_qkv": _QKV,
    "blocks.N.ffn.fc1_weight": tuple(f"{name}.weight" for name in _GATE_UP),
    "blocks.N.ffn.fc2_weight": "layers.N.fc2.weight",
    # transformers' own
    "layers.N.input_layernorm": "layers.N.self_attn_layer_norm",
    **{name: name for name in _QKV},
    "layers.N.self_attn.q_norm": "layers.N.self_attn.q_layer_norm",
    "layers.N.self_attn.k_norm": "layers.N.self_attn.k_layer_norm",
    "layers.N.self_attn.o_proj": "layers.N.self_attn.out_proj",
    "layers.N.post_attention_layernorm": "layers.N.final_layer_norm",
    "layers.N.mlp.gate_proj": "layers.N.fc_gate",
    "layers.N.mlp.up_proj": "layers.N.fc1",
    "layers.N.mlp.down_proj": "layers.N.fc2",
}

ESMC = Family(
    name="esmc",
    architecture="esmc",
    # ESM-2's ids; the table has 64 rows of which 33 are used
    tokenizer=Vocabulary("LAGVSERTIDPKQNFYMHWCXBUZO", first=4, prefix=(0,), suffix=(2,)),
    encoder=Encoder(
        rows=64,
        positions=Rotary(),
        final_norm_bias=False,
        attention_bias=False,
        query_key_norm=True,
        activation="silu",
        gated=True,
        up_bias=False,
        down_bias=False,
        residual_layers=36,
    ),
    names=Names(
        _MODULES,
        prefixes=("esmc.", "transformer."),
        unused=("lm_head.", "sequence_head."),
        head={
            f"{head}.{module}": name
            for head, modules in (
                ("sequence_head", "023"),
                ("lm_head", "023"),
                ("lm_head", ("dense", "layer_norm", "decoder")),
            )
            for module, name in zip(modules, ("dense", "layer_norm", "out"), strict=True)
        },
    ),
    head=Head(mask=32, tied=False),
)
