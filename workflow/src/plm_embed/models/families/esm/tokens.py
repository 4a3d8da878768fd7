"""Residues to token ids: the alphabet that ESM-1b, ESM-1v and ESM-2 share.

Source: `esm/data.py: Alphabet.from_architecture("ESM-1b")` of fair-esm 2.0.0. '.' and '-' follow
the letters there; they are gaps, and never embedded.
"""

from plm_embed.models.encoder.vocabulary import Vocabulary

CLS, PAD, EOS, MASK = 0, 1, 2, 32
ROWS = 33
"""Of the embedding table."""
VOCABULARY = Vocabulary("LAGVSERTIDPKQNFYMHWCXBUZO", first=4, prefix=(CLS,), suffix=(EOS,))
