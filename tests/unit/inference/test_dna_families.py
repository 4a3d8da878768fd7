"""Vectors of DNA, whose tokens are not letters: tokenized ahead, batched by their true number."""

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from plm_embed.errors import ConfigError, InputError
from plm_embed.fingerprint import SPANS, LongSequences, Pooling
from plm_embed.inference import vector_stream
from plm_embed.inference.inputs import named_sequences
from plm_embed.inference.language_model import LanguageModel
from plm_embed.inference.loading import Room
from plm_embed.inference.reference import reference_vectors
from plm_embed.inference.vector_stream import VectorStream
from plm_embed.inference.weights import prepare
from plm_embed.models.engine import Batch, Engine
from plm_embed.sequence_windows import span_ends
from support.families import TINY, add_model, golden, relative, source


def make_dna(count: int, longest: int, letters: str = "ACGT") -> list[str]:
    draw = random.Random(3)
    return ["".join(draw.choices(letters, k=draw.randint(1, longest))) for _ in range(count)]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Path]]:
    root = tmp_path_factory.mktemp("dna")
    with pytest.MonkeyPatch.context() as patch:
        for name in ("dnabert", "nt_v1"):
            add_model(patch, TINY[name])
            prepare(TINY[name], source(name), root / name)
        yield {name: root / name for name in ("dnabert", "nt_v1")}


def load(folder: Path) -> LanguageModel:
    return LanguageModel(
        TINY[folder.name].name, folder, device="cpu", dtype="float32", threads=1
    ).load()


@pytest.fixture(scope="module")
def model(folders: dict[str, Path]) -> Iterator[LanguageModel]:
    with load(folders["dnabert"]) as model:
        yield model


def stream_of(model: LanguageModel, sequences: list[str], budget: int) -> VectorStream:
    engine = engine_of(model)
    return VectorStream(Room(engine, budget), model.fingerprint(), sequences)


def engine_of(model: LanguageModel) -> Engine:
    assert model._room
    return model._room.engine


@pytest.mark.parametrize("policy", [LongSequences(), LongSequences("window", 150, 20)])
def test_vectors_are_the_references(
    model: LanguageModel, folders: dict[str, Path], policy: LongSequences
) -> None:
    named = list(named_sequences([*make_dna(8, 400), "N", "ACGTRYSWKMBDHVN"], model.policy))
    poolings: tuple[Pooling, ...] = ("mean", "mean_special", "max", "bos")
    asked = replace(model.fingerprint("mean", -1, policy), pooling=poolings)
    expected = reference_vectors(folders["dnabert"], [one.sequence for one in named], asked)
    for vectors, wanted in zip(model.vectors(named, asked), expected, strict=True):
        assert vectors
        for name in asked.representations:
            np.testing.assert_allclose(vectors[name], wanted[name], atol=2e-5)


def test_batches_are_filled_by_the_true_number_of_tokens(
    model: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vector_stream, "BATCHES_AHEAD", 2)
    monkeypatch.setattr(vector_stream, "TOKENIZED_TOGETHER", 4)
    sequences = [*make_dna(150, 300), *make_dna(10, 300, "N"), "A" * 2000]
    stream = stream_of(model, sequences, 512)
    steps = list(stream.run())
    assert sorted(i for step in steps for i, _ in step.finished) == list(range(len(sequences)))
    assert sum(step.counted for step in steps) == stream.tokens
    engine = engine_of(model)
    assert sum(step.tokens for step in steps) == sum(len(engine.tokenize(s)) for s in sequences)
    full = [step.tokens for step in steps if len(step.finished) > 1]
    assert max(full) <= 512
    assert np.median(full) > 480


def test_pieces_that_memory_did_not_hold_are_tokenized_again(
    model: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    sequences, engine = make_dna(30, 200), engine_of(model)
    forward, refused = engine.forward, []

    def short_of_memory(batch: Batch, *others: Any) -> Any:
        if len(batch.tokens) > 256:
            refused.append(batch)
            raise torch.OutOfMemoryError
        return forward(batch, *others)

    expected = dict(
        pair for step in stream_of(model, sequences, 512).run() for pair in step.finished
    )
    monkeypatch.setattr(engine, "forward", short_of_memory)
    steps = list(stream_of(model, sequences, 512).run())
    assert refused
    for i, vectors in (pair for step in steps for pair in step.finished):
        assert np.array_equal(vectors["mean_l3"], expected.pop(i)["mean_l3"])
    assert not expected


def test_more_tokens_than_positions_are_refused(folders: dict[str, Path]) -> None:
    with load(folders["nt_v1"]) as model:
        whole, wordy = "ACGTTC" * 999, "ACGTN" * 400
        assert np.isfinite(model.embed([whole])).all()
        with pytest.raises(InputError, match="sequence 2: too_many_tokens"):
            model.embed([whole, wordy])
        found = model.embed([wordy, whole], on_error="skip")
        assert np.isnan(found[0]).all()
        assert np.isfinite(found[1]).all()
        windows = LongSequences("window", 999, 99)
        assert np.isfinite(model.embed([wordy], long_sequences=windows)).all()
        with pytest.raises(InputError, match="too_long"):
            model.embed([whole + "A"])


def test_a_row_per_residue_is_refused(model: LanguageModel) -> None:
    words = "per_residue: a token of dnabert_tiny is several bases; choose per_token"
    with pytest.raises(ConfigError, match=words):
        model.embed(["ACGT"], pooling="per_residue")


@pytest.mark.parametrize("name", ["dnabert", "nt_v1"])
def test_rows_per_token_are_the_published_ones_and_say_their_bases(
    name: str, folders: dict[str, Path]
) -> None:
    known = golden(name)
    with load(folders[name]) as model:
        found = model.embed(list(known.sequences), pooling="per_token")
        family = model.manifest.as_model.family
        tokenize = engine_of(model).tokenize
        streamed = dict(model.stream({"a": known.sequences[0]}, pooling="per_token"))
        left_out = model.embed(["!"], pooling="per_token", on_error="skip")[0]
    assert np.array_equal(streamed["a"].spans, found[0].spans)
    assert left_out.vectors.shape == (0, model.manifest.dim)
    assert left_out.spans.shape == (0, 2)
    assert known.tokens
    for at, states in known.tokens.items():
        own = slice(*family.residues(states.shape[1]))
        assert relative(found[at].vectors, states[-1][own]) < 1e-5
    for sequence, (vectors, spans) in zip(known.sequences, found, strict=True):
        assert len(vectors) == len(spans)
        assert spans[0, 0] == 0 and spans[-1, 1] == len(sequence)
        assert (spans[1:, 0] == spans[:-1, 1]).all()
        ids = tokenize(sequence)[slice(*family.residues(len(spans) + family.tokens(0)))]
        words = [sequence[first:stop] for first, stop in spans.tolist()]
        # equal tokens are equal words, but for the letters that are unknown
        pairs = {(one, word) for one, word in zip(ids.tolist(), words, strict=True)}
        several = [one for one, count in Counter(one for one, _ in pairs).items() if count > 1]
        assert all(len(word) == 1 for one, word in pairs if one in several)


@pytest.mark.parametrize("policy", [LongSequences(), LongSequences("window", 150, 20)])
def test_rows_per_token_do_not_depend_on_company(
    model: LanguageModel, folders: dict[str, Path], policy: LongSequences
) -> None:
    sequences = [*make_dna(40, 700), "ACGTRYSWKMBDHVN" * 30]
    together = model.embed(sequences, pooling="per_token", long_sequences=policy)
    some = sequences[::8]
    asked = model.fingerprint("per_token", -1, policy)
    expected = reference_vectors(folders["dnabert"], some, asked)
    for sequence, rows, wanted in zip(some, together[::8], expected, strict=True):
        (alone,) = model.embed([sequence], pooling="per_token", long_sequences=policy)
        assert np.array_equal(alone.vectors, rows.vectors)
        assert np.array_equal(alone.spans, rows.spans)
        np.testing.assert_allclose(rows.vectors, wanted["per_token_l3"], atol=2e-5)
        assert np.array_equal(rows.spans, span_ends(wanted[SPANS]))


@pytest.mark.parametrize(
    ("name", "sequences", "most"),
    [
        ("dnabert", ["ACGT" * 90, "N" * 400], 300),
        ("nt_v1", ["ACGTTC" * 100, "ACGTN" * 400], 2500),  # positions for fewer
    ],
)
def test_the_reference_leaves_out_what_has_too_many_tokens(
    name: str, sequences: list[str], most: int, folders: dict[str, Path]
) -> None:
    """Unknown letters are a token each."""
    with load(folders[name]) as loaded:
        fingerprint = loaded.fingerprint()
    vectors, nothing = reference_vectors(folders[name], sequences, fingerprint, most_tokens=most)
    (alone,) = reference_vectors(folders[name], sequences[:1], fingerprint)
    assert not nothing
    assert all(np.array_equal(vectors[key], alone[key]) for key in alone)
