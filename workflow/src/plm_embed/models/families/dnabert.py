"""DNABERT-2 and DNABERT-S: BERT with ALiBi, gated feed-forwards and tokens by byte-pair encoding.

Source: bert_layers.py and tokenizer.json of MAGICS-LAB/DNABERT_2 and DNABERT_S, whose two models
differ in nothing but their weights. N, U and the other letters of IUPAC are [UNK], one each.
"""

import json
import os
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from plm_embed.models.families.protbert import PROTBERT
from plm_embed.models.family import ALiBi, TokenizerFile, Tokens, digest
from plm_embed.sequences.residues import DNA

LONGEST = 255
"""Letters of a token; the published ones have up to 32."""


def _read(content: bytes) -> Tokens:
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_str(content.decode("utf-8"))
        file = json.loads(content)
        model = file["model"]
    except Exception as error:  # the library raises plain Exceptions
        raise ValueError(f"it is damaged ({error})") from None
    if model.get("type") != "BPE" or model.get("dropout") or model.get("fuse_unk"):
        raise ValueError("it is not a byte-pair encoding without dropout and fused unknowns")
    # files in circulation cut sequences off, at 2,000 tokens or other lengths
    tokenizer.no_truncation()
    tokenizer.no_padding()
    # threads of ours share out the sequences; the library's own would outnumber the job's
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    if (tokens := tokenizer.encode("N").tokens) != ["[CLS]", "[UNK]", "[SEP]"]:
        raise ValueError(f"it makes {tokens} of N, not [CLS], [UNK] and [SEP]")

    def tokenize(sequence: str) -> NDArray[np.uint16]:
        # of the library's functions those for many texts let other threads work meanwhile
        (encoding,) = tokenizer.encode_batch_fast([sequence])
        return np.array(encoding.ids, dtype=np.uint16)

    words = tokenizer.get_vocab()
    if (longest := max(map(len, words))) > LONGEST:
        raise ValueError(f"it has a token of {longest} letters")
    letters = np.ones(max(words.values()) + 1, dtype=np.uint8)  # [UNK] is one letter
    for word, number in words.items():
        if not word.startswith("["):
            letters[number] = len(word)
    # the library has written a pair as one text and, later, as two
    pairs = [pair.split(" ") if isinstance(pair, str) else pair for pair in model["merges"]]
    before = file.get("normalizer"), file.get("pre_tokenizer")
    return Tokens(tokenize, letters, digest(words, pairs, *before))


DNABERT = replace(
    PROTBERT,
    name="dnabert",
    architecture="dnabert",
    tokenizer=TokenizerFile("tokenizer.json", _read, prefix=("[CLS]",), suffix=("[SEP]",)),
    encoder=replace(PROTBERT.encoder, rows=4096, positions=ALiBi(), gated=True, up_bias=False),
    names=replace(
        PROTBERT.names,
        modules={
            **PROTBERT.names.modules,
            "encoder.layer.N.attention.self.Wqkv": (
                "layers.N.self_attn.q_proj",
                "layers.N.self_attn.k_proj",
                "layers.N.self_attn.v_proj",
            ),
            # the activated half first
            "encoder.layer.N.mlp.gated_layers": ("layers.N.fc_gate", "layers.N.fc1"),
            "encoder.layer.N.mlp.wo": "layers.N.fc2",
            "encoder.layer.N.mlp.layernorm": "layers.N.final_layer_norm",
        },
        head={},
    ),
    head=None,  # its tokens are not residues
    alphabet=DNA,
    max_residues=None,
    letters_per_token=4,  # of random DNA 4.5 (70 % GC) to 5.0 (30 % GC)
)
