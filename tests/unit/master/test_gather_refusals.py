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
from support.made_up_sequences import make_records


def remove_part(campaign: Campaign) -> None:
    next(campaign.parts.iterdir()).unlink()


def remove_store(campaign: Campaign) -> None:
    shutil.rmtree(campaign.store)


def shorten_part(campaign: Campaign) -> None:
    path = next(campaign.parts.iterdir())
    path.write_bytes(path.read_bytes()[:-1])


def remove_record(campaign: Campaign) -> None:
    (campaign.embedded / "0001.json").unlink()


def spoil_record(campaign: Campaign) -> None:
    (campaign.embedded / "0001.json").write_text("{}")


def take_record_of_other_buckets(campaign: Campaign) -> None:
    other = make_campaign(campaign.root / "other", buckets=4)
    shutil.copy(other.embedded / "0001.json", campaign.embedded / "0001.json")


def take_record_of_other_settings(campaign: Campaign) -> None:
    other = make_campaign(campaign.root / "other", fingerprint=replace(MEAN, layers=(2,)))
    shutil.copy(other.embedded / "0001.json", campaign.embedded / "0001.json")


def forget_parts(campaign: Campaign) -> None:
    edit_completion(campaign, parts=())


def skip_a_foreign_key(campaign: Campaign) -> None:
    edit_completion(campaign, skipped=(Skipped("f" * 64, 1, "too_long"),))


def skip_a_good_key(campaign: Campaign) -> None:
    key = pq.read_table(campaign.sequences / "buckets" / "0001.parquet")["key"][0].as_py()
    edit_completion(campaign, skipped=(Skipped(key, 50, "too_long"),))


def change_a_record(campaign: Campaign) -> None:
    path = campaign.embedded / "0001.json"
    path.write_bytes(path.read_bytes().replace(b'"torch": "2"', b'"torch": "3"'))


def change_a_part(campaign: Campaign) -> None:
    with h5py.File(next(campaign.parts.iterdir()), "r+") as file:
        file["representations/mean_l3"][0, 0] = 7


def lose_an_input_record(campaign: Campaign) -> None:
    path = campaign.sequences / "members" / "0001.parquet"
    pq.write_table(pq.read_table(path).slice(1), path)
    seal_sequences(campaign.sequences)


def add_a_foreign_member(campaign: Campaign) -> None:
    path = campaign.sequences / "members" / "0001.parquet"
    table = pq.read_table(path)
    keys = pa.array(["f" * 64, *table["key"].to_pylist()[1:]])
    pq.write_table(table.set_column(0, "key", keys), path)
    seal_sequences(campaign.sequences)


def cut_a_key(campaign: Campaign) -> None:
    path = campaign.sequences / "buckets" / "0001.parquet"
    table = pq.read_table(path)
    keys = pa.array(["abc", *table["key"].to_pylist()[1:]])
    pq.write_table(table.set_column(0, "key", keys), path)
    seal_sequences(campaign.sequences)


def take_part_of_other_lengths(campaign: Campaign) -> None:
    """A part that claims to be the only one of bucket 0001, with lengths that its sequences do not
    have.
    """
    keys = pq.read_table(campaign.sequences / "buckets" / "0001.parquet")["key"].to_pylist()
    sequences = {record["key"]: record["sequence"] for record in make_records() if record["key"]}
    store = Store(campaign.store, MEAN)
    rows = part_rows([sequences[key] for key in keys], MEAN)
    write_part(store.folder / "local.h5", replace(rows, length=rows.length + 1), MEAN, {})
    edit_completion(campaign, parts=(store.publish(store.folder / "local.h5"),))


def take_part_of_other_dimensions(campaign: Campaign) -> None:
    path = campaign.embedded / "0001.json"
    record = read_completion(path)
    store = Store(campaign.store, MEAN)
    rows = part_rows(["MKV"], MEAN)
    wide = replace(rows, representations={"mean_l3": np.zeros((1, 2 * DIM), np.float32)})
    write_part(store.folder / "local.h5", wide, MEAN, {})
    edit_completion(campaign, parts=(*record.parts, store.publish(store.folder / "local.h5")))


def spoil_summary(campaign: Campaign) -> None:
    (campaign.sequences / "summary.json").write_text("{")


def remove_buckets(campaign: Campaign) -> None:
    (campaign.sequences / "buckets" / "0001.parquet").unlink()


def spoil_members(campaign: Campaign) -> None:
    (campaign.sequences / "members" / "0001.parquet").write_bytes(b"PAR1")


def remove_summary(campaign: Campaign) -> None:
    (campaign.sequences / "summary.json").unlink()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (remove_part, r"missing, but .* names it; delete \S*0000\.json and run the campaign again"),
        (remove_store, "missing, but .* names it; delete .*/0000.json and .*/0002.json and run"),
        (shorten_part, "bytes instead of .* and .*0000.json and run the campaign again"),
        (
            change_a_part,
            r"its bytes are not those that were written; delete .*\.h5 and .*0000\.json and run",
        ),
        (
            remove_record,
            r"0001\.json: there is no such file; run the campaign again",
        ),
        (spoil_record, r"0001\.json: not a completion record"),
        (change_a_record, r"0001\.json: changed since it was written"),
        (take_record_of_other_buckets, "another number of buckets"),
        (
            take_record_of_other_settings,
            r"its settings differ from those of bucket 0000 \(layers: \(2,\) here, \(3,\) there",
        ),
        (forget_parts, "are in none of its parts"),
        (skip_a_foreign_key, "made for other sequences"),
        (skip_a_good_key, "made for other sequences"),
        (lose_an_input_record, "records.parquet and the buckets disagree"),
        (add_a_foreign_member, "records.parquet and the buckets disagree"),
        (remove_buckets, r"0001\.parquet: there is no such file"),
        (
            spoil_members,
            r"0001\.parquet: changed since it was written; "
            r"delete .*sequences/summary\.json and run the campaign again",
        ),
        (cut_a_key, "a key is not 64 characters long"),
        (take_part_of_other_lengths, "says another length for [0-9a-f]{64} than bucket 0001"),
        (take_part_of_other_dimensions, "its vectors have dimensions"),
        (spoil_summary, "not a summary of sequences"),
        (
            remove_summary,
            r"summary\.json: there is no such file; run the campaign again",
        ),
    ],
)
def test_what_is_not_whole_is_refused_in_words_and_nothing_is_left(
    tmp_path: Path, damage, message
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
        remove_part(campaign)

    monkeypatch.setattr(gather, "check_room", remove)
    with pytest.raises(PlmEmbedError, match=r"its bytes are not .*; delete .*0000\.json and run"):
        campaign.gather()
    assert not any(path.exists() for path in campaign.outputs)
