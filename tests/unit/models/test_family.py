"""Facts that families of models state: tokens, residues, names of masters."""

import subprocess
import sys
from dataclasses import replace

import pytest

from plm_embed.errors import PlmEmbedError
from plm_embed.fingerprint import master_name
from plm_embed.models.families import FAMILIES
from plm_embed.models.registry import MODELS, find_model
from plm_embed.models.weights import Manifest, Source


def test_tokens_are_counted_or_estimated_where_they_are_no_letters() -> None:
    for name, tokens in (("DNABERT-S", 252), ("nt-v2-50m-multi-species", 168)):
        assert find_model(name).family.tokens(1000) == tokens
    assert find_model("esm2_8m").family.tokens(100, pieces=7) == 114
    assert find_model("nt-500m-1000g").family.max_residues == 5994


def test_masters_bear_the_name_of_their_family() -> None:
    masters = {"amplify-120m": "amplify", "esm1v_3": "esm1v", "nt-500m-1000g": "nt_v1"}
    masters |= {"650M": "esm2", "prott5": "prott5", "zhihan1996/DNABERT-S": "dnabert"}
    for name, family in masters.items():
        assert master_name(find_model(name).family.name) == f"master_{family}_embeddings"
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
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)
