"""A good master stays until its successor is whole: when gather fails, and when it is killed."""

import hashlib
import os
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest
from plm_embed.master.gather_record import outdated, write_record

from support.campaigns import make_campaign
from support.made_up_sequences import make_records
from support.proof import prove

MASTER = "results/esm2_t3_untrained/master_esm2_embeddings.h5"


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_what_no_longer_holds_is_the_record_of_lost_files_and_the_proof_of_changed_ones(
    tmp_path: Path,
) -> None:
    record, proof = tmp_path / "m" / "gathered.json", tmp_path / "m" / "checksums.sha256"
    files = [tmp_path / "m" / "master.h5", tmp_path / "records.parquet"]
    said = tmp_path / "m" / "validation.json"
    record.parent.mkdir()
    assert outdated(record, proof) is None  # nothing there

    def gather_and_prove() -> None:
        for path in files:
            path.write_text("")
        prove(proof, files)
        for number, path in enumerate([*files, proof]):
            os.utime(path, ns=(number, number))
        write_record(record, files)
        assert outdated(record, proof) is None

    def wrong() -> tuple[Path, bool]:
        found = outdated(record, proof)
        assert found
        return found[0], str(files[1]) in found[1].replace("/m/..", "")

    gather_and_prove()
    os.utime(files[1], ns=(5, 5))
    assert wrong() == (proof, True)
    os.utime(files[0], ns=(5, 5))
    files[1].unlink()
    assert wrong() == (record, True)

    def another_digest() -> None:
        proof.write_text(proof.read_text().replace(digest(files[0]), "0" * 64))

    def one_line_less() -> None:
        proof.write_text("".join(proof.read_text().splitlines(keepends=True)[1:]))

    empty = partial(proof.write_text, "")
    for damage in (
        said.unlink,
        partial(said.write_text, "{ }"),
        empty,
        another_digest,
        one_line_less,
    ):
        gather_and_prove()
        damage()
        assert wrong() == (proof, False)
    gather_and_prove()
    record.write_text("{}")
    assert wrong() == (record, False)


def test_a_master_of_next_year_is_proven_once(tmp_path: Path) -> None:
    """A clock that was wrong, or a copy of times: a change after the proof shows all the same."""
    record, proof = tmp_path / "gathered.json", tmp_path / "checksums.sha256"
    master = tmp_path / "master.h5"
    next_year = time.time() + 365 * 86_400

    def prove_it() -> None:
        time.sleep(0.02)  # the clock of the kernel ticks every few milliseconds
        prove(proof, [master])

    master.write_text("vectors")
    write_record(record, [master])
    os.utime(master, (next_year, next_year))
    prove_it()
    assert outdated(record, proof) is None
    time.sleep(0.02)
    with master.open("a") as file:
        file.write("more")
    assert (outdated(record, proof) or [None])[0] == proof
    prove_it()
    assert outdated(record, proof) is None
    time.sleep(0.02)
    os.utime(master, (next_year, next_year))  # perhaps with another content
    assert (outdated(record, proof) or [None])[0] == proof


def test_another_gather_leaves_another_record(tmp_path: Path) -> None:
    """Snakemake compares what small files hold, whatever their age."""
    record = tmp_path / "gathered.json"
    write_record(record, [tmp_path / "master.h5"])
    before = record.read_bytes()
    time.sleep(0.002)  # its time is in milliseconds
    write_record(record, [tmp_path / "master.h5"])
    assert record.read_bytes() != before


@pytest.mark.workflow
def test_a_killed_gather_leaves_the_master_that_was_there(tmp_path: Path) -> None:
    campaign = make_campaign(tmp_path, records=make_records(3000))
    campaign.gather()
    before = [digest(path) for path in campaign.outputs]
    program = "import sys; from pathlib import Path; from plm_embed.master.gather import gather; "
    program += "gather(*map(Path, sys.argv[1:]), {})"
    places = [campaign.sequences, campaign.embedded, campaign.store, *campaign.outputs]
    run = subprocess.Popen([sys.executable, "-c", program, *map(str, places)])
    while not list(campaign.master.parent.glob(".tmp-*.h5")) and run.poll() is None:
        time.sleep(0.0005)
    run.kill()
    assert run.wait() < 0, "it ended before it could be killed"
    assert [digest(path) for path in campaign.outputs] == before
