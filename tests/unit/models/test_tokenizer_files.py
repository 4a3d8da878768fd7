"""Tokens as fair-esm, a published file's library or its authors' rule makes them, or refused."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from shutil import copytree

import pytest
import torch
from esm.data import Alphabet
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from plm_embed.errors import WeightsError
from plm_embed.inference.weights import prepare
from plm_embed.io.files import sha256_file
from plm_embed.models import weights
from plm_embed.models.families.dnabert import DNABERT
from plm_embed.models.families.esm import CLS, EOS, ESM2, MASK, PAD
from plm_embed.models.families.nt import NT_V1
from plm_embed.models.family import TENSOR, Tokenize, TokenizerFile
from plm_embed.models.weights import caveat
from plm_embed.sequences.residues import DNA, PROTEIN
from support.checkpoints import read
from support.families import TINY, add_model, source

BPE = source("dnabert") / "tokenizer.json"
VOCABULARY = source("nt_v1") / "vocab.txt"
text = st.text(DNA.letters, min_size=1, max_size=120) | st.text("ACGTN", min_size=1, max_size=200)


def tokenize(file: object, content: bytes) -> Tokenize:
    assert isinstance(file, TokenizerFile)
    return file.read(content).tokenize


@given(st.text(PROTEIN.letters, min_size=1, max_size=80))
def test_tokens_of_letters_are_fair_esms(sequence: str) -> None:
    alphabet = Alphabet.from_architecture("ESM-1b")
    _, _, expected = alphabet.get_batch_converter()([("", sequence)])
    assert ESM2.tokenizer.within({}).tokenize(sequence).tolist() == expected[0].tolist()
    names = ("cls", "pad", "eos", "mask")
    assert tuple(alphabet.get_idx(f"<{name}>") for name in names) == (CLS, PAD, EOS, MASK)


@pytest.mark.parametrize("letter", ["J", "-", ".", "*", "m", "<", " "])
def test_letters_that_are_no_residues_are_refused(letter: str) -> None:
    with pytest.raises(ValueError, match="not a normalized sequence"):
        ESM2.tokenizer.within({}).tokenize(f"MK{letter}T")


@given(text)
def test_byte_pairs_are_the_librarys(sequence: str) -> None:
    expected = Tokenizer.from_file(str(BPE)).encode(sequence).ids
    assert tokenize(DNABERT.tokenizer, BPE.read_bytes())(sequence).tolist() == expected


@given(text)
def test_six_mers_are_what_the_authors_rule_finds(sequence: str) -> None:
    ids = {word: number for number, word in enumerate(VOCABULARY.read_text().split())}
    # the first of all tokens that fits, else a letter by itself, from the left
    words = ["<cls>", *re.findall(r"[ACGT]{6}|\S", sequence)]
    expected = [ids.get(word, ids["<unk>"]) for word in words]
    assert tokenize(NT_V1.tokenizer, VOCABULARY.read_bytes())(sequence).tolist() == expected


def test_the_file_is_kept_and_named_with_the_weights(tmp_path: Path) -> None:
    """Other tokens are other weights."""
    made = []
    for name, file in (("dnabert", BPE), ("nt_v1", VOCABULARY)):
        manifest = prepare(TINY[name], source(name), tmp_path / name)
        made.append(manifest.weights_sha256)
        assert manifest.tokenizer_sha256 == sha256_file(file)
        _, tensors, _ = weights.load(tmp_path / name)
        assert tensors[TENSOR].numpy().tobytes() == file.read_bytes()
    changed = Path(copytree(source("nt_v1"), tmp_path / "changed")) / "vocab.txt"
    words = changed.read_text().split()
    changed.unlink()
    changed.write_text("\n".join([*words[:10], words[11], words[10], *words[12:]]))
    other = prepare(TINY["nt_v1"], changed.parent, tmp_path / "other")
    assert other.weights_sha256 not in made


def test_copies_that_cut_and_pad_make_the_same_tokens_by_one_sha256() -> None:
    library = Tokenizer.from_file(str(BPE))
    library.enable_truncation(20)
    library.enable_padding(length=30)
    copy = json.loads(library.to_str())
    merges = copy["model"]["merges"] = [" ".join(pair) for pair in copy["model"]["merges"]]
    assert isinstance(DNABERT.tokenizer, TokenizerFile)
    made = DNABERT.tokenizer.read(json.dumps(copy).encode())
    assert len(made.tokenize("N" * 5000)) == 5002
    assert made.tokenize("A").tolist() == [1, 5, 2]
    assert made.sha256 == DNABERT.tokenizer.read(BPE.read_bytes()).sha256
    merges[0], merges[1] = merges[1], merges[0]
    assert DNABERT.tokenizer.read(json.dumps(copy).encode()).sha256 != made.sha256


def test_other_tokens_than_the_published_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The sets of the Nucleotide Transformer have its authors' words, DNABERT's a shorter list."""
    for name, word in (("dnabert", "tokenizer.json"), ("nt_v1", ""), ("nt_v2", "")):
        add_model(monkeypatch, TINY[name])
        manifest = prepare(TINY[name], source(name), tmp_path / name)
        wanted = f"its {word} makes other tokens than the published one" if word else ""
        assert caveat(TINY[name].name, manifest).endswith(wanted or "file is known")
        if word:
            assert f"; {wanted}" in caveat(TINY[name].name, manifest)
            assert wanted in caplog.text
            known = replace(manifest, published="sha256")
            assert caveat(TINY[name].name, known).endswith(f"weights: {wanted}")


def edited(**parts: object) -> Callable[[str], str]:
    """Return a function that changes parts of tokenizer.json."""

    def edit(text: str) -> str:
        whole = json.loads(text)
        return json.dumps(whole | parts | {"model": whole["model"] | parts.get("model", {})})

    return edit


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("dnabert", None, "lacks tokenizer.json, which decides the tokens of dnabert_tiny"),
        ("dnabert", lambda text: text[:-9], "tokenizer.json is not the tokenizer .*damaged"),
        ("dnabert", edited(post_processor=None), "it makes .* of N"),
        ("dnabert", edited(model={"dropout": 0.1}), "not a byte-pair encoding without dropout"),
        ("nt_v1", lambda text: text.replace("AAAAAA", "AAAAA"), "not a list of the 6-mers"),
        ("nt_v1", lambda text: text + "<eos>\n", "has 4,106 tokens, the model 4,105"),
        ("nt_v1", lambda text: text + "AAAAAA\n", "not a list of the 6-mers"),
    ],
)
def test_a_wrong_file_is_refused(
    name: str, change: Callable[[str], str] | None, words: str, tmp_path: Path
) -> None:
    folder = Path(copytree(source(name), tmp_path / "published"))
    file = folder / (BPE if name == "dnabert" else VOCABULARY).name
    content = file.read_text()
    file.unlink()
    if change:
        file.write_text(change(content))
    with pytest.raises(WeightsError, match=words):
        read(folder, TINY[name])


def test_a_file_of_tensors_has_its_tokenizer_beside_it(tmp_path: Path) -> None:
    copytree(source("dnabert"), tmp_path / "published")
    file = tmp_path / "published" / "pytorch_model.bin"
    (file.parent / "config.json").unlink()
    found = read(file, TINY["dnabert"])
    folder = read(source("dnabert"), TINY["dnabert"])
    assert found.tensors.keys() == folder.tensors.keys()
    assert all(torch.equal(found.tensors[name], folder.tensors[name]) for name in found.tensors)
