"""Scores: those of the authors' formulas in float64, in any company, beside vectors of the same
bits.
"""

import argparse
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import esm
import numpy as np
import pytest
import torch
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

import plm_embed
from plm_embed.cli.main import group
from plm_embed.errors import ConfigError, DeviceError, InputError, WeightsError
from plm_embed.fingerprint import SCORES, ComputeDtype, Fingerprint, LongSequences, Score
from plm_embed.inference import check_weights
from plm_embed.inference.inputs import named_sequences
from plm_embed.inference.language_model import LanguageModel
from plm_embed.inference.reference import reference_vectors
from plm_embed.inference.vector_stream import MASKED, VectorStream
from plm_embed.inference.weights import prepare
from plm_embed.io.json_files import write_sealed
from plm_embed.models import layers
from plm_embed.models.registry import MODELS, Model
from plm_embed.models.weights import HEAD, MANIFEST, read_manifest
from support import checkpoints
from support.families import (
    add_model,
    golden,
    published,
    source,
    write_esmc_hub,
    write_esmc_native,
)
from support.golden import FORMULAS, LOGITS
from support.packed import packed_batch
from support.tiny_models import TINY

Logits = Callable[[torch.Tensor], torch.Tensor]
"""Token ids (T,) to logits (T, V), in float64."""
MODEL = "esm2_t3_untrained"
GOLDEN = Path(__file__).parents[2] / "data" / "esm2_golden" / "esm2_t3_tiny_random.pt"
TINY_GOLDEN = Model("esm2_t3_tiny_random", checkpoints.ESM2, layers=3, dim=32, heads=2)
PEPTIDES = ["M", "MK", "FVNQHLCGSHLVEALYLVCGERGFFYTPKT", "MLAGVSERTIDPKQNFYMHWCXBUZO"]


def expected(logits: Logits, ids: Sequence[int], mask: int) -> dict[str, float]:
    """The scores of a sequence between one special token and another, by their definitions."""
    tokens = torch.tensor(ids)
    logs = torch.log_softmax(logits(tokens), -1)[1:-1]
    masked = []
    for place in range(1, len(ids) - 1):
        hidden = tokens.clone()
        hidden[place] = mask
        masked.append(torch.log_softmax(logits(hidden)[place], -1)[tokens[place]])
    return {
        "log_likelihood": float(logs.gather(1, tokens[1:-1, None]).mean()),
        "entropy": float(-(logs.exp() * logs).sum(-1).mean()),
        "pseudo_perplexity": float(torch.exp(-torch.stack(masked).mean())),
    }


def fair_esm_logits(path: Path) -> Logits:
    """The logits of fair-esm's own program, which treats a masked token as in training."""
    with torch.serialization.safe_globals([argparse.Namespace]):
        model, _ = esm.pretrained.load_model_and_alphabet(str(path))
    model.double().eval()
    return lambda ids: model(ids[None])["logits"][0].detach()


def check(model: LanguageModel, sequences: Sequence[str], logits: Logits, mask: int) -> None:
    scores = model.score(sequences, scores=SCORES)
    for row, sequence in enumerate(sequences):
        assert model._room
        ids = model._room.engine.tokenize(sequence).tolist()
        for kind, value in expected(logits, ids, mask).items():
            assert scores[kind].dtype == np.float32
            assert scores[kind][row] == pytest.approx(value, rel=2e-5, abs=2e-5), (sequence, kind)


@pytest.mark.parametrize("name", LOGITS)
def test_scores_are_those_of_the_authors_formulas(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_model(monkeypatch, TINY[name])
    monkeypatch.setenv("PLM_EMBED_WEIGHTS", str(tmp_path))
    weights, config = published(name)
    head, mask = LOGITS[name]
    sequences = sorted(golden(name).sequences, key=len)[:7]
    with plm_embed.load(TINY[name].name, weights=source(name)) as model:
        check(
            model,
            sequences,
            lambda ids: head(weights, config, FORMULAS[name](weights, config, ids)[-1]),
            mask,
        )


@pytest.mark.parametrize("kind", ["esm2", "esm1b"])
def test_scores_of_esm_are_those_of_fair_esm(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, path = TINY_GOLDEN, GOLDEN
    if kind == "esm1b":
        model, path = checkpoints.TINY_ESM1B, tmp_path / "esm1b_t2_tiny.pt"
        checkpoints.write_fair_esm(path, model, checkpoints.random_state(model, 3))
        content = torch.load(path, weights_only=False)
        other = torch.load(GOLDEN, weights_only=False)["model"]
        heads = {n: t for n, t in other.items() if ".lm_head." in n and n[-14:] != "lm_head.weight"}
        content["model"] |= heads
        torch.save(content, path)
    add_model(monkeypatch, model)
    monkeypatch.setenv("PLM_EMBED_WEIGHTS", str(tmp_path / "cache"))
    with plm_embed.load(model.name, weights=path) as loaded:
        check(loaded, PEPTIDES, fair_esm_logits(path), checkpoints.MASK)


@pytest.fixture(scope="module")
def models(prepared: Path) -> Iterator[dict[str, LanguageModel]]:
    dtypes: tuple[ComputeDtype, ...] = ("float32", "bfloat16", "float16", "int8")
    loaded = {dtype: plm_embed.load(MODEL, weights=prepared, dtype=dtype) for dtype in dtypes}
    yield loaded
    for model in loaded.values():
        model.close()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "int8"])
@settings(max_examples=5, deadline=None)
@given(data=st.data())
def test_a_score_has_the_same_bits_in_any_company(
    dtype: str, models: dict[str, LanguageModel], data: st.DataObject
) -> None:
    residues = st.text("LAGVSERTIDPKQNFYMHWCX", min_size=1, max_size=60)
    sequences = data.draw(st.lists(residues, min_size=1, max_size=4, unique=True))
    company = data.draw(st.lists(st.text("MKWLA", min_size=1, max_size=700), max_size=3))
    model = models[dtype]
    together = model.score([*company, *sequences], scores="log_likelihood")["log_likelihood"]
    small = model.score([*reversed(sequences)], scores=SCORES)
    for place, sequence in enumerate(sequences):
        alone = model.score([sequence], scores=SCORES)
        assert together[len(company) + place] == alone["log_likelihood"][0]
        for kind in SCORES:
            assert small[kind][len(sequences) - 1 - place] == alone[kind][0]


def with_scores(plain: Fingerprint, model: LanguageModel, *scores: Score) -> Fingerprint:
    return replace(plain, scores=scores, head_sha256=model.manifest.head_sha256 or "")


def test_vectors_have_the_same_bits_beside_scores(models: dict[str, LanguageModel]) -> None:
    model = models["float32"]
    named = list(named_sequences([*PEPTIDES, "ACDEFGHIKLMNPQRSTVWY" * 40], model.policy))
    plain = replace(model.fingerprint("mean", 1, LongSequences("window", 300, 60)), layers=(1, 2))
    scored = with_scores(plain, model, *SCORES)
    both = zip(model.vectors(named, plain), model.vectors(named, scored), strict=True)
    for vectors, more in both:
        assert vectors and more and set(more) == {*vectors, *SCORES}
        assert all(np.array_equal(vectors[name], more[name]) for name in vectors)
    assert plain.id != scored.id
    assert "scores" not in plain.to_json() and "head" not in plain.to_json()
    assert type(plain).from_json(scored.to_json()) == scored


def test_an_interruption_costs_the_masked_passes_of_few_sequences(
    models: dict[str, LanguageModel],
) -> None:
    model, texts = models["float32"], ["LAGV" * 15 + residue for residue in "ACDEFGHI"]
    scored = with_scores(model.fingerprint(), model, "pseudo_perplexity")
    assert model._room
    stream = VectorStream(model._room, scored, texts)
    tokens, finished = 0, 0
    for step in stream.run():
        tokens, finished = tokens + step.tokens, finished + len(step.finished)
        unfinished = tokens - 63 * len(texts) - finished * 61 * 63
        assert unfinished < 61 * 63 + model._room.budget
    assert finished == len(texts)
    assert tokens == stream.tokens == 8 * 62 * 63


def test_each_residue_of_windows_counts_once(models: dict[str, LanguageModel]) -> None:
    """Where the halves of two windows meet, the first one's residues end."""
    model, text = models["float32"], "ACDEFGHIKLMNPQRSTVWYMKLLV" * 3
    windows = {"policy": "window", "max_residues": 50, "overlap": 25}
    joined = model.score([text], long_sequences=windows, scores=SCORES)
    assert model._room
    engine, sums, masked = model._room.engine, np.zeros(2), 0.0
    plain = replace(model.fingerprint(), pooling=())
    for start, stop, part in ((0, 50, slice(0, 37)), (25, 75, slice(12, 50))):
        batch = packed_batch(engine, [text[start:stop]])
        scores = engine.token_scores(engine.forward(batch, [3])[3], batch.tokens)
        sums += scores[1:-1][: stop - start][part].double().sum(0).numpy()
        places, hidden = range(stop - start)[part], engine.own_tokens(text[start:stop])
        passes = VectorStream(model._room, plain, [text[start:stop]] * len(places), places)
        finished = (pair for step in passes.run() for pair in step.finished)
        masked += sum(float(v[MASKED][hidden[places[number]]]) for number, v in finished)
    perplexity = np.exp(-masked / len(text))
    assert joined["pseudo_perplexity"][0] == pytest.approx(perplexity, rel=1e-6)
    for kind, mean in zip(("log_likelihood", "entropy"), sums / len(text), strict=True):
        assert joined[kind][0] == pytest.approx(mean, rel=1e-6)
    whole = model.score([text], scores=SCORES)
    for kind in SCORES:
        assert joined[kind][0] != whole[kind][0]
        assert joined[kind][0] == pytest.approx(whole[kind][0], rel=0.5)


def test_the_reference_masks_what_a_cropped_sequence_keeps(
    models: dict[str, LanguageModel], prepared: Path
) -> None:
    model, text, crop = models["float32"], PEPTIDES[2], LongSequences("crop", 10)
    scored = with_scores(model.fingerprint("mean", -1, crop), model, "pseudo_perplexity")
    scores = model.score([text], scores="pseudo_perplexity", long_sequences=crop)
    (reference,) = reference_vectors(prepared, [text], scored, masked_tokens=1000)
    assert reference["pseudo_perplexity"] == pytest.approx(scores["pseudo_perplexity"], rel=1e-5)


def test_the_reference_masks_the_shortest_sequence_and_others_within_a_limit(
    models: dict[str, LanguageModel], prepared: Path
) -> None:
    """10 passes of 12 tokens each: ten times the limit for the first."""
    model = models["float32"]
    scored = with_scores(model.fingerprint(), model, "pseudo_perplexity")
    texts = ["M" * 30, "ACDEFGHIKL", "LKIHGFEDCA"]
    for limit, masked in ((11, 0), (12, 1), (239, 1), (240, 2)):
        computed = reference_vectors(prepared, texts, scored, masked_tokens=limit)
        expected = [False, masked > 0, masked > 1]
        assert ["pseudo_perplexity" in vectors for vectors in computed] == expected


def test_a_sequence_without_a_score_is_named_or_nan(models: dict[str, LanguageModel]) -> None:
    model = models["float32"]
    skip = {"policy": "skip", "max_residues": 10}
    scores = model.score(
        ["MKT", "M" * 11, "MK1", "MKT"], long_sequences=skip, on_error="skip", scores=SCORES
    )
    for values in scores.values():
        assert np.isnan(values).tolist() == [False, True, True, False]
        assert values[0] == values[3]
    with pytest.raises(InputError, match="sequence 2"):
        model.score(["MKT", "MK1"])


def test_variants_are_scored_by_masked_marginals(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_model(monkeypatch, TINY_GOLDEN)
    monkeypatch.setenv("PLM_EMBED_WEIGHTS", str(tmp_path))
    text, logits = PEPTIDES[2], fair_esm_logits(GOLDEN)
    with plm_embed.load(TINY_GOLDEN.name, weights=GOLDEN) as model:
        assert model._room
        engine = model._room.engine
        ids = torch.tensor(engine.tokenize(text).tolist())

        def marginal(place: int, new: str) -> float:
            hidden = ids.clone()
            hidden[place] = checkpoints.MASK
            logs = torch.log_softmax(logits(hidden)[place], -1)
            return float(logs[engine.own_tokens(new)[0]] - logs[ids[place]])

        scores = model.score_variants(text, ["F1A", "v2w", "T30K", "F1A:T30K", "N3N"])
        values = [marginal(1, "A"), marginal(2, "W"), marginal(30, "K")]
        assert scores == pytest.approx([*values, values[0] + values[2], 0], abs=2e-5)
        assert scores[0] == model.score_variants(text, ["F1A"])[0]  # in any company
        assert len(model.score_variants(text, [])) == 0
        for variant, words in (
            ("A1T", "residue 1 is F"),
            ("F31A", "the residues are 1 to 30"),
            ("F0A", "the residues are 1 to 30"),
            ("F1", "'F1' is no substitution of a residue"),
            ("F1J", "'F1J' is no substitution of a residue"),
            ("F1A:F1G", "residue 1 is substituted twice"),
            ("", "'' is no substitution of a residue"),
        ):
            with pytest.raises(InputError, match=f"variant '{variant}': {words}"):
                model.score_variants(text, [variant])
        with pytest.raises(InputError, match=r"unknown_residue|invalid"):
            model.score_variants("MK1", ["M1A"])


def test_models_and_scores_that_there_are_none_of(prepared: Path) -> None:
    with pytest.raises(ConfigError, match=r"prot_t5.*no probabilities of residues; docs/python"):
        plm_embed.score(["MKT"], "prot_t5_xl_uniref50")
    with pytest.raises(ConfigError, match=r"scores: 'log_likelyhood' is not .*log_likelihood"):
        plm_embed.score(["MKT"], MODEL, scores=["log_likelyhood"], weights=prepared)  # type: ignore[list-item]


def without_head(folder: Path) -> None:
    """Make prepared weights what an earlier version left, which kept no head."""
    with np.load(folder / "self_test.npz") as stored:
        np.savez(folder / "self_test.npz", mean=stored["mean"])
    digest = checkpoints.sha256_file(folder / "self_test.npz")
    manifest = replace(read_manifest(folder), head_sha256=None, self_test_sha256=digest)
    write_sealed(folder / MANIFEST, manifest)
    (folder / HEAD).unlink()


def test_a_head_that_an_earlier_version_left_out_is_taken_from_the_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PLM_EMBED_WEIGHTS", str(tmp_path / "cache"))
    source = shutil.copy(checkpoints.DEMO, tmp_path / "untrained.pt")
    made = prepare(MODELS[MODEL], source)
    folder = Path(made.folder or "")
    whole = {path.name: path.read_bytes() for path in folder.iterdir()}
    scores = plm_embed.score(PEPTIDES, MODEL, weights=folder)["log_likelihood"]
    without_head(folder)
    vectors = plm_embed.embed(PEPTIDES, MODEL, weights=folder)
    assert read_manifest(folder).head_sha256 is None  # vectors need none
    with plm_embed.load(MODEL, weights=folder) as model:
        assert np.array_equal(model.embed(PEPTIDES, bar=False), vectors)
        assert np.array_equal(model.score(PEPTIDES, bar=False)["log_likelihood"], scores)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == whole

    without_head(folder)
    command = ["weights", "--model", MODEL, "--source", str(source), "--settings"]
    scores = '{"scores": ["entropy"]}'
    assert not CliRunner().invoke(group, [*command, scores], catch_exceptions=False).exit_code
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == whole


@pytest.mark.parametrize(
    ("change", "words"),
    [("gone", "no head of the language model"), ("other weights", "holds other weights")],
)
def test_without_the_checkpoint_the_remedy_is_named(
    change: str, words: str, tmp_path: Path
) -> None:
    source, folder = Path(shutil.copy(checkpoints.DEMO, tmp_path / "x.pt")), tmp_path / "prepared"
    prepare(MODELS[MODEL], source, folder)
    without_head(folder)
    source.unlink()
    if change == "other weights":
        checkpoints.write_fair_esm(
            source, MODELS[MODEL], checkpoints.random_state(MODELS[MODEL], 9)
        )
    with plm_embed.load(MODEL, weights=folder) as model:
        room = model._room
        with pytest.raises(WeightsError, match=words) as caught:
            model.score(PEPTIDES, bar=False)
        assert model._room is room  # not loaded again
    assert f"delete {folder}" in str(caught.value)


def test_a_device_that_computes_wrong_scores_fails_its_self_test(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare(MODELS[MODEL], None, tmp_path)
    log_probabilities = layers.LMHead.log_probabilities

    def wrong(head: layers.LMHead, x: torch.Tensor) -> torch.Tensor:
        return log_probabilities(head, x * 1.01)

    monkeypatch.setattr(layers.LMHead, "log_probabilities", wrong)
    with pytest.raises(DeviceError, match=r"self-test failed .*: scores of .* differ .* nats"):
        list(check_weights.check(tmp_path))
    with plm_embed.load(MODEL, weights=tmp_path) as model:
        with pytest.raises(DeviceError, match="scores of"):
            model.score(["MKT"], bar=False)
        assert model.embed(["MKT"], bar=False).shape == (1, 32)  # which needs no head


def test_a_checkpoint_whose_head_is_not_whole_has_vectors(tmp_path: Path) -> None:
    content = torch.load(checkpoints.DEMO, weights_only=False)
    head = {n: t for n, t in content["model"].items() if ".lm_head." in n}
    trunk = {n: t for n, t in content["model"].items() if n not in head}
    bias = "encoder.lm_head.bias"
    for name, kept in (
        ("none", {}),
        ("part", {n: t for n, t in head.items() if "dense.bias" not in n}),
        ("nan", head | {bias: torch.full((33,), torch.nan)}),
        ("rows", head | {bias: torch.zeros(30)}),
    ):
        path, folder = tmp_path / name / f"{MODEL}.pt", tmp_path / f"{name}_prepared"
        path.parent.mkdir()
        torch.save(content | {"model": trunk | kept}, path)
        assert prepare(MODELS[MODEL], path, folder).head_sha256 is None
        assert not (folder / HEAD).exists()
    with plm_embed.load(MODEL, weights=folder) as loaded:
        with pytest.raises(WeightsError, match="no head of the language model"):
            loaded.score(["MKT"])
        loaded.embed(["MKT"])


def test_every_layout_of_esm_c_has_the_same_head(tmp_path: Path) -> None:
    model, state = TINY["esmc"], torch.load(source("esmc"), weights_only=True)
    hub = write_esmc_hub(tmp_path / "model.safetensors", state)
    native = write_esmc_native(tmp_path / "native", state, model.layers)
    heads = [
        prepare(model, place, tmp_path / str(number)).head_sha256
        for number, place in enumerate((source("esmc"), hub, native))
    ]
    assert heads[0] and heads == heads[:1] * 3
