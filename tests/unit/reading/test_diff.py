"""Two masters compared: equal, within a tolerance, or which sequences differ and by how much."""

import re
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest
from click.testing import CliRunner

from plm_embed.cli.main import group
from plm_embed.errors import PlmEmbedError
from plm_embed.fingerprint import Fingerprint, LongSequences
from plm_embed.reading import diff
from plm_embed.reading.diff import compare
from support.campaigns import EVERYTHING, MEAN, gathered_campaign
from support.made_up_sequences import make_records

SCORED = replace(MEAN, scores=("log_likelihood", "entropy"), head_sha256="0" * 64)


@pytest.mark.parametrize("fingerprint", [MEAN, EVERYTHING, SCORED])
def test_equal_masters_and_every_change(
    tmp_path: Path, fingerprint: Fingerprint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(diff, "ROWS_AT_ONCE", 7)
    first = gathered_campaign(tmp_path / "1", fingerprint=fingerprint)
    second = gathered_campaign(tmp_path / "2", fingerprint=fingerprint, buckets=5)
    equal, text = compare(first.master, second.master, 0)
    keys, *rest, last = text.splitlines()
    assert keys == "keys: 58 in both, 0 only in the first, 0 only in the second"
    compared = (*fingerprint.representations, *fingerprint.scores)
    assert equal and last == "equal" and len(rest) == len(compared)
    same = ": 58 equal, 0 within the tolerance, 0 different; largest difference 0"
    assert {line.removesuffix(same) for line in rest} == {*compared}
    with h5py.File(second.master, "r+") as file:
        del file["checksums"]  # else the changes are damages
        file["emb"][11] = file["emb"][11] + np.float16(0.01)
        file["emb"][12, 3] = np.nan
        file["emb"][13] = 100
        for name in fingerprint.scores:
            file[name][7] += 0.5
            file[name][8] = np.nan
        if fingerprint == EVERYTHING:
            file["representations/per_residue_l3"][100, 2] += 5
        changed = [key.decode() for key in file["emb_keys"][7:14]]
    equal, text = compare(first.master, second.master, 0.02)
    lines, name = text.splitlines(), fingerprint.representations[0]
    place = lines.index(
        f"{name}: 55 equal, 1 within the tolerance, 2 different; largest difference inf"
    )
    assert lines[place + 1] == f"  {changed[5]}: inf"
    assert lines[place + 2].startswith(f"  {changed[6]}: 10")
    assert not equal and lines[-1] == "different"
    if fingerprint == EVERYTHING:
        assert "per_residue_l3: 57 equal, 0 within the tolerance, 1 different; largest diff" in text
    for name in fingerprint.scores:
        words = f"{name}: 56 equal, 0 within the tolerance, 2 different; largest difference inf"
        assert f"{words}\n  {changed[1]}: inf\n  {changed[0]}: 0.5\n" in text


def test_other_keys_settings_and_types(tmp_path: Path) -> None:
    records = make_records()
    first = gathered_campaign(tmp_path / "1", records=records[:60])
    other = replace(SCORED, pooling=("max", "mean"), storage_dtype="float32")
    second = gathered_campaign(tmp_path / "2", fingerprint=other)
    equal, text = compare(first.master, second.master, 1e-2)
    assert not equal and text.endswith("\ndifferent")
    (both, number) = map(int, re.findall(r"^keys: (\d+) in both, 0 .*, (\d+) only", text)[0])
    assert both + number == 58 and number == 3
    absent = re.findall(r"  only in the second: (\w{64})\n", text)
    known = {record["key"] for record in records}
    assert len({*absent}) == diff.EXAMPLES and known.issuperset(absent)
    only = "".join(f"{name}: only in the second\n" for name in ("entropy", "log_likelihood"))
    assert f"{only}max_l3: only in the second\nmean_l3: " in text
    assert "\nsettings: pooling: ('mean',) here, ('max', 'mean') there\n" in text
    assert "\nsettings: storage_dtype: float16 here, float32 there\n" in text
    assert re.search(r"\nmean_l3: \d+ equal, [1-9]\d* within the tolerance, 0 different", text)
    back = compare(second.master, first.master, 1e-2).text
    assert f"\n  only in the first: {absent[0]}\n" in back
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["emb"] = np.zeros((1, 2))
    with pytest.raises(PlmEmbedError, match="not a file of embeddings"):
        compare(first.master, tmp_path / "x.h5", 0)


def test_other_numbers_of_residues_and_none_at_all(tmp_path: Path) -> None:
    kind = replace(EVERYTHING, pooling=("per_residue",), layers=(2,))
    first = gathered_campaign(tmp_path / "1", fingerprint=kind)
    short = replace(kind, long_sequences=LongSequences("crop", 20))
    second = gathered_campaign(tmp_path / "2", fingerprint=short)
    longer = {record["key"] for record in make_records() if record["key"] and record["length"] > 20}
    counts = f"{58 - len(longer)} equal, 0 within the tolerance, {len(longer)} different"
    for path in (first.master, first.store):
        assert f"\nper_residue_l2: {counts}" in compare(path, second.master, 100).text
    empty = gathered_campaign(tmp_path / "3", records=[], fingerprint=kind)
    text = compare(empty.master, first.master, 0).text
    assert text.startswith("keys: 0 in both, 0 only in the first, 58 only in the second\n")
    assert compare(empty.master, empty.master, 0).equal


def test_the_command_says_it_by_its_exit_code(tmp_path: Path) -> None:
    first = gathered_campaign(tmp_path / "1")
    second = gathered_campaign(tmp_path / "2", records=make_records()[:50])
    for other, code, word in ((first, 0, "equal"), (second, 1, "different")):
        done = CliRunner().invoke(group, ["diff", str(first.master), str(other.master)])
        assert (done.exit_code, done.output.splitlines()[-1]) == (code, word)
