"""AMPLIFY: RMS norms, rotation of neighboring numbers, gated feed-forwards, no biases.

Sources: src/amplify/model (amplify.py, rotary.py, rmsnorm.py) and src/amplify/inference of
chandar-lab/AMPLIFY; config.json and tokenizer.json of the published models. The last layer is what
the authors' Embedder returns: the norm behind it belongs to the head of the language model.
"""

from plm_embed.models.family import Encoder, Family, Head, Names, Rotary, Vocabulary

AMPLIFY = Family(
    name="amplify",
    architecture="amplify",
    # 1 is <unk>: the tokenizer knows none of these letters
    tokenizer=Vocabulary(
        "LAGVSERTIDPKQNFYMHWCB",
        first=6,
        prefix=(3,),
        suffix=(4,),
        unknown_letters="XZUO",
        unknown=1,
    ),
    encoder=Encoder(
        rows=27,
        positions=Rotary(neighbors=True),
        final_norm=False,
        norm="rms",
        attention_bias=False,
        activation="silu",
        gated=True,
        up_bias=False,
        down_bias=False,
    ),
    names=Names(
        modules={
            "encoder": "embed_tokens",
            "transformer_encoder.N.attention_norm": "layers.N.self_attn_layer_norm",
            "transformer_encoder.N.q": "layers.N.self_attn.q_proj",
            "transformer_encoder.N.k": "layers.N.self_attn.k_proj",
            "transformer_encoder.N.v": "layers.N.self_attn.v_proj",
            "transformer_encoder.N.wo": "layers.N.self_attn.out_proj",
            "transformer_encoder.N.ffn_norm": "layers.N.final_layer_norm",
            # the activated half first, as xformers' SwiGLU has it
            "transformer_encoder.N.ffn.w12": ("layers.N.fc_gate", "layers.N.fc1"),
            "transformer_encoder.N.ffn.w3": "layers.N.fc2",
        },
        head={"layer_norm_2": "layer_norm", "decoder": "out"},
    ),
    head=Head(mask=2, dense=False, tied=False),
    config={
        "model_type": "AMPLIFY",
        "hidden_act": "SwiGLU",
        "rms_norm": True,
        "norm_eps": 1e-5,
        "att_bias": False,
        "ffn_bias": False,
        "layer_norm_after_embedding": False,
    },
)
