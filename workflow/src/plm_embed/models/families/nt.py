"""The Nucleotide Transformer, versions 1 and 2: encoders like ESM's over tokens of six bases.

Sources: nucleotide_transformer/ of instadeepai/nucleotide-transformer (tokenizers.py, layers.py,
model.py); config.json and modeling_esm.py of the published models.
"""

from dataclasses import replace

from plm_embed.models.encoder.description import Encoder, Learned, Rotary
from plm_embed.models.encoder.kmers import SIX_MERS, K
from plm_embed.models.encoder.layouts import Names, Published
from plm_embed.models.families.build_family import dna_family

MAX_TOKENS = 1000  # of version 1; positions begin at 2, after the one of padding
_ESM = r"(?:esm\.)?"
_LAYER = rf"{_ESM}encoder\.layer.N."
_UNUSED = (
    rf"lm_head\.|{_ESM}(?:contact_head|pooler)\.|{_ESM}embeddings\.position_ids$"
    rf"|{_ESM}(?:encoder\.layer\.(?:\d+|\*)\.attention\.self\.)?rotary_embeddings\.inv_freq$"
)
_UP = "layers.N.fc1.weight"
_RENAMES = (
    (rf"{_ESM}embeddings\.word_embeddings\.weight", "embed_tokens.weight"),
    (rf"{_ESM}embeddings\.position_embeddings\.weight", "embed_positions.weight"),
    *(
        (rf"{theirs}\.{names}", f"{ours}.{kind}")
        for theirs, ours in (
            (rf"{_ESM}encoder\.emb_layer_norm_after", "emb_layer_norm_after"),
            (rf"{_LAYER}attention\.LayerNorm", "layers.N.self_attn_layer_norm"),
            (rf"{_LAYER}attention\.self\.query", "layers.N.self_attn.q_proj"),
            (rf"{_LAYER}attention\.self\.key", "layers.N.self_attn.k_proj"),
            (rf"{_LAYER}attention\.self\.value", "layers.N.self_attn.v_proj"),
            (rf"{_LAYER}attention\.output\.dense", "layers.N.self_attn.out_proj"),
            (rf"{_LAYER}LayerNorm", "layers.N.final_layer_norm"),
            (rf"{_LAYER}intermediate\.dense", "layers.N.fc1"),
            (rf"{_LAYER}output\.dense", "layers.N.fc2"),
        )
        # transformers 5 writes the names of TensorFlow's norms
        for kind, names in (("weight", "(?:weight|gamma)"), ("bias", "(?:bias|beta)"))
    ),
)
_CONFIG = {
    "model_type": "esm",
    "layer_norm_eps": 1e-12,
    "emb_layer_norm_before": False,
    "token_dropout": False,
}
_V1 = Encoder(rows=4105, positions=Learned(MAX_TOKENS + 2, offset=2), epsilon=1e-12)
_PAPERS = (
    "Dalla-Torre H. et al. Nucleotide Transformer: building and evaluating robust foundation "
    "models for human genomics. Nat. Methods 22, 287-297 (2025). doi:10.1038/s41592-024-02523-z",
)
_LICENSE = "CC-BY-NC-SA-4.0: for non-commercial use only"

NT_V1 = dna_family(
    "nt_v1",
    SIX_MERS,
    K,
    _V1,
    Published("nt_v1", Names(_UNUSED, _RENAMES), _CONFIG | {"position_embedding_type": "absolute"}),
    trailing=0,
    papers=_PAPERS,
    license=_LICENSE,
    max_tokens=MAX_TOKENS,
)
NT_V2 = dna_family(
    "nt_v2",
    SIX_MERS,
    K,
    replace(
        _V1,
        rows=4107,
        positions=Rotary(),
        activation="silu",
        gated=True,
        up_bias=False,
        down_bias=False,
    ),
    Published(
        "nt_v2",
        Names(
            # converters wrote untrained positions into the files of rotary models too
            rf"{_UNUSED}|{_ESM}embeddings\.position_embeddings\.",
            # the activated half first
            (
                (rf"{_LAYER}intermediate\.dense\.weight", f"layers.N.fc_gate.weight,{_UP}"),
                *_RENAMES,
            ),
        ),
        _CONFIG | {"position_embedding_type": "rotary"},
    ),
    trailing=0,
    papers=_PAPERS,
    license=_LICENSE,
)
