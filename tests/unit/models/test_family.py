"""Facts that families of models state: tokens, residues, names of masters."""

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from plm_embed.errors import PlmEmbedError
from plm_embed.models.engine import pack
from plm_embed.models.families import FAMILIES
from plm_embed.models.family import Family
from plm_embed.models.registry import MODELS, find_model
from plm_embed.models.weights import Manifest, Source

PER_LETTER = [family for family in FAMILIES.values() if family.token_per_letter]


@pytest.mark.parametrize("family", PER_LETTER, ids=lambda family: family.name)
def test_a_family_says_which_tokens_are_residues(family: Family) -> None:
    sequence = letters = family.alphabet.letters
    if family.alphabet.states:
        letters = "".join(f"{residue}d" for residue in sequence)
    tokenize = family.tokenizer.within({}).tokenize
    tokens = tokenize(letters)
    first, stop = family.residues(len(tokens))
    assert stop - first == len(sequence)
    # some authors read U, Z, O and B as X, AMPLIFY knows none of U, Z, O and X, SaProt none of both
    alike = {"prott5": 4, "prostt5": 4, "protbert": 4, "amplify": 3, "saprot": 4}
    distinct = len(sequence) - alike.get(family.name, 0)
    assert len(set(tokens[first:stop].tolist())) == distinct
    assert not set(tokens[first:stop].tolist()) & {
        *tokens[:first].tolist(),
        *tokens[stop:].tolist(),
    }
    assert family.tokens(len(sequence)) == len(tokens)
    assert family.tokens(100, pieces=7) == 100 + 7 * family.tokens(0)


def test_where_tokens_are_no_letters_their_number_is_estimated() -> None:
    for name, tokens in (("DNABERT-S", 252), ("nt-v2-50m-multi-species", 168)):
        assert find_model(name).family.tokens(1000) == tokens
    assert find_model("nt-500m-1000g").family.max_residues == 5994


def test_masters_bear_the_name_of_their_family() -> None:
    masters = {
        "650M": "master_esm2_embeddings",
        "amplify-120m": "master_amplify_embeddings",
        "esm1b": "master_esm1b_embeddings",
        "esm1v_3": "master_esm1v_embeddings",
        "esmc_300m": "master_esmc_embeddings",
        "prott5": "master_prott5_embeddings",
        "zhihan1996/DNABERT-S": "master_dnabert_embeddings",
        "nt-500m-1000g": "master_nt_v1_embeddings",
    }
    assert {name: find_model(name).family.master for name in masters} == masters
    assert {model.family.name for model in MODELS.values()} == set(FAMILIES)


def test_an_architecture_of_a_later_version_is_named() -> None:
    facts = {"token_dropout": True, "weights_sha256": "", "bytes": 0}
    manifest = Manifest.of(find_model("esm2_8m"), Source("tensors", ""), **facts)
    with pytest.raises(PlmEmbedError, match="architecture 'rnn' is not known to this version"):
        _ = replace(manifest, architecture="rnn").as_model


def test_counting_tokens_needs_no_torch() -> None:
    code = (
        "import sys; from plm_embed.models.registry import find_model; import "
        "plm_embed.planning.costs;"
        "assert find_model('8M').family.tokens(5) == 7; sys.exit('torch' in sys.modules)"
    )
    environment = {"PYTHONPATH": ":".join(sys.path)}
    assert (
        subprocess.run([sys.executable, "-c", code], check=False, env=environment).returncode == 0
    )


def test_a_batch_knows_its_residues_whatever_surrounds_them() -> None:
    pieces = [np.arange(1, 6, dtype=np.uint16), np.arange(2, dtype=np.uint16)]
    batch = pack(pieces, FAMILIES["prott5"], rows=4)
    assert batch.tokens.tolist() == [1, 2, 3, 4, 5, 0, 1, 0]
    assert batch.positions.tolist() == [0, 1, 2, 3, 4, 0, 1, 0]
    assert batch.boundaries.tolist() == [0, 5, 7]
    assert batch.segments.tolist() == [0, 4, 1, 0, 1, 1]
    assert batch.residues == ((0, 4), (0, 1))
