"""ESM C 300M and 600M (ESM Cambrian).

Sources: esm/models/esmc.py, esm/layers/blocks.py, esm/layers/attention.py and
esm/layers/transformer_stack.py of evolutionaryscale/esm and Biohub/esm.
"""

from plm_embed.models.encoder.description import Encoder, Rotary
from plm_embed.models.encoder.layouts import Names, Published
from plm_embed.models.encoder.vocabulary import Vocabulary
from plm_embed.models.families.build_family import protein_family

_QKV = ",".join(f"layers.N.self_attn.{part}_proj.weight" for part in "qkv")
_GATE_UP = "layers.N.fc_gate.weight,layers.N.fc1.weight"
_BLOCK = r"(?:esmc\.)?transformer\.blocks.N."
_NATIVE = r"(?:esmc\.)?layers.N."
_RENAMES = (
    (r"(?:esmc\.)?embed(?:_tokens)?\.weight", "embed_tokens.weight"),
    (r"(?:esmc\.)?(?:transformer\.)?norm\.weight", "emb_layer_norm_after.weight"),
    # the .pth of the package `esm`, and the first safetensors of the hub, whose norms are fused
    *(
        (_BLOCK + theirs, ours)
        for kind in ("weight", "bias")
        for theirs, ours in (
            (
                rf"attn\.layernorm_qkv\.(?:0\.|layer_norm_){kind}",
                f"layers.N.self_attn_layer_norm.{kind}",
            ),
            (rf"ffn\.(?:0\.|layer_norm_){kind}", f"layers.N.final_layer_norm.{kind}"),
        )
    ),
    (_BLOCK + r"attn\.layernorm_qkv\.(?:1\.)?weight", _QKV),
    (_BLOCK + r"attn\.q_ln\.weight", "layers.N.self_attn.q_layer_norm.weight"),
    (_BLOCK + r"attn\.k_ln\.weight", "layers.N.self_attn.k_layer_norm.weight"),
    (_BLOCK + r"attn\.out_proj\.weight", "layers.N.self_attn.out_proj.weight"),
    (_BLOCK + r"ffn\.(?:1\.|fc1_)weight", _GATE_UP),
    (_BLOCK + r"ffn\.(?:3\.|fc2_)weight", "layers.N.fc2.weight"),
    # transformers' own
    *(
        (rf"{_NATIVE}{theirs}\.{kind}", f"layers.N.{ours}.{kind}")
        for kind in ("weight", "bias")
        for theirs, ours in (
            ("input_layernorm", "self_attn_layer_norm"),
            ("post_attention_layernorm", "final_layer_norm"),
        )
    ),
    *(
        (rf"{_NATIVE}{theirs}\.weight", f"layers.N.{ours}.weight")
        for theirs, ours in (
            (r"self_attn\.q_proj", "self_attn.q_proj"),
            (r"self_attn\.k_proj", "self_attn.k_proj"),
            (r"self_attn\.v_proj", "self_attn.v_proj"),
            (r"self_attn\.q_norm", "self_attn.q_layer_norm"),
            (r"self_attn\.k_norm", "self_attn.k_layer_norm"),
            (r"self_attn\.o_proj", "self_attn.out_proj"),
            (r"mlp\.gate_proj", "fc_gate"),
            (r"mlp\.up_proj", "fc1"),
            (r"mlp\.down_proj", "fc2"),
        )
    ),
)

ESMC = protein_family(
    "esmc",
    # ESM-2's ids; the table has 64 rows of which 33 are used
    Vocabulary("LAGVSERTIDPKQNFYMHWCXBUZO", first=4, prefix=(0,), suffix=(2,)),
    Encoder(
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
    Published("esmc", Names(r"(?:lm_head|sequence_head)\.|.*(?:_extra_state|inv_freq)$", _RENAMES)),
    papers=(
        "ESM Team. ESM Cambrian: Revealing the mysteries of proteins with unsupervised learning. "
        "EvolutionaryScale (2024). https://evolutionaryscale.ai/blog/esm-cambrian",
    ),
    license="see the publisher: MIT (Biohub, since 2026-05)",
)
