"""Compacting: fewer parts, the same vectors, true records; with readers and jobs at work, and
killed in the middle.
"""

import hashlib
import json
import multiprocessing
import os
import random
import shutil
import signal
import sys
import threading
from dataclasses import replace
from functools import partial
from pathlib import Path

import h5py
import numpy as np
import pytest

from plm_embed.errors import PlmEmbedError
from plm_embed.io.files import whole_files
from plm_embed.master import check_parts, check_vectors, gather
from plm_embed.master.expected_vectors import expect
from plm_embed.master.validate import validate
from plm_embed.store import blocks
from plm_embed.store.compact import compact
from plm_embed.store.store import Store
from support.campaigns import EVERYTHING, MEAN, Campaign, make_campaign, publish, reference


def compact_until(store: Path, last: int) -> tuple[int, int]:
    """Compact in a process that is killed at its `last` change of a name; how many it came to, and
    how it ended.
    """
    changes = multiprocessing.Value("i", 0)

    def watch(event: str, _: object) -> None:
        if event in ("os.rename", "os.remove"):
            changes.value += 1
            if changes.value == last:
                os.kill(os.getpid(), signal.SIGKILL)

    def run() -> None:
        sys.addaudithook(watch)
        compact(store, 100_000, 0)

    process = multiprocessing.get_context("fork").Process(target=run)
    process.start()
    process.join()
    assert process.exitcode is not None
    return changes.value, process.exitcode


def digest(campaign: Campaign) -> str:
    campaign.gather()
    return hashlib.sha256(campaign.master.read_bytes()).hexdigest()


def problems(campaign: Campaign) -> list[str]:
    return validate(
        sequences=campaign.sequences,
        embedded=campaign.embedded,
        store=campaign.store,
        weights=campaign.weights,
        master=campaign.master,
        index=campaign.index,
        records=campaign.records,
        expected=partial(
            expect, campaign.sequences, campaign.weights, count=2, reference=reference
        ),
        report=campaign.results / "validation.json",
        checksums=campaign.results / "checksums",
    )


def listed(campaign: Campaign) -> list[str]:
    return [
        path.name for path in Store(campaign.store, campaign.fingerprint).parts("0" * 64, "f" * 64)
    ]


@pytest.mark.workflow
@pytest.mark.parametrize(
    "fingerprint", [MEAN, EVERYTHING, replace(EVERYTHING, storage_dtype="bfloat16")]
)
def test_fewer_parts_hold_the_same_and_records_stay_true(tmp_path: Path, fingerprint) -> None:
    campaign = make_campaign(tmp_path, fingerprint=fingerprint, buckets=4, parts=5)
    expected = digest(campaign)
    before = set(listed(campaign))
    assert len(before) == 20
    done = compact(campaign.store, 10_000_000, 24)
    assert (done.merged, done.published, done.removed) == (20, 1, 0)
    assert len(listed(campaign)) == 1
    # still there for those who read them
    assert before < {path.name for path in campaign.parts.iterdir()}
    assert digest(campaign) == expected
    done = compact(campaign.store, 10_000_000, 0)
    assert (done.merged, done.published, done.removed) == (0, 0, 20)
    assert [path.name for path in campaign.parts.iterdir()] == listed(campaign)
    assert digest(campaign) == expected  # the records still name the old parts
    assert problems(campaign) == []
    publish(Store(campaign.store, fingerprint), ["MKVNEVERSEEN"])
    assert compact(campaign.store, 10_000_000, 0).removed == 2  # a second generation
    assert digest(campaign) == expected
    assert problems(campaign) == []
    assert not Store(campaign.store, fingerprint).missing(sorted_keys(campaign)).any()


def sorted_keys(campaign: Campaign) -> np.ndarray:
    with h5py.File(campaign.master) as file:
        return file["emb_keys"][...]


def test_large_parts_are_left_alone_and_the_target_size_is_kept(tmp_path: Path) -> None:
    campaign = make_campaign(tmp_path, buckets=4, parts=5)
    sizes = sum(path.stat().st_size for path in campaign.parts.iterdir())
    done = compact(campaign.store, sizes // 3, 0)
    assert (done.merged, done.removed) == (20, 20)
    assert 3 <= len(listed(campaign)) <= 4
    again = compact(campaign.store, sizes // 3, 0)
    assert again.merged <= 4
    assert compact(campaign.store, 1, 0).merged == 0
    campaign.gather()
    assert problems(campaign) == []


def test_replaced_parts_stay_while_what_replaces_them_is_not_whole(tmp_path: Path) -> None:
    campaign = make_campaign(tmp_path)
    expected = digest(campaign)
    compact(campaign.store, 10_000_000, 24)
    (new,) = listed(campaign)
    raw = bytearray((campaign.parts / new).read_bytes())
    raw[-1] ^= 1
    (campaign.parts / new).write_bytes(raw)
    with pytest.raises(
        PlmEmbedError, match="missing or damaged; the 6 parts that it replaces are kept"
    ):
        compact(campaign.store, 10_000_000, 0)
    (campaign.parts / new).unlink()
    assert len(listed(campaign)) == 6
    assert digest(campaign) == expected
    with pytest.raises(PlmEmbedError, match="no store"):
        compact(tmp_path / "results", 1000, 0)


def test_gather_and_compact_remove_what_was_abandoned_a_day_ago(tmp_path: Path) -> None:
    campaign = make_campaign(tmp_path)
    campaign.gather()
    notes = campaign.parts.parent / "compacted"
    notes.mkdir()
    folders = [campaign.parts, campaign.parts.parent, notes]
    folders += [campaign.master.parent, campaign.embedded]
    old = [folder / f".tmp-{number:016x}-name" for number, folder in enumerate(folders)]
    for path in old:
        path.touch()
        os.utime(path, (0, 0))
    live = campaign.parts / f".tmp-{0:016x}-live"
    live.touch()
    campaign.gather()
    assert [path.exists() for path in old] == [True, True, True, False, False]
    compact(campaign.store, 10_000_000, 0)
    assert [path for path in [*old, live] if path.exists()] == [live]


def test_a_killed_compact_leaves_no_scratch_to_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    campaign = make_campaign(tmp_path)
    scratch = campaign.parts.parent / "scratch"
    assert compact_until(campaign.store, 1) == (1, -signal.SIGKILL)
    assert len(list(scratch.iterdir())) == 1
    monkeypatch.setattr("plm_embed.io.scratch.SECONDS_TO_LOCK", 0)
    compact(campaign.store, 10_000_000, 0)
    assert not scratch.exists() or not list(scratch.iterdir())


@pytest.mark.parametrize("listing", ["current_parts", "part_names"])
def test_parts_that_are_compacted_while_validate_reads_are_no_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, listing: str
) -> None:
    campaign = make_campaign(tmp_path)
    campaign.gather()
    real = getattr(check_parts, listing)
    removed = []

    def then_compact(*arguments: object) -> object:
        listed = real(*arguments)
        if not removed:
            removed.append(compact(campaign.store, 10_000_000, 0).removed)
        return listed

    monkeypatch.setattr(check_parts, listing, then_compact)
    assert problems(campaign) == []
    assert removed == [6]
    (new,) = listed(campaign)
    (campaign.parts / new).unlink()
    assert any(new in problem and "missing" in problem for problem in problems(campaign))


@pytest.mark.parametrize("reads", ["locate", "read_scattered"])
@pytest.mark.parametrize("step", ["gather", "validate"])
def test_parts_that_are_compacted_just_before_they_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, reads: str
) -> None:
    campaign = make_campaign(tmp_path)
    expected = digest(campaign)
    owner = blocks
    if reads == "locate":
        owner = gather if step == "gather" else check_vectors
    real = getattr(owner, reads)
    removed = []

    def beside_compact(*arguments: object) -> object:
        found = real(*arguments) if reads == "locate" else None
        if not removed:
            removed.append(0)  # compact reads too
            removed[0] = compact(campaign.store, 10_000_000, 0).removed
        return found or real(*arguments)

    monkeypatch.setattr(owner, reads, beside_compact)
    if step == "gather":
        assert digest(campaign) == expected
    else:
        assert problems(campaign) == []
    assert removed == [6]


@pytest.mark.parametrize("step", ["gather", "validate"])
def test_a_part_that_vanishes_otherwise_is_a_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    campaign = make_campaign(tmp_path)
    campaign.gather()
    real = blocks.read_scattered

    def after_removal(path: Path, *arguments: object) -> None:
        path.unlink(missing_ok=True)
        real(path, *arguments)

    monkeypatch.setattr(blocks, "read_scattered", after_removal)
    if step == "gather":
        with pytest.raises(PlmEmbedError, match=r"missing.* and run"):
            campaign.gather()
    else:
        assert any("and run the campaign again" in problem for problem in problems(campaign))


@pytest.mark.workflow
def test_a_reader_and_a_publisher_at_work_meanwhile(tmp_path: Path) -> None:
    campaign = make_campaign(tmp_path, buckets=8, parts=4)
    expected = digest(campaign)
    seen: list[str] = []
    failures: list[BaseException] = []
    stop = threading.Event()

    def read() -> None:
        try:
            while not stop.is_set() or len(seen) < 3:
                seen.append(digest(campaign))
        except BaseException as error:
            failures.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    for number in range(4):
        publish(Store(campaign.store, MEAN), [f"{'MKV' * (number + 1)}LL"])
        compact(campaign.store, 4_000 * 4**number, 24)
    stop.set()
    reader.join()
    assert not failures
    assert set(seen) == {expected}
    compact(campaign.store, 10_000_000, 0)
    assert digest(campaign) == expected
    assert len(listed(campaign)) == 1


@pytest.mark.workflow
def test_kill_9_leaves_a_whole_store_and_the_next_run_goes_on(tmp_path: Path) -> None:
    campaign = make_campaign(tmp_path, buckets=8, parts=3)
    expected = digest(campaign)
    shutil.copytree(campaign.store, tmp_path / "before")
    changes, status = compact_until(campaign.store, 0)
    assert changes > 16 and status == 0
    for last in (1, *sorted(random.sample(range(2, changes), 3)), changes):
        shutil.rmtree(campaign.store)
        shutil.copytree(tmp_path / "before", campaign.store)
        assert compact_until(campaign.store, last) == (last, -signal.SIGKILL)
        assert digest(campaign) == expected, last
        compact(campaign.store, 10_000_000, 0)
        assert digest(campaign) == expected, last
        assert problems(campaign) == []
        assert len(listed(campaign)) == 1
        for note in whole_files(campaign.parts.parent / "compacted", "*.json"):
            assert json.loads(note.read_text())["by"]
