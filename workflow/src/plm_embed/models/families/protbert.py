"""ProtBERT and ProtBERT-BFD: BERT with a norm after each residual sum and learned positions.

Sources: modeling_bert.py of transformers; agemagician/ProtTrans for tokens.
"""

from plm_embed.models.family import Encoder, Family, Head, Learned, Names, Vocabulary

POSITIONS = 40_000

PROTBERT = Family(
    name="protbert",
    architecture="protbert",
    tokenizer=Vocabulary(
        "LAGVESIKRDTPNQFYMHCWXUBZO",
        first=5,
        prefix=(2,),
        suffix=(3,),
        read_as=dict.fromkeys("UZOB", "X"),
    ),
    encoder=Encoder(
        rows=30,
        positions=Learned(POSITIONS),
        token_types=True,
        embedding_norm="always",
        order="post",
        epsilon=1e-12,
    ),
    names=Names(
        modules={
            "embeddings.word_embeddings": "embed_tokens",
            "embeddings.position_embeddings": "embed_positions",
            "embeddings.token_type_embeddings": "embed_types",
            "embeddings.LayerNorm": "emb_layer_norm_before",
            "encoder.layer.N.attention.self.query": "layers.N.self_attn.q_proj",
            "encoder.layer.N.attention.self.key": "layers.N.self_attn.k_proj",
            "encoder.layer.N.attention.self.value": "layers.N.self_attn.v_proj",
            "encoder.layer.N.attention.output.dense": "layers.N.self_attn.out_proj",
            "encoder.layer.N.attention.output.LayerNorm": "layers.N.self_attn_layer_norm",
            "encoder.layer.N.intermediate.dense": "layers.N.fc1",
            "encoder.layer.N.output.dense": "layers.N.fc2",
            "encoder.layer.N.output.LayerNorm": "layers.N.final_layer_norm",
        },
        prefixes=("bert.",),
        unused=("cls.", "pooler."),
        head={
            "cls.predictions.transform.dense": "dense",
            "cls.predictions.transform.LayerNorm": "layer_norm",
            "cls.predictions": "out",
        },
    ),
    head=Head(mask=4),
    config={"model_type": "bert", "layer_norm_eps": 1e-12, "hidden_act": "gelu"},
    max_residues=POSITIONS - 2,
)
