import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from plm_embed.jobs import claims
from plm_embed.jobs.claims import Claim, is_stale

HOLD = """
import sys, time
from pathlib import Path
from plm_embed.jobs.claims import Claim
claim = Claim.take(Path(sys.argv[1]))
print("taken" if claim else "refused", flush=True)
sys.stdin.read(1)
"""


def hold(path: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def test_one_owner_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "claims" / "0000"
    first = Claim.take(path)
    assert first is not None
    assert Claim.take(path) is None
    first.release()
    assert not path.exists()
    again = Claim.take(path)
    assert again is not None
    again.release()


def test_a_living_process_keeps_its_claim_and_a_killed_one_loses_it(tmp_path: Path) -> None:
    path = tmp_path / "0000"
    with hold(path) as other:
        assert other.stdout and other.stdout.readline() == "taken\n"
        assert Claim.take(path) is None
        other.kill()
        other.wait()
    taken = Claim.take(path)
    assert taken is not None
    taken.release()


def foreign(path: Path, **owner: str) -> None:
    path.write_text(
        json.dumps({"host": "elsewhere", "pid": "1", "job": "", "start": "0", "token": "x"} | owner)
    )


def test_another_host_is_believed_as_long_as_it_beats(tmp_path: Path) -> None:
    path = tmp_path / "0000"
    foreign(path)
    assert not is_stale(path)
    old = time.time() - claims.STALE_AFTER_SECONDS - 5
    os.utime(path, (old, old))
    assert is_stale(path)


def test_a_requeued_job_takes_its_earlier_starts_claim(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "0000"
    monkeypatch.setenv("SLURM_JOB_ID", "77")
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    foreign(path, job="77", start="0")
    assert is_stale(path)
    foreign(path, job="77", start="1")  # another node of this very start
    assert not is_stale(path)
    foreign(path, job="78", start="0")
    assert not is_stale(path)


def test_a_claim_half_written_by_a_killed_job_does_not_stay_for_ever(tmp_path: Path) -> None:
    path = tmp_path / "0000"
    path.touch()
    assert not is_stale(path)
    old = time.time() - claims.STALE_AFTER_SECONDS - 5
    os.utime(path, (old, old))
    assert is_stale(path)


def test_beats_keep_a_claim_alive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "SECONDS_BETWEEN_BEATS", 0.05)
    path = tmp_path / "0000"
    claim = Claim.take(path)
    assert claim is not None
    os.utime(path, (0, 0))
    end = time.monotonic() + 300
    while path.stat().st_mtime < 1:
        assert time.monotonic() < end, "no beat"
        time.sleep(0.01)
    claim.release()


def test_a_claim_that_was_taken_over_is_not_removed_by_its_first_owner(tmp_path: Path) -> None:
    path = tmp_path / "0000"
    claim = Claim.take(path)
    assert claim is not None
    foreign(path)
    claim.release()
    assert path.exists()


def test_a_claim_that_was_taken_over_is_kept_alive_by_its_new_owner_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claims, "SECONDS_BETWEEN_BEATS", 0.01)
    path = tmp_path / "0000"
    claim = Claim.take(path)
    assert claim is not None
    foreign(path)
    os.utime(path, (0, 0))
    beats = threading.Thread(target=claim._beat, daemon=True)
    beats.start()
    beats.join(300)
    assert not beats.is_alive() and path.stat().st_mtime == 0
    claim.release()
