"""The letters that a sequence may have."""

RESIDUES = "LAGVSERTIDPKQNFYMHWCXBUZO"  # token ids 4 to 28
"""Letters that may reach the model. The alphabet also holds '.' and '-', which are gaps and never embedded."""
