"""The Nucleotide Transformer, versions 1 and 2: encoders like ESM's over tokens of six bases.

Sources: nucleotide_transformer/ of instadeepai/nucleotide-transformer (tokenizers.py, layers.py,
model.py); config.json and modeling_esm.py of the published models.

Tokens are those of `StandardTokenizer`: from the left six bases are one token; where an N, an
unknown letter or the end comes before the sixth, each letter is a token of its own. An unknown
letter is one <unk>: transformers' class joins a row of them to one, and the authors' class for
k-mers refuses them.
"""

from dataclasses import replace
from itertools import product

import numpy as np
from numpy.typing import NDArray

from plm_embed.models.families.esm import ESM1B, ESM2
from plm_embed.models.family import Encoder, Family, Learned, Rotary, TokenizerFile, Tokens, digest
from plm_embed.sequences.residues import DNA

K = 6
BASES = "ATCG"
SINGLE = "ATCGN"
MAX_TOKENS = 1000  # of version 1; positions begin at 2, after the one of padding
_DIGITS = np.full(256, len(BASES), dtype=np.uint8)  # of a number to the base 4; 4: none
_DIGITS[np.frombuffer(BASES.encode(), np.uint8)] = np.arange(len(BASES))


def _read(content: bytes) -> Tokens:
    words = content.decode("utf-8", "replace").split()
    numbers = {word: number for number, word in enumerate(words)}
    kmers = ["".join(bases) for bases in product(BASES, repeat=K)]
    needed = ["<unk>", "<pad>", "<mask>", "<cls>", *kmers, *SINGLE]
    if len(numbers) < len(words) or not numbers.keys() >= set(needed):
        raise ValueError("it is not a list of the 6-mers of A, T, C and G and of single letters")
    of_kmer = np.array([numbers[kmer] for kmer in kmers], dtype=np.uint16)
    of_letter = np.full(256, numbers["<unk>"], dtype=np.uint16)
    of_letter[np.frombuffer(SINGLE.encode(), np.uint8)] = [numbers[letter] for letter in SINGLE]
    cls = np.array([numbers["<cls>"]], dtype=np.uint16)

    def tokenize(sequence: str) -> NDArray[np.uint16]:
        letters = np.frombuffer(sequence.encode("ascii"), np.uint8)
        ids = [cls]
        start = 0
        for stop in [*np.flatnonzero(_DIGITS[letters] == len(BASES)).tolist(), len(letters)]:
            kmers_end = stop - (stop - start) % K
            digits = _DIGITS[letters[start:kmers_end]].reshape(-1, K)
            ids += [
                of_kmer[digits @ (len(BASES) ** np.arange(K)[::-1])],
                of_letter[letters[kmers_end : stop + 1]],
            ]
            start = stop + 1
        return np.concatenate(ids)

    bases = np.ones(len(words), dtype=np.uint8)
    bases[of_kmer] = K
    return Tokens(tokenize, bases, digest(words))


_CONFIG = {
    "model_type": "esm",
    "layer_norm_eps": 1e-12,
    "emb_layer_norm_before": False,
}

NT_V1 = Family(
    name="nt_v1",
    architecture="nt_v1",
    tokenizer=TokenizerFile("vocab.txt", _read, prefix=("<cls>",)),
    encoder=Encoder(rows=4105, positions=Learned(MAX_TOKENS + 2, offset=2), epsilon=1e-12),
    names=replace(ESM1B.names, head={}),
    config=_CONFIG | {"position_embedding_type": "absolute"},
    alphabet=DNA,
    max_residues=(MAX_TOKENS - 1) * K,
    letters_per_token=K,
    max_tokens=MAX_TOKENS,
)
NT_V2 = replace(
    NT_V1,
    name="nt_v2",
    architecture="nt_v2",
    encoder=Encoder(
        rows=4107,
        positions=Rotary(),
        epsilon=1e-12,
        activation="silu",
        gated=True,
        up_bias=False,
        down_bias=False,
    ),
    names=replace(
        ESM2.names,
        # the activated half first
        modules={
            **ESM2.names.modules,
            "layer.N.intermediate.dense": ("layers.N.fc_gate", "layers.N.fc1"),
        },
        head={},
    ),
    config=_CONFIG | {"position_embedding_type": "rotary"},
    max_residues=None,
    max_tokens=None,
)
