"""ProtT5, ProstT5 and Ankh: the encoder of T5, whose decoder is not used.

Sources: modeling_t5.py of transformers; agemagician/ProtTrans, mheinzinger/ProstT5 and
agemagician/Ankh for tokens. Scores are not scaled, norms are RMS norms, no projection has a bias,
and all layers share the first one's biases by distance. In float16 the last matrix of each
feed-forward stays in fp32, as transformers keeps it: float16 cannot hold its products.
"""

from dataclasses import replace

from plm_embed.models.encoder.description import Encoder, T5RelativeBias
from plm_embed.models.encoder.layouts import Names, Published
from plm_embed.models.encoder.vocabulary import Vocabulary
from plm_embed.models.families.build_family import protein_family
from plm_embed.sequences.alphabet import STATES

_FIRST = r"encoder\.block\.0\.layer\.0\.SelfAttention\.relative_attention_bias\.weight"
_NAMES = Names(
    r"decoder\.|lm_head\.",
    (
        (r"(?:shared|encoder\.embed_tokens)\.weight", "embed_tokens.weight"),
        (r"encoder\.final_layer_norm\.weight", "emb_layer_norm_after.weight"),
        (_FIRST, "embed_distances.weight"),
        *(
            (rf"encoder\.block.N.layer\.{theirs}\.weight", f"layers.N.{ours}.weight")
            for theirs, ours in (
                (r"0\.layer_norm", "self_attn_layer_norm"),
                (r"0\.SelfAttention\.q", "self_attn.q_proj"),
                (r"0\.SelfAttention\.k", "self_attn.k_proj"),
                (r"0\.SelfAttention\.v", "self_attn.v_proj"),
                (r"0\.SelfAttention\.o", "self_attn.out_proj"),
                (r"1\.layer_norm", "final_layer_norm"),
                (r"1\.DenseReluDense\.wi", "fc1"),
                (r"1\.DenseReluDense\.wi_0", "fc_gate"),
                (r"1\.DenseReluDense\.wi_1", "fc1"),
                (r"1\.DenseReluDense\.wo", "fc2"),
            )
        ),
    ),
)
_CONFIG = {
    "model_type": "t5",
    "layer_norm_epsilon": 1e-6,
    "relative_attention_max_distance": 128,
    "feed_forward_proj": "relu",
}
_ENCODER = Encoder(
    rows=128,
    positions=T5RelativeBias(32),
    norm="rms",
    norm_bias=False,
    final_norm_bias=False,
    epsilon=1e-6,
    attention_bias=False,
    scaled_scores=False,
    activation="relu",
    up_bias=False,
    down_bias=False,
    fp32_down_proj=True,
)
_LETTERS = Vocabulary("ALGVSREDTIPKFQNYMHWCXBOUZ", first=3, suffix=(1,))
_RARE = dict.fromkeys("UZOB", "X")

PROTT5 = protein_family(
    "prott5",
    replace(_LETTERS, read_as=_RARE),
    _ENCODER,
    Published("prott5", _NAMES, _CONFIG),
    papers=(
        "Elnaggar A. et al. ProtTrans: Toward understanding the language of life through "
        "self-supervised learning. IEEE Trans. Pattern Anal. Mach. Intell. 44, 7112-7127 (2022). "
        "doi:10.1109/TPAMI.2021.3095381",
    ),
    license="AFL-3.0",
    bos=False,
)
PROSTT5 = protein_family(
    "prostt5",
    replace(_LETTERS, read_as=_RARE, prefix=(149,)),  # <AA2fold>: what follows are residues
    replace(_ENCODER, rows=150),
    Published("prostt5", _NAMES, _CONFIG),
    papers=(
        "Heinzinger M. et al. Bilingual language model for protein sequence and structure. "
        "NAR Genom. Bioinform. 6, lqae150 (2024). doi:10.1093/nargab/lqae150",
    ),
    license="MIT",
    bos=False,
)
PROSTT5_3DI = replace(
    protein_family(
        "prostt5_3di",
        # the states in lower case, 125 ids after the residues of their letters, behind <fold2AA>
        Vocabulary("ALGVSREDTIPKFQNYMHWC", first=128, prefix=(148,), suffix=(1,)),
        PROSTT5.encoder,
        Published("prostt5_3di", _NAMES, _CONFIG),
        papers=PROSTT5.papers,
        license=PROSTT5.license,
        bos=False,
    ),
    alphabet=STATES,
)
ANKH = protein_family(
    "ankh",
    _LETTERS,  # the authors map no letter
    replace(_ENCODER, rows=144, positions=T5RelativeBias(64), activation="gelu_tanh", gated=True),
    Published("ankh", _NAMES, _CONFIG | {"feed_forward_proj": "gated-gelu"}),
    papers=(
        "Elnaggar A. et al. Ankh: Optimized protein language model unlocks general-purpose "
        "modelling. arXiv:2301.06568 (2023).",
    ),
    license="CC-BY-NC-SA-4.0: for non-commercial use only",
    bos=False,
)
