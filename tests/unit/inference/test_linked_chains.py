"""Pairs of chains: the vectors of the linked chains without the linker."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import plm_embed
from plm_embed.errors import ConfigError, InputError
from plm_embed.fingerprint import Fingerprint, LongSequences
from plm_embed.inference.language_model import embed_like
from plm_embed.inference.reference import reference_vectors
from plm_embed.inference.weights import prepare
from support.families import TINY, add_model, golden, relative, source

MODEL = "esm2_t3_untrained"
LINKER = 25 * "G"
HEAVY, LIGHT = "EVQLVESGGGLVQPGGSLRLSCAASGFTFS", "DIQMTQSPSSLSASVGDRVTITC"
OTHERS = [("MKV", "AYIAKQR"), (LIGHT, HEAVY), (HEAVY, HEAVY), ("G", 300 * "ACDEF")]
PROTEIN = [name for name, model in TINY.items() if model.family.alphabet.name == "protein"]


@pytest.mark.parametrize("name", PROTEIN)
def test_the_mean_of_a_pair_is_that_of_the_reference_over_both_chains(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = TINY[name]
    add_model(monkeypatch, model)
    prepare(model, source(name), tmp_path)
    first, second = (sequence[:40] for sequence in golden(name).sequences[:2])
    poolings = ("mean", "max", "mean_chain1", "mean_chain2", "per_residue")
    with plm_embed.load(model.name, weights=tmp_path, dtype="float32", linker="GGS") as loaded:
        computed = {
            pooling: loaded.embed([(first, second)], pooling=pooling)[0] for pooling in poolings
        }
        of_pairs = replace(loaded.fingerprint().of_reference, pooling=poolings)
    one = replace(of_pairs, linker="", pooling=("per_residue",))
    (states,) = reference_vectors(tmp_path, [f"{first}GGS{second}"], one)
    (linked,) = states.values()
    chains = linked[: len(first)], linked[len(first) + 3 :]
    residues = np.concatenate(chains)
    wanted = residues.mean(0), residues.max(0), chains[0].mean(0), chains[1].mean(0), residues
    (by_reference,) = reference_vectors(tmp_path, [f"{first}:{second}"], of_pairs)
    for pooling, expected, again in zip(poolings, wanted, by_reference.values(), strict=True):
        assert computed[pooling].shape == expected.shape
        assert relative(computed[pooling], expected) < 1e-5
        assert relative(again, expected) < 1e-6


def test_a_pair_has_the_same_bits_in_any_company(prepared: Path) -> None:
    poolings: tuple[Any, ...] = ("mean", "mean_special", "mean_chain2", "per_residue")
    with plm_embed.load(MODEL, weights=prepared, linker=LINKER) as model:
        for pooling in poolings:
            together = model.embed([*OTHERS, (HEAVY, LIGHT)], pooling=pooling)
            (alone,) = model.embed([(HEAVY, LIGHT)], pooling=pooling)
            assert np.array_equal(together[-1], alone)
            assert not np.array_equal(together[1], alone)  # the order counts


def test_pairs_may_be_given_in_many_ways(prepared: Path, tmp_path: Path) -> None:
    fasta = tmp_path / "pairs.fasta"
    fasta.write_text(f">ab\n{HEAVY}:\n{LIGHT.lower()}\n")
    with plm_embed.load(MODEL, weights=prepared, linker=LINKER) as model:
        (vector,) = model.embed([(HEAVY, LIGHT)])
        text = f"{HEAVY}:{LIGHT}"
        for pairs in (
            [text], [[HEAVY, LIGHT]], [("ab", (HEAVY, LIGHT))], [("ab", text)],
            {"ab": (HEAVY, LIGHT)}, {"ab": text}, fasta,
        ):  # fmt: skip
            assert np.array_equal(model.embed(pairs), [vector])  # type: ignore[call-overload]
        assert next(model.stream({"ab": (HEAVY, LIGHT)}))[0] == "ab"
        kind = replace(model.fingerprint(), storage_dtype="float16")
        names, vectors = embed_like(kind, "mean_l3", [("ab", (HEAVY, LIGHT))], prepared)
        assert names == ["ab"] and np.array_equal(vectors[0], vector.astype(np.float16))
        bad: dict[str, Any] = {
            "sequence 1: missing_value": (HEAVY, None),
            r"sequence 1 \(ab\): missing_value": ("ab", (float("nan"), LIGHT)),
            r"not_a_pair \(1 chain, where": HEAVY,
            r"not_a_pair \(3 chains, where": f"{text}:{HEAVY}",
            r"empty \(chain 1\)": ("", LIGHT),
            r"unknown_residues \(chain 2: J at 2\)": (HEAVY, "AJ"),
        }
        vectors = model.embed([*bad.values(), text], on_error="skip")
        assert np.isnan(vectors).all(axis=1).tolist() == [*[True] * len(bad), False]
        for words, item in bad.items():
            with pytest.raises(InputError, match=words):
                model.embed([item])
    with pytest.raises(InputError, match=r"is no sequence; .*; for pairs of chains, name a linker"):
        plm_embed.embed([("ab", (HEAVY, LIGHT))], MODEL, weights=prepared)


def test_chains_without_a_linker_are_warned_of(
    prepared: Path, caplog: pytest.LogCaptureFixture
) -> None:
    plm_embed.embed([("ALBUMIN", LIGHT), (HEAVY, LIGHT)], MODEL, weights=prepared)
    assert not caplog.text
    plm_embed.embed([(HEAVY, LIGHT), (LIGHT, HEAVY)], MODEL, weights=prepared)
    assert "the ids look like sequences; for pairs of chains, name a linker" in caplog.text


def test_the_linker_is_a_science_setting(prepared: Path) -> None:
    with plm_embed.load(MODEL, weights=prepared) as model:
        single = model.fingerprint()
        with pytest.raises(ConfigError, match="mean_chain1: sequences are single chains"):
            model.fingerprint("mean_chain1")
    assert "linker" not in single.to_json()
    pairs = replace(single, linker=LINKER)
    assert pairs.id != single.id and Fingerprint.from_json(pairs.to_json()) == pairs
    assert single.differences(pairs) == [f"linker:  here, {LINKER} there"]
    with plm_embed.load(MODEL, weights=prepared, linker=LINKER) as model:
        assert model.fingerprint() == pairs
        with pytest.raises(ConfigError, match="window: would part the chains of a pair"):
            model.fingerprint(long_sequences=LongSequences("window", 20, 5))
        skip = LongSequences("skip", len(HEAVY + LIGHT))  # which counts no linker
        assert len(model.embed([(HEAVY, LIGHT)], long_sequences=skip)) == 1
        with pytest.raises(InputError, match=r"too_long \(54 residues\)"):
            model.embed([(HEAVY, LIGHT + "A")], long_sequences=skip)
    with pytest.raises(ConfigError, match="linker: ggs: must be residues in capital letters"):
        plm_embed.embed([(HEAVY, LIGHT)], MODEL, weights=prepared, linker="ggs")
