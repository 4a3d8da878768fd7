import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

from plm_embed.jobs.completion import worker_shares

BEGAN = datetime(2026, 11, 21, 9, 0, tzinfo=UTC)


def write(
    path: Path, gpu: str | None, start: float, end: float, *, busy: float, loading: float
) -> Path:
    worker = {"host": "x3001", "pid": 7 + int(gpu or 0), "gpu": gpu}
    times = {"started": (BEGAN + timedelta(seconds=start)).isoformat()}
    times["ended"] = (BEGAN + timedelta(seconds=end)).isoformat()
    path.write_text(
        json.dumps({"worker": worker, "busy_seconds": busy, "loading_seconds": loading} | times)
    )
    return path


def test_waiting_between_buckets_and_for_the_last_worker_is_idle_and_loading_is_not(
    tmp_path: Path,
) -> None:
    records = [
        write(
            tmp_path / "0", "0", 10, 60, busy=39, loading=10
        ),  # 1 s of its own for reading and publishing
        write(tmp_path / "1", "0", 62, 110, busy=48, loading=0),  # 2 s after the first
        write(tmp_path / "2", "1", 10, 90, busy=70, loading=10),  # and then 20 s of waiting
    ]
    first, second = worker_shares(records, BEGAN)
    assert first == {
        **{"host": "x3001", "gpu": "0", "pid": 7, "buckets": 2},
        **{"seconds": 100.0, "busy": 87.0, "loading": 10.0, "idle": 0.03},
    }
    assert (second["seconds"], second["idle"]) == (100.0, 0.2)


def test_earlier_attempts_do_not_count(tmp_path: Path) -> None:
    earlier = write(tmp_path / "0", None, -50, -1, busy=30, loading=10)
    old = tmp_path / "1"
    old.write_text(
        json.dumps(
            {"worker": {"host": "x3001"}, "ended": (BEGAN + timedelta(seconds=1)).isoformat()}
        )
    )
    assert worker_shares([earlier, old], BEGAN) == []
