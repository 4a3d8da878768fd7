"""ProtT5, ProstT5 and Ankh: the encoder of T5, whose decoder is not used.

Sources: modeling_t5.py of transformers; agemagician/ProtTrans, mheinzinger/ProstT5 and
agemagician/Ankh for tokens. Scores are not scaled, norms are RMS norms, no projection has a bias,
and all layers share the first one's biases by distance. In float16 the last matrix of each
feed-forward stays in fp32, as transformers keeps it: float16 cannot hold its products.
"""

from dataclasses import replace

from plm_embed.models.family import Encoder, Family, Names, T5RelativeBias, Vocabulary
from plm_embed.sequences.residues import STATES

_LETTERS = Vocabulary("ALGVSREDTIPKFQNYMHWCXBOUZ", first=3, suffix=(1,))
_RARE = dict.fromkeys("UZOB", "X")

PROTT5 = Family(
    name="prott5",
    architecture="prott5",
    tokenizer=replace(_LETTERS, read_as=_RARE),
    encoder=Encoder(
        rows=128,
        positions=T5RelativeBias(32),
        norm="rms",
        epsilon=1e-6,
        attention_bias=False,
        scaled_scores=False,
        activation="relu",
        up_bias=False,
        down_bias=False,
        fp32_down_proj=True,
    ),
    names=Names(
        modules={
            "shared": "embed_tokens",
            "encoder.embed_tokens": "embed_tokens",
            "encoder.final_layer_norm": "emb_layer_norm_after",
            "encoder.block.N.layer.0.layer_norm": "layers.N.self_attn_layer_norm",
            "encoder.block.N.layer.0.SelfAttention.q": "layers.N.self_attn.q_proj",
            "encoder.block.N.layer.0.SelfAttention.k": "layers.N.self_attn.k_proj",
            "encoder.block.N.layer.0.SelfAttention.v": "layers.N.self_attn.v_proj",
            "encoder.block.N.layer.0.SelfAttention.o": "layers.N.self_attn.out_proj",
            # of the first layer; there is no other
            "encoder.block.N.layer.0.SelfAttention.relative_attention_bias": "embed_distances",
            "encoder.block.N.layer.1.layer_norm": "layers.N.final_layer_norm",
            "encoder.block.N.layer.1.DenseReluDense.wi": "layers.N.fc1",
            "encoder.block.N.layer.1.DenseReluDense.wi_0": "layers.N.fc_gate",
            "encoder.block.N.layer.1.DenseReluDense.wi_1": "layers.N.fc1",
            "encoder.block.N.layer.1.DenseReluDense.wo": "layers.N.fc2",
        },
        unused=("decoder.", "lm_head."),
    ),
    config={
        "model_type": "t5",
        "layer_norm_epsilon": 1e-6,
        "relative_attention_max_distance": 128,
        "feed_forward_proj": "relu",
    },
    bos=False,
)
PROSTT5 = replace(
    PROTT5,
    name="prostt5",
    architecture="prostt5",
    # <AA2fold>: what follows are residues
    tokenizer=replace(_LETTERS, read_as=_RARE, prefix=(149,)),
    encoder=replace(PROTT5.encoder, rows=150),
)
PROSTT5_3DI = replace(
    PROSTT5,
    name="prostt5_3di",
    architecture="prostt5_3di",
    # the states in lower case, 125 ids after the residues of their letters, behind <fold2AA>
    tokenizer=Vocabulary("ALGVSREDTIPKFQNYMHWC", first=128, prefix=(148,), suffix=(1,)),
    alphabet=STATES,
)
ANKH = replace(
    PROTT5,
    name="ankh",
    architecture="ankh",
    tokenizer=_LETTERS,  # the authors map no letter
    encoder=replace(
        PROTT5.encoder,
        rows=144,
        positions=T5RelativeBias(64),
        activation="gelu_tanh",
        gated=True,
    ),
    config=dict(PROTT5.config) | {"feed_forward_proj": "gated-gelu"},
)
