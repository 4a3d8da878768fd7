"""Models of DNA in memory and in jobs: strands, and what is refused."""

from pathlib import Path

import numpy as np
import pytest

import plm_embed
from plm_embed.errors import ConfigError, InputError, StoreError
from plm_embed.inference.language_model import embed_like
from plm_embed.inference.settings import Settings
from plm_embed.inference.weights import prepare
from plm_embed.keys import key
from plm_embed.sequences.deduplicate import deduplicate
from plm_embed.sequences.residues import DNA, ResiduePolicy
from plm_embed.sequences.settings import Table
from support.embedded import Embedder
from support.families import TINY, add_model, source
from support.nasty_inputs import M2, NEP, write

MODEL, OF_PROTEINS = TINY["dnabert"].name, "esm2_t3_untrained"
GENE = "ATGGCGTTACCNRTAGGATTTACAGCC" * 5
OTHER = DNA.reverse_complement(GENE)
FIRST = min(GENE, OTHER)


@pytest.fixture(scope="module")
def dna_weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dnabert")
    prepare(TINY["dnabert"], source("dnabert"), folder)
    return folder


@pytest.fixture
def dna(monkeypatch: pytest.MonkeyPatch, dna_weights: Path) -> Path:
    add_model(monkeypatch, TINY["dnabert"])
    return dna_weights


def test_a_sequence_and_its_reverse_complement_have_one_vector(dna: Path) -> None:
    with plm_embed.load(MODEL, weights=dna) as model:
        as_given = model.embed([GENE, OTHER, GENE.lower(), GENE.replace("T", "U")])
        assert np.array_equal(as_given[0], as_given[2]) and np.array_equal(as_given[0], as_given[3])
        assert not np.array_equal(as_given[0], as_given[1])
        assert model.fingerprint().strand == "as_given"
    canonical = plm_embed.embed([GENE, OTHER], MODEL, weights=dna, strand="canonical")
    assert np.array_equal(canonical[0], canonical[1])
    assert np.array_equal(canonical[0], as_given[[GENE, OTHER].index(FIRST)])


def test_a_store_is_searched_with_its_own_strand(dna: Path, tmp_path: Path) -> None:
    genes = write(tmp_path / "genes.fna", f">a\n{GENE}\n>b\n{OTHER}\n")
    sequences = tmp_path / "sequences"
    policy = ResiduePolicy(alphabet="dna", strand="canonical")
    deduplicate([genes], sequences, buckets=1, table=Table(), policy=policy, memory_mb=500)
    bucket = sequences / "buckets" / "0000.parquet"
    settings = Settings(scratch="", strand="canonical", storage_dtype="float32")
    embedder = Embedder(dna, tmp_path / "store", settings)
    record = embedder.embed(bucket, tmp_path / "0000.json")
    assert record.unique == 1 and record.fingerprint.strand == "canonical"
    vectors = plm_embed.open(tmp_path / "store" / record.fingerprint_id)
    for given in (GENE, OTHER):
        _, found = embed_like(record.fingerprint, "mean_l3", [given], dna)
        assert np.array_equal(found[0], vectors[key(FIRST)])
    with pytest.raises(StoreError, match="was not made for alphabet dna, strand as_given"):
        Embedder(dna, tmp_path / "store", Settings(scratch="")).embed(bucket, tmp_path / "1.json")


def test_sequences_of_the_other_kind_are_refused(dna: Path, tmp_path: Path) -> None:
    proteins = write(tmp_path / "proteins.fasta", f">a\n{M2}\n>b\n{NEP}\n")
    with plm_embed.load(MODEL, weights=dna) as model:
        with pytest.raises(InputError, match="the sequences: these are proteins, and the model re"):
            model.embed([M2, NEP], on_error="skip")
        with pytest.raises(InputError, match=r"proteins\.fasta: these are proteins"):
            next(model.stream(proteins))
    for given in (proteins, iter([M2, NEP])):  # said before weights are looked for
        with pytest.raises(InputError, match="these are proteins, and the model reads DNA"):
            plm_embed.embed(given, "DNABERT-S", weights=tmp_path / "absent")


def test_a_model_of_proteins_refuses_nucleotides_and_strands(
    prepared: Path, tmp_path: Path
) -> None:
    genes = write(tmp_path / "genes.fna", f">a\n{GENE}\n")
    with plm_embed.load(OF_PROTEINS, weights=prepared) as model:
        with pytest.raises(InputError, match="the sequences: these are nucleotides"):
            model.embed([GENE, OTHER])
        with pytest.raises(InputError, match=r"genes\.fna: these are nucleotides"):
            model.embed(genes)
        assert model.embed(["ACGT", "GATTACA"]).shape == (2, 32)
    with pytest.raises(ConfigError, match="strand: canonical: the model reads proteins"):
        Embedder(prepared, tmp_path / "store", Settings(strand="canonical"))
