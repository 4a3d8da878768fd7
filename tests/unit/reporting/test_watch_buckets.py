"""Which buckets watch takes for finished when other sequences have come than were embedded."""

import os
import shutil
import time
from pathlib import Path

from plm_embed.keys import bucket_names, key
from plm_embed.master.gather_record import write_record
from support.buckets import bucket_of
from support.campaigns import Campaign, gathered_campaign, make_campaign
from support.made_up_sequences import make_records
from support.watched import look

NAMES = bucket_names(4)
SEQUENCE = "MKVLAAGIVGLLLAQWERTY"
NEW = {"sequence": SEQUENCE, "key": key(SEQUENCE), "length": len(SEQUENCE), "status": "accepted"}
GREW = NAMES[bucket_of(key(SEQUENCE), len(NAMES))]


def embedded(folder: Path) -> Campaign:
    """A campaign that was embedded a while ago, and gathered."""
    campaign = gathered_campaign(folder, buckets=len(NAMES))
    model = campaign.embedded.parent
    write_record(model / "gathered.json", campaign.outputs)
    for file in (*campaign.sequences.rglob("*"), *model.rglob("*.json")):
        os.utime(file, (time.time() - 100, time.time() - 100))
    return campaign


def grow(campaign: Campaign, folder: Path) -> None:
    """A sequence more, as a run that is asked for the sequences alone leaves it."""
    records = make_records()
    records.append(records[-1] | NEW | {"number": records[-1]["number"] + 1})
    grown = make_campaign(folder, records=records, buckets=len(NAMES))
    shutil.copytree(
        grown.sequences, campaign.sequences, dirs_exist_ok=True, copy_function=shutil.copy
    )


def test_a_record_whose_bucket_grew_does_not_count(tmp_path: Path) -> None:
    campaign = embedded(tmp_path / "old")
    assert look(campaign.results).done == len(NAMES)
    grow(campaign, tmp_path / "grown")
    assert look(campaign.results).done == len(NAMES) - 1
    os.utime(campaign.embedded / f"{GREW}.json", (time.time() + 1, time.time() + 1))
    assert look(campaign.results).done == len(NAMES)  # it was embedded again


def test_a_damaged_completion_record_proves_nothing(tmp_path: Path) -> None:
    campaign = embedded(tmp_path / "old")
    grow(campaign, tmp_path / "grown")
    other = next(name for name in NAMES if name != GREW)
    record = campaign.embedded / f"{other}.json"
    record.write_text("{}")
    os.utime(record, (time.time() - 100, time.time() - 100))
    assert look(campaign.results).done == len(NAMES) - 2
