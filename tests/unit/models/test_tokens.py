import numpy as np
import pytest
from esm.data import Alphabet
from hypothesis import given
from hypothesis import strategies as st

from plm_embed.models.families.esm import CLS, EOS, MASK, PAD, VOCABULARY
from plm_embed.sequences.residues import PROTEIN

TOKENIZE = VOCABULARY.within({}).tokenize


@given(st.text(PROTEIN.letters, min_size=1, max_size=80))
def test_equals_fair_esm(sequence: str) -> None:
    alphabet = Alphabet.from_architecture("ESM-1b")
    _, _, expected = alphabet.get_batch_converter()([("", sequence)])
    np.testing.assert_array_equal(TOKENIZE(sequence), expected[0].numpy())


def test_special_tokens_are_fair_esms() -> None:
    alphabet = Alphabet.from_architecture("ESM-1b")
    names = ("cls", "pad", "eos", "mask")
    assert tuple(alphabet.get_idx(f"<{name}>") for name in names) == (CLS, PAD, EOS, MASK)


@pytest.mark.parametrize("letter", ["J", "-", ".", "*", "m", "<", " "])
def test_refuses_what_is_no_residue(letter: str) -> None:
    with pytest.raises(ValueError, match="not a normalized sequence"):
        TOKENIZE(f"MK{letter}T")
