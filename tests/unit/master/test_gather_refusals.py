"""Refusals of gather: nothing is gathered that is not whole."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from plm_embed.errors import PlmEmbedError
from plm_embed.jobs.completion_record import Skipped, read_completion
from plm_embed.master import gather
from plm_embed.store.parts import write_part
from plm_embed.store.store import Store
from support.campaigns import (
    DIM,
    MEAN,
    Campaign,
    edit_completion,
    make_campaign,
    part_rows,
    seal_sequences,
)
from support.damages import Damage, a_part, cut, take_completion
from support.made_up_sequences import make_records

AGAIN = "and run the campaign again"


def record(campaign: Campaign) -> Path:
    return campaign.embedded / "0001.json"


def bucket_keys(campaign: Campaign) -> list[str]:
    table = pq.read_table(campaign.sequences / "buckets" / "0001.parquet")
    keys: list[str] = table["key"].to_pylist()
    return keys


def change_a_part(campaign: Campaign) -> None:
    with h5py.File(a_part(campaign, 0), "r+") as file:
        file["representations/mean_l3"][0, 0] = 7


def rename_first_key(folder: str, key: str) -> Damage:
    """Give the first line of a table of bucket 0001 another key."""

    def rename(campaign: Campaign) -> None:
        path = campaign.sequences / folder / "0001.parquet"
        table = pq.read_table(path)
        keys = pa.array([key, *table["key"].to_pylist()[1:]])
        pq.write_table(table.set_column(0, "key", keys), path)
        seal_sequences(campaign.sequences)

    return rename


def lose_an_input_record(campaign: Campaign) -> None:
    path = campaign.sequences / "members" / "0001.parquet"
    pq.write_table(pq.read_table(path).slice(1), path)
    seal_sequences(campaign.sequences)


def take_part_of_other_lengths(campaign: Campaign) -> None:
    """A part that claims to be the only one of bucket 0001, with lengths that its sequences do not
    have.
    """
    sequences = {record["key"]: record["sequence"] for record in make_records() if record["key"]}
    store = Store(campaign.store, MEAN)
    rows = part_rows([sequences[key] for key in bucket_keys(campaign)], MEAN)
    write_part(store.folder / "local.h5", replace(rows, length=rows.length + 1), MEAN, {})
    edit_completion(campaign, parts=(store.publish(store.folder / "local.h5"),))


def take_part_of_other_dimensions(campaign: Campaign) -> None:
    parts, store = read_completion(record(campaign)).parts, Store(campaign.store, MEAN)
    wide = {"mean_l3": np.zeros((1, 2 * DIM), np.float32)}
    rows = replace(part_rows(["MKV"], MEAN), representations=wide)
    write_part(store.folder / "local.h5", rows, MEAN, {})
    edit_completion(campaign, parts=(*parts, store.publish(store.folder / "local.h5")))


def skip(campaign: Campaign, key: str) -> None:
    edit_completion(campaign, skipped=(Skipped(key, 50, "too_long"),))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (
            lambda c: a_part(c, 0).unlink(),
            rf"missing, but .* names it; delete \S*0000\.json {AGAIN}",
        ),
        (lambda c: shutil.rmtree(c.store), "it; delete .*/0000.json and .*/0002.json and run"),
        (lambda c: cut(a_part(c, 0), -1), rf"bytes instead of .* and .*0000\.json {AGAIN}"),
        (change_a_part, rf"bytes are not those .* written; delete .*\.h5 and .*0000\.json {AGAIN}"),
        (lambda c: record(c).unlink(), "0001.json: there is no such file; run the campaign again"),
        (lambda c: record(c).write_text("{}"), r"0001\.json: not a completion record"),
        (lambda c: take_completion(c, "0001", buckets=4), "another number of buckets"),
        (
            lambda c: take_completion(c, "0001", fingerprint=replace(MEAN, layers=(2,))),
            rf"differ .* 0000 \(layers: \(2,\) here, \(3,\) th.*; delete \S*embedded {AGAIN}",
        ),
        (lambda c: edit_completion(c, parts=()), "are in none of its parts"),
        (lambda c: skip(c, "f" * 64), "made for other sequences"),
        (lambda c: skip(c, bucket_keys(c)[0]), "made for other sequences"),
        (lose_an_input_record, "records.parquet and the buckets disagree"),
        (rename_first_key("members", "f" * 64), "records.parquet and the buckets disagree"),
        (rename_first_key("buckets", "abc"), "a key is not 64 characters long"),
        (take_part_of_other_lengths, "says another length for [0-9a-f]{64} than bucket 0001"),
        (take_part_of_other_dimensions, "its vectors have dimensions"),
        (
            lambda c: (c.sequences / "members" / "0001.parquet").write_bytes(b"PAR1"),
            rf"0001\.parquet: changed since .*; delete .*sequences/summary\.json {AGAIN}",
        ),
        (
            lambda c: (c.sequences / "summary.json").unlink(),
            r"summary\.json: there is no such file; run the campaign again",
        ),
    ],
)
def test_what_is_not_whole_is_refused_in_words_and_nothing_is_left(
    tmp_path: Path, damage: Damage, message: str
) -> None:
    campaign = make_campaign(tmp_path)
    damage(campaign)
    with pytest.raises(PlmEmbedError, match=message):
        campaign.gather()
    assert not any(path.exists() for path in campaign.outputs)
    assert not list(campaign.results.rglob(".tmp-*"))


def test_a_part_that_goes_while_gather_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    campaign = make_campaign(tmp_path)
    check_room = gather.check_room

    def remove(*arguments: Any) -> None:
        check_room(*arguments)
        a_part(campaign, 0).unlink()

    monkeypatch.setattr(gather, "check_room", remove)
    with pytest.raises(PlmEmbedError, match=r"its bytes are not .*; delete .*0000\.json and run"):
        campaign.gather()
    assert not any(path.exists() for path in campaign.outputs)
