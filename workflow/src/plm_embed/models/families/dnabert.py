"""DNABERT-2 and DNABERT-S: BERT with ALiBi, gated feed-forwards and tokens by byte-pair encoding.

Source: bert_layers.py and tokenizer.json of MAGICS-LAB/DNABERT_2 and DNABERT_S, whose two models
differ in nothing but their weights. N, U and the other letters of IUPAC are [UNK], one each.
"""

from plm_embed.models.encoder.bpe import bpe
from plm_embed.models.encoder.description import ALiBi, Encoder
from plm_embed.models.encoder.layouts import Names, Published
from plm_embed.models.families.build_family import dna_family

_QKV = ",".join(f"layers.N.self_attn.{part}_proj.KIND" for part in "qkv")
_BERT = r"(?:bert\.)?"
_LAYER = rf"{_BERT}encoder\.layer.N."
_NAMES = Names(
    rf"cls\.|{_BERT}(?:pooler\.|embeddings\.position_ids$)",
    (
        (rf"{_BERT}embeddings\.word_embeddings\.weight", "embed_tokens.weight"),
        (rf"{_BERT}embeddings\.token_type_embeddings\.weight", "embed_types.weight"),
        # the activated half first
        (rf"{_LAYER}mlp\.gated_layers\.weight", "layers.N.fc_gate.weight,layers.N.fc1.weight"),
        *(
            (rf"{theirs}\.{kind}", ours.replace("KIND", kind))
            for theirs, ours in (
                (rf"{_BERT}embeddings\.LayerNorm", "emb_layer_norm_before.KIND"),
                (rf"{_LAYER}attention\.self\.Wqkv", _QKV),
                (rf"{_LAYER}attention\.output\.dense", "layers.N.self_attn.out_proj.KIND"),
                (rf"{_LAYER}attention\.output\.LayerNorm", "layers.N.self_attn_layer_norm.KIND"),
                (rf"{_LAYER}mlp\.wo", "layers.N.fc2.KIND"),
                (rf"{_LAYER}mlp\.layernorm", "layers.N.final_layer_norm.KIND"),
            )
            for kind in ("weight", "bias")
        ),
    ),
)

DNABERT = dna_family(
    "dnabert",
    bpe("[CLS]", "[SEP]", "[UNK]"),
    4,  # of random DNA 4.5 (70 % GC) to 5.0 (30 % GC)
    Encoder(
        rows=4096,
        positions=ALiBi(),
        token_types=True,
        embedding_norm="always",
        order="post",
        epsilon=1e-12,
        gated=True,
        up_bias=False,
    ),
    Published(
        "dnabert", _NAMES, {"model_type": "bert", "layer_norm_eps": 1e-12, "hidden_act": "gelu"}
    ),
    trailing=1,
    papers=(
        "Zhou Z. et al. DNABERT-2: Efficient foundation model and benchmark for multi-species "
        "genomes. ICLR (2024). arXiv:2306.15006",
        "Zhou Z. et al. DNABERT-S: Pioneering species differentiation with species-aware DNA "
        "embeddings. Bioinformatics 41, i255-i264 (2025). arXiv:2402.08777",
    ),
    license="Apache-2.0",
)
