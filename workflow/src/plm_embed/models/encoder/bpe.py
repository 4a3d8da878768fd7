"""Tokens by byte-pair encoding, as a published tokenizer.json has it, by Hugging Face's library."""

import json
import os
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from plm_embed.models.tokenizer_file import TokenizerFile, Tokens, decided

if TYPE_CHECKING:
    from tokenizers import Tokenizer

LONGEST = 255
"""Letters of a token; the published ones have up to 32."""


def bpe(prefix: str, suffix: str, unknown: str) -> TokenizerFile:
    """A tokenizer.json of such a model. `prefix` and `suffix` are the special tokens that it has to
    put around a sequence, `unknown` is what it has to make of each letter that it does not know.
    """

    def read(content: bytes) -> Tokens:
        try:
            made = _tokenizer(content)
            said = json.loads(content)
            kind = said["model"]
        except Exception as error:  # the library raises plain Exceptions
            raise ValueError(f"it is damaged ({error})") from None
        if kind.get("type") != "BPE" or kind.get("dropout") or kind.get("fuse_unk"):
            raise ValueError("it is no byte-pair encoding that gives a text one set of tokens")
        # threads of ours share out the sequences; the library's own would outnumber the job's
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        if (found := made.encode("N").tokens) != [prefix, unknown, suffix]:
            raise ValueError(f"it makes {found} of N, not {[prefix, unknown, suffix]}")

        def tokenize(sequence: str) -> NDArray[np.uint16]:
            # of the library's functions those for many texts let other threads work meanwhile
            (found,) = made.encode_batch_fast([sequence])
            return np.array(found.ids, dtype=np.uint16)

        words = made.get_vocab()
        if (longest := max(map(len, words))) > LONGEST:
            raise ValueError(f"it has a token of {longest} letters")
        letters = np.ones(max(words.values()) + 1, dtype=np.uint8)  # [UNK] is one letter
        for word, number in words.items():
            if not word.startswith("["):
                letters[number] = len(word)
        # the library has written a pair as one text and, later, as two
        pairs = [pair.split(" ") if isinstance(pair, str) else pair for pair in kind["merges"]]
        before = said.get("normalizer"), said.get("pre_tokenizer")
        return Tokens(tokenize, letters, decided(words, pairs, *before))

    return TokenizerFile("tokenizer.json", read, _spans)


def _spans(content: bytes, sequence: str) -> list[tuple[int, int]]:
    """As the library says that it has cut the text."""
    cut = _tokenizer(content).encode(sequence, add_special_tokens=False)
    found: list[tuple[int, int]] = cut.offsets
    return found


def _tokenizer(content: bytes) -> "Tokenizer":
    from tokenizers import Tokenizer

    made = Tokenizer.from_str(content.decode("utf-8"))
    # files in circulation cut sequences off, at 2,000 tokens or other lengths
    made.no_truncation()
    made.no_padding()
    return made
