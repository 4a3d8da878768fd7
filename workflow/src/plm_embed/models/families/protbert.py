"""ProtBERT and ProtBERT-BFD: BERT with a norm after each residual sum and learned positions.

Sources: modeling_bert.py of transformers; agemagician/ProtTrans for tokens.
"""

from plm_embed.models.encoder.description import Encoder, Learned
from plm_embed.models.encoder.layouts import Names, Published
from plm_embed.models.encoder.vocabulary import Vocabulary
from plm_embed.models.families.build_family import protein_family

POSITIONS = 40_000

_NAMES = Names(
    r"cls\.|(?:bert\.)?(?:pooler\.|embeddings\.position_ids$)",
    (
        (r"(?:bert\.)?embeddings\.word_embeddings\.weight", "embed_tokens.weight"),
        (r"(?:bert\.)?embeddings\.position_embeddings\.weight", "embed_positions.weight"),
        (r"(?:bert\.)?embeddings\.token_type_embeddings\.weight", "embed_types.weight"),
        *(
            (rf"(?:bert\.)?{theirs}\.{names}", f"{ours}.{kind}")
            for theirs, ours in (
                (r"embeddings\.LayerNorm", "emb_layer_norm_before"),
                (r"encoder\.layer.N.attention\.self\.query", "layers.N.self_attn.q_proj"),
                (r"encoder\.layer.N.attention\.self\.key", "layers.N.self_attn.k_proj"),
                (r"encoder\.layer.N.attention\.self\.value", "layers.N.self_attn.v_proj"),
                (r"encoder\.layer.N.attention\.output\.dense", "layers.N.self_attn.out_proj"),
                (
                    r"encoder\.layer.N.attention\.output\.LayerNorm",
                    "layers.N.self_attn_layer_norm",
                ),
                (r"encoder\.layer.N.intermediate\.dense", "layers.N.fc1"),
                (r"encoder\.layer.N.output\.dense", "layers.N.fc2"),
                (r"encoder\.layer.N.output\.LayerNorm", "layers.N.final_layer_norm"),
            )
            # norms of checkpoints from TensorFlow are called gamma and beta
            for kind, names in (("weight", "(?:weight|gamma)"), ("bias", "(?:bias|beta)"))
        ),
    ),
)

PROTBERT = protein_family(
    "protbert",
    Vocabulary(
        "LAGVESIKRDTPNQFYMHCWXUBZO",
        first=5,
        prefix=(2,),
        suffix=(3,),
        read_as=dict.fromkeys("UZOB", "X"),
    ),
    Encoder(
        rows=30,
        positions=Learned(POSITIONS),
        token_types=True,
        embedding_norm="always",
        order="post",
        epsilon=1e-12,
    ),
    Published(
        "protbert", _NAMES, {"model_type": "bert", "layer_norm_eps": 1e-12, "hidden_act": "gelu"}
    ),
    papers=(
        "Elnaggar A. et al. ProtTrans: Toward understanding the language of life through "
        "self-supervised learning. IEEE Trans. Pattern Anal. Mach. Intell. 44, 7112-7127 (2022). "
        "doi:10.1109/TPAMI.2021.3095381",
    ),
    license="AFL-3.0",
    max_residues=POSITIONS - 2,
)
