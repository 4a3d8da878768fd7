"""Two masters compared: equal, within a tolerance, or which records differ and by how much."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest

from plm_embed.errors import PlmEmbedError
from plm_embed.reading import diff
from plm_embed.reading.diff import compare, in_words
from support.campaigns import EVERYTHING, MEAN, gathered_campaign
from support.made_up_sequences import make_records


@pytest.mark.parametrize("fingerprint", [MEAN, EVERYTHING])
def test_equal_masters_and_every_change(tmp_path: Path, fingerprint, monkeypatch) -> None:
    monkeypatch.setattr(diff, "_VECTORS_AT_ONCE", 7)
    first = gathered_campaign(tmp_path / "1", fingerprint=fingerprint)
    second = gathered_campaign(tmp_path / "2", fingerprint=fingerprint, buckets=5)
    found = compare(first.master, second.master, 0)
    assert found.equal and found.keys_both == 58 and not found.fingerprint
    assert all(each == diff.Compared(equal=58) for each in found.representations.values())
    assert in_words(found).endswith("\nequal")
    with h5py.File(second.master, "r+") as file:
        del file["checksums"]  # else the changes are damages
        file["emb"][11] = file["emb"][11] + np.float16(0.01)
        file["emb"][12, 3] = np.nan
        file["emb"][13] = 0
        if fingerprint == EVERYTHING:
            file["representations/per_residue_l3"][100, 2] += 5
        keys = [key.decode() for key in file["emb_keys"][11:14]]
    found = compare(first.master, second.master, 0.02)
    name = fingerprint.representations[0]
    compared = found.representations[name]
    assert (compared.equal, compared.within, compared.different, compared.max_abs) == (
        55,
        1,
        2,
        np.inf,
    )
    assert [key for _, key in compared.worst] == keys[1:] and compared.min_cosine == 0
    ids = [record["id"] for record in make_records() if record["key"] == keys[2]]
    assert found.ids[keys[2]] == ids
    assert not found.equal
    if fingerprint == EVERYTHING:
        assert found.representations["per_residue_l3"].different == 1
        assert found.representations["per_residue_l3"].max_abs == pytest.approx(5, rel=1e-2)


def test_other_keys_settings_and_types(tmp_path: Path) -> None:
    records = make_records()
    first = gathered_campaign(tmp_path / "1", records=records[:60])
    other = replace(MEAN, pooling=("max", "mean"), storage_dtype="float32")
    second = gathered_campaign(tmp_path / "2", fingerprint=other)
    found = compare(first.master, second.master, 1e-2)
    assert found.only == (0, 58 - found.keys_both) and found.only[1] > 0
    assert found.representations_only == ([], ["max_l3"])
    assert found.fingerprint == [
        "pooling: ('mean',) here, ('max', 'mean') there",
        "storage_dtype: float16 here, float32 there",
    ]
    compared = found.representations["mean_l3"]
    assert compared.within > 0 and compared.different == 0 and compared.min_cosine > 0.9999
    text = in_words(found)
    assert text.endswith("\ndifferent")
    absent = found.examples[1][0]
    ids = [record["id"] for record in records if record["key"] == absent]
    assert found.ids[absent] == ids and ids
    assert f"only in the second: {absent} ({ids[0]}" in text
    back = compare(second.master, first.master, 1e-2)
    assert back.only == (found.only[1], 0)
    assert back.ids[absent] == ids
    second.index.unlink()
    assert f"only in the first: {absent}\n" in in_words(compare(second.master, first.master, 1e-2))
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["emb"] = np.zeros((1, 2))
    with pytest.raises(PlmEmbedError, match="not a file of embeddings"):
        compare(first.master, tmp_path / "x.h5", 0)


def test_other_numbers_of_residues_and_none_at_all(tmp_path: Path) -> None:
    short = replace(
        EVERYTHING,
        long_sequences=replace(
            EVERYTHING.long_sequences, policy="crop", max_residues=20, overlap=0
        ),
    )
    first, second = (
        gathered_campaign(tmp_path / "1", fingerprint=EVERYTHING),
        gathered_campaign(tmp_path / "2", fingerprint=short),
    )
    compared = compare(first.master, second.master, 100).representations["per_residue_l2"]
    longer = {record["key"] for record in make_records() if record["key"] and record["length"] > 20}
    assert (compared.different, compared.equal) == (len(longer), 58 - len(longer))
    empty = gathered_campaign(tmp_path / "3", records=[], fingerprint=EVERYTHING)
    assert compare(empty.master, first.master, 0).only == (0, 58)
    assert compare(empty.master, empty.master, 0).equal


def test_scores_are_compared_like_vectors(tmp_path: Path) -> None:
    scored = replace(MEAN, scores=("log_likelihood", "entropy"), head_sha256="0" * 64)
    first = gathered_campaign(tmp_path / "1", fingerprint=scored)
    second = gathered_campaign(tmp_path / "2", fingerprint=scored)
    plain = gathered_campaign(tmp_path / "3")
    assert compare(first.master, second.master, 0).equal
    with h5py.File(second.master, "r+") as file:
        del file["checksums"]  # else the changes are damages
        file["entropy"][7] += 0.5
        file["entropy"][8] = np.nan
        key = file["emb_keys"][7].decode()
    found = compare(first.master, second.master, 0.1)
    entropy = found.representations["entropy"]
    assert (entropy.equal, entropy.different, entropy.max_abs) == (56, 2, np.inf)
    assert found.representations["log_likelihood"].equal == 58 and not found.equal
    text = in_words(found)
    assert (
        "\nentropy: 56 equal, 0 within the tolerance, 2 different; largest difference inf\n" in text
    )
    (line,) = [line for line in text.splitlines() if key in line]
    assert line.endswith("): 0.5")  # a number has no cosine
    found = compare(first.master, plain.master, 0)
    assert found.representations_only == (["entropy", "log_likelihood"], [])
    assert found.representations["mean_l3"].equal == 58 and not found.equal


@pytest.mark.workflow
def test_the_command_says_it_by_its_exit_code(tmp_path: Path) -> None:
    first = gathered_campaign(tmp_path / "1")
    second = gathered_campaign(tmp_path / "2", records=make_records()[:50])
    command = [sys.executable, "-m", "plm_embed", "diff", str(first.master)]
    for other, code, word in ((first, 0, "equal"), (second, 1, "different")):
        done = subprocess.run(
            [*command, str(other.master)], capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stdout.splitlines()[-1]) == (code, word)
