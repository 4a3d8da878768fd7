from datetime import UTC, datetime, timedelta
from pathlib import Path

from plm_embed.jobs.completion_record import WorkerInfo, write_completion
from plm_embed.jobs.submission import Share, worker_shares
from support.campaigns import completion

BEGAN = datetime(2026, 11, 21, 9, 0, tzinfo=UTC)


def write(
    path: Path, gpu: str | None, start: float, end: float, *, busy: float, loading: float
) -> Path:
    record = completion(
        worker=WorkerInfo(host="x3001", pid=7 + int(gpu or 0), gpu=gpu, device="A100"),
        busy_seconds=busy,
        loading_seconds=loading,
        started=(BEGAN + timedelta(seconds=start)).isoformat(),
        ended=(BEGAN + timedelta(seconds=end)).isoformat(),
    )
    write_completion(path, record)
    return path


def test_waiting_between_buckets_and_for_the_last_worker_is_idle_and_loading_is_not(
    tmp_path: Path,
) -> None:
    records = [
        # 1 s of its own for reading and publishing
        write(tmp_path / "0", "0", 10, 60, busy=39, loading=10),
        write(tmp_path / "1", "0", 62, 110, busy=48, loading=0),  # 2 s after the first
        write(tmp_path / "2", "1", 10, 90, busy=70, loading=10),  # and then 20 s of waiting
    ]
    first, second = worker_shares(records, BEGAN)
    where = {"host": "x3001", "gpu": "0", "pid": 7}
    assert first == Share(**where, buckets=2, seconds=100.0, busy=87.0, loading=10.0, idle=0.03)
    assert (second.seconds, second.idle) == (100.0, 0.2)


def test_earlier_attempts_do_not_count(tmp_path: Path) -> None:
    earlier = write(tmp_path / "0", None, -50, -1, busy=30, loading=10)
    assert worker_shares([earlier], BEGAN) == []
