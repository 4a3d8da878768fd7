"""Vectors in memory: those of a campaign, whatever way the sequences are given."""

import gc
import random
import time
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from Bio import SeqIO
from Bio.Seq import Seq
from Bio.SeqRecord import SeqRecord

import plm_embed
from plm_embed.errors import ConfigError, PlmEmbedError, WeightsError
from plm_embed.fingerprint import LongSequences, Pooling
from plm_embed.inference.language_model import LanguageModel, embed_like
from plm_embed.inference.settings import Settings
from plm_embed.inference.vector_stream import Step, VectorStream
from plm_embed.kernels import devices
from plm_embed.keys import key
from plm_embed.models.registry import MODELS
from support import checkpoints
from support.buckets import write_bucket
from support.embedded import Embedder, stored

MODEL = "esm2_t3_untrained"
LETTERS = "LAGVSERTIDPKQNFYMHWCX"
WINDOWS = LongSequences("window", 100, 20)


def make_sequences(count: int, longest: int = 250) -> list[str]:
    draw = random.Random(5)
    return ["".join(draw.choices(LETTERS, k=draw.randint(1, longest))) for _ in range(count)]


@pytest.fixture(scope="module")
def model(prepared: Path) -> Iterator[LanguageModel]:
    with plm_embed.load(MODEL, weights=prepared) as model:
        yield model


@pytest.mark.parametrize("long_sequences", [LongSequences(), WINDOWS])
def test_the_vectors_are_those_of_a_campaign_bit_by_bit(
    tmp_path: Path, prepared: Path, model: LanguageModel, long_sequences: LongSequences
) -> None:
    sequences = make_sequences(100)
    poolings: tuple[Pooling, ...] = ("mean", "max", "per_residue")
    settings = Settings(
        pooling=poolings, storage_dtype="float32", long_sequences=long_sequences, scratch=""
    )
    embedder = Embedder(prepared, tmp_path / "store", settings)
    record = embedder.embed(write_bucket(tmp_path, sequences), tmp_path / "0000.json")
    held = stored(tmp_path, record)
    random.Random(6).shuffle(sequences)
    for pooling in poolings:
        fingerprint = model.fingerprint(pooling, -1, long_sequences)
        assert fingerprint == replace(embedder.store.fingerprint, pooling=(pooling,))
        found = model.embed(sequences, pooling=pooling, long_sequences=long_sequences)
        for sequence, vector in zip(sequences, found, strict=True):
            assert vector.dtype == np.float32
            assert np.array_equal(vector, held[key(sequence)][f"{pooling}_l3"])


def test_sequences_may_be_given_in_many_ways(
    model: LanguageModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    sequences = {f"p{number}": each for number, each in enumerate(make_sequences(7))}
    expected = model.embed(list(sequences.values()))
    fasta, table = tmp_path / "p.fasta", tmp_path / "p.csv"
    fasta.write_text("".join(f">{id} x\n{each.lower()}\n" for id, each in sequences.items()))
    table.write_text("id,sequence\n" + "".join(f"{id},{s}\n" for id, s in sequences.items()))
    for given in (
        sequences,
        list(sequences.items()),
        (each for each in sequences.values()),
        [SeqRecord(Seq(each), id=id) for id, each in sequences.items()],
        {id: SeqRecord(Seq(each), id="x") for id, each in sequences.items()},
        [Seq(each) for each in sequences.values()],
        SeqIO.parse(fasta, "fasta"),
        ["..".join(each) for each in sequences.values()],  # aligned
        fasta,
        str(table),
        "~/p.fasta",
    ):
        assert np.array_equal(model.embed(given), expected)
    aligned = ["MK.FASTA", "MK..fasta", "MK.V"]  # no names of files
    assert np.array_equal(model.embed(aligned), model.embed(["MKFASTA", "MKFASTA", "MKV"]))
    assert model.embed([]).shape == (0, 32)
    assert [id for id, _ in model.stream(fasta)] == list(sequences)


def test_embed_is_load_and_embed(model: LanguageModel, prepared: Path) -> None:
    sequences = make_sequences(3)
    options = {"weights": prepared, "bar": False, "threads": 1_000_000}  # as many as cores
    found = plm_embed.embed(sequences, MODEL, layer=1, pooling="max", **options)  # type: ignore[call-overload]
    assert np.array_equal(found, model.embed(sequences, layer=1, pooling="max"))
    crop = {"policy": "crop", "max_residues": 3}
    cropped = plm_embed.embed(["MKVLA"], MODEL, long_sequences=crop, **options)  # type: ignore[call-overload]
    assert np.array_equal(cropped, model.embed(["MKV"]))
    again = model.embed(["MKVLA"], long_sequences=LongSequences("crop", 3))
    assert np.array_equal(cropped, again)


def test_equal_sequences_are_computed_once_and_have_arrays_of_their_own(
    model: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    computed: list[str] = []
    run = VectorStream.run
    monkeypatch.setattr(
        VectorStream, "run", lambda self: (computed.extend(self.sequences), run(self))[1]
    )
    found = model.embed(["MKV", "AAA", "mkv", "MKV*"], pooling="per_residue")
    assert computed == ["MKV", "AAA"]
    assert [matrix.shape for matrix in found] == [(3, 32)] * 4
    assert np.array_equal(found[2], found[0]) and np.array_equal(found[3], found[0])
    found[0][:] = 0
    assert found[2].any() and not np.array_equal(found[1], found[2])


def test_a_stream_takes_no_more_than_it_needs(model: LanguageModel) -> None:
    taken = []

    def endless() -> Iterator[tuple[str, str]]:
        for number in count():
            taken.append(number)
            yield f"s{number}", LETTERS * (1 + number % 10)

    stream = model.stream(endless())
    found = [next(stream) for _ in range(300)]
    assert [id for id, _ in found] == [f"s{number}" for number in range(300)]
    assert len(taken) < 1000
    expected = model.embed([LETTERS * (1 + number % 10) for number in range(300)])
    assert np.array_equal(np.stack([vector for _, vector in found]), expected)


def test_text_before_the_first_header_shifts_nothing(
    model: LanguageModel, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fasta = tmp_path / "p.fasta"
    fasta.write_text("; a comment\n>p1\nMKV\n>p2\nAAA\n")
    for on_error in ("raise", "skip"):
        found = model.embed(fasta, on_error=on_error)
        assert np.array_equal(found, model.embed(["MKV", "AAA"]))
    assert "text before the first header is ignored" in caplog.text


@pytest.mark.parametrize(
    ("given", "said"),
    [("", "is empty; give a path"), (5, "5 is not a path"), (b"x", "b'x' is not a path")],
)
def test_weights_are_a_path(given: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=f"weights: {said}"):
        plm_embed.load(MODEL, weights=given)


def test_threads_and_models_compute_one_at_a_time_and_leave_torch_as_it_was(
    prepared: Path, model: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, at_work, together, seen = VectorStream.run, [0], [0], []

    def counted(stream: VectorStream) -> Iterator[Step]:
        at_work[0] += 1
        together[0] = max(together[0], at_work[0])
        seen.append(torch.get_num_threads())
        for step in run(stream):
            time.sleep(0.01)
            yield step
        at_work[0] -= 1

    sequences = make_sequences(40)
    expected = model.embed(sequences)
    before = torch.get_num_threads()
    monkeypatch.setattr(devices, "cores", lambda: before + 1)
    other = plm_embed.load(MODEL, weights=prepared, threads=before + 1)
    monkeypatch.setattr(VectorStream, "run", counted)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda each: each.embed(sequences), [model, other, model, other]))
    assert all(np.array_equal(vectors, expected) for vectors in found) and together == [1]
    assert sorted(seen) == [before, before, before + 1, before + 1]
    assert torch.get_num_threads() == before


def test_a_closed_model_says_so_and_holds_no_weights(prepared: Path) -> None:
    model = plm_embed.load(MODEL, weights=prepared)
    assert repr(model) == "<esm2_t3_untrained: 3 layers, width 32, float32 on cpu>"
    assert model._room
    engine = weakref.ref(model._room.engine)
    model.close()
    gc.collect()
    assert engine() is None
    with pytest.raises(PlmEmbedError, match="was closed; load it again"):
        model.embed(["MKV"])


def test_weights_are_made_once_and_found_again(
    tmp_path: Path, prepared: Path, monkeypatch: pytest.MonkeyPatch, model: LanguageModel
) -> None:
    monkeypatch.setenv("PLM_EMBED_WEIGHTS", str(tmp_path / "cache"))
    expected = model.embed(["MKV"])
    for _ in range(2):
        found = plm_embed.embed(["MKV"], MODEL, weights=checkpoints.DEMO)
        assert np.array_equal(found, expected)
    (made,) = [path for path in (tmp_path / "cache").iterdir() if path.is_dir()]
    assert made.name.startswith(f"{MODEL}-")
    with pytest.raises(
        WeightsError, match=f"holds the weights of {MODEL}, not of esm2_t6_8M_UR50D"
    ):
        plm_embed.embed(["MKV"], weights=prepared)
    assert np.array_equal(plm_embed.embed(["MKV"], MODEL), expected)  # it is shipped
    monkeypatch.setenv("PLM_EMBED_WEIGHTS", str(checkpoints.DEMO))
    with pytest.raises(WeightsError, match="set PLM_EMBED_WEIGHTS, or weights_folder, to a folder"):
        plm_embed.embed(["MKV"], MODEL, weights=checkpoints.DEMO)


def test_vectors_like_those_of_a_store_need_its_very_weights(
    tmp_path: Path, prepared: Path, model: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PLM_EMBED_WEIGHTS", str(tmp_path / "cache"))
    fingerprint = model.fingerprint("max", 2)
    labels, found = embed_like(fingerprint, "max_l2", ["MKV", ("a", "AAA")], prepared)
    assert labels == ["1", "a"]
    assert np.array_equal(found, model.embed(["MKV", "AAA"], pooling="max", layer=2))
    assert embed_like(fingerprint, "max_l2", [], prepared)[1].shape == (0, 32)
    other = tmp_path / "other.pt"
    state = checkpoints.random_state(MODELS[MODEL], 99)
    checkpoints.write_fair_esm(other, MODELS[MODEL], state)
    with pytest.raises(WeightsError, match="than those that made these vectors"):
        embed_like(fingerprint, "max_l2", ["MKV"], other)
