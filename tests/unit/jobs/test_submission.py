"""Submissions as processes: shared work, buckets and workers that fail, GPUs, several nodes."""

import json
import re
import shutil
import time
from dataclasses import replace
from pathlib import Path

import pytest

from plm_embed.errors import PassingError, PlmEmbedError
from plm_embed.inference.settings import Settings
from plm_embed.jobs import dispatch, submission
from plm_embed.jobs.dispatch import Plan
from plm_embed.jobs.submission import embed_buckets, read_submission
from plm_embed.jobs.worker import WorkerError
from support.checkpoints import spoil_golden
from support.submissions import plan_of, published, records, start, write_buckets

pytestmark = pytest.mark.workflow


def test_workers_share_the_buckets_largest_first(tmp_path: Path, prepared: Path) -> None:
    buckets = write_buckets(tmp_path, 30, 90, 0, 60)
    plan = Plan(tuple(buckets), prepared, tmp_path / "store", tmp_path, workers=2, minutes=0)
    embed_buckets(plan, Settings(scratch="", device="cpu"), tmp_path / "done.json")
    done = records(tmp_path)
    assert {name: record.computed for name, record in done.items()} == {
        "0000": 30,
        "0001": 90,
        "0002": 0,
        "0003": 60,
    }
    done_file = read_submission(tmp_path / "done.json")
    assert done_file.buckets == ("0000", "0001", "0002", "0003")
    assert sum(share.buckets for share in done_file.workers) == 4
    # one of the two may have had nothing but the empty bucket
    assert all(0 <= share.busy <= share.seconds for share in done_file.workers)
    assert any(share.busy > 0 for share in done_file.workers)
    assert done["0001"].started <= done["0002"].started
    assert list((tmp_path / "claims").iterdir()) == []


def test_a_bucket_that_fails_does_not_stop_the_others(tmp_path: Path, prepared: Path) -> None:
    buckets = write_buckets(tmp_path, 20, 10, 15)
    buckets[1].write_bytes(b"PAR1 not a bucket")
    with start(tmp_path, prepared, buckets) as job:
        _, errors = job.communicate(timeout=300)
    assert job.returncode == 1
    assert "bucket 0001" in errors.split("not all buckets are embedded:")[1]
    assert set(records(tmp_path)) == {"0000", "0002"}
    assert not (tmp_path / "done.json").exists()
    write_buckets(tmp_path, 20, 10, 15)
    with start(tmp_path, prepared, buckets) as again:
        _, errors = again.communicate(timeout=300)
    assert again.returncode == 0, errors
    # complete already: not even looked at again
    assert not re.search(r"\b0000\b", errors.split("\n", 1)[1])


@pytest.mark.parametrize("error", [OSError(12, "Cannot allocate memory"), RuntimeError("anything")])
def test_a_worker_that_cannot_be_started_is_a_failure(
    tmp_path: Path, prepared: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(dispatch, "Worker", fail)
    plan = plan_of(tmp_path, prepared, write_buckets(tmp_path, 3), 2)
    with pytest.raises(PlmEmbedError, match=str(error.args[-1])):
        embed_buckets(plan, Settings(device="cpu"), tmp_path / "done.json")
    assert not (tmp_path / "done.json").exists()


@pytest.mark.parametrize(
    "error",
    [
        WorkerError("no space left on the disk, or no quota (store/part.h5)", "disk"),
        OSError(28, "No space left on device", "store/part.h5"),
        OSError(30, "Read-only file system", "store/part.h5"),
    ],
)
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("where", ["wait_until_ready", "embed"])
def test_a_full_disk_ends_all_workers_at_once(  # noqa: PLR0917
    tmp_path: Path, prepared: Path, monkeypatch: pytest.MonkeyPatch,
    error: Exception, workers: int, where: str,
) -> None:  # fmt: skip
    """One failure, no device is blamed, and nothing is tried again, by the workflow neither."""
    calls: list[str] = []

    class Full:
        def __init__(self, *_: object) -> None: ...

        def wait_until_ready(self) -> None:
            self.fail("wait_until_ready")

        def embed(self, *_: object) -> float:
            self.fail("embed")
            return 1.0

        def fail(self, name: str) -> None:
            if name == where:
                calls.append(name)
                raise error

        def terminate(self) -> None: ...

        def close(self) -> None: ...

    monkeypatch.setattr(dispatch, "Worker", Full)
    plan = plan_of(tmp_path, prepared, write_buckets(tmp_path, 3, 3, 3, 3, 3), workers)
    with pytest.raises(PlmEmbedError) as raised:
        embed_buckets(plan, Settings(device="cpu"), tmp_path / "done.json")
    assert not isinstance(raised.value, PassingError)
    said = str(raised.value)
    assert said.count("store/part.h5") == 1 and "disk" in said
    assert "device" not in said and "bucket 0" not in said
    assert len(calls) <= workers


def test_three_failures_in_a_row_retire_a_device_and_the_others_go_on(
    tmp_path: Path, prepared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[str | None] = []

    class Failing:
        """The worker of GPU 0 fails each time; the one of GPU 1 waits for that, and does all
        buckets.
        """

        def __init__(self, _: Path, __: Path, ___: Settings, gpu: str | None) -> None:
            self.gpu = gpu
            started.append(gpu)

        def wait_until_ready(self) -> None:
            if self.gpu == "0":
                raise WorkerError("ended with 1")
            for _ in range(6_000):
                if started.count("0") >= dispatch.FAILURES_IN_A_ROW:
                    return
                time.sleep(0.01)

        def embed(self, bucket: Path, output: Path) -> float:
            output.write_text(json.dumps({"bucket": bucket.stem}))
            return 1.0

        def close(self) -> None: ...

    monkeypatch.setattr(dispatch, "Worker", Failing)
    monkeypatch.setattr(submission, "worker_shares", lambda *_: [])
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    plan = plan_of(tmp_path, prepared, write_buckets(tmp_path, 3, 2), 2)
    embed_buckets(plan, Settings(device="cuda"), tmp_path / "done.json")
    assert read_submission(tmp_path / "done.json").buckets == ("0000", "0001")
    assert (started.count("0"), started.count("1")) == (3, 1)


def test_what_an_earlier_attempt_did_of_a_bucket_is_not_taken_for_speed(
    tmp_path: Path, prepared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []

    class Slow:
        """Does the last tenth of a bucket in half a second, so that a whole one takes five."""

        def __init__(self, *_: object) -> None: ...

        def wait_until_ready(self) -> None: ...

        def embed(self, bucket: Path, _: Path) -> float:
            done.append(bucket.stem)
            time.sleep(0.5)
            return 0.1

        def close(self) -> None: ...

    monkeypatch.setattr(dispatch, "Worker", Slow)
    monkeypatch.setattr(dispatch, "SECONDS_MARGIN", 0.0)
    plan = replace(plan_of(tmp_path, prepared, write_buckets(tmp_path, 3, 3), 1), minutes=3 / 60)
    with pytest.raises(PassingError, match=r"no time left for 000[01]; run it again"):
        embed_buckets(plan, Settings(device="cpu"), tmp_path / "done.json")
    assert len(done) == 1


def test_a_device_that_computes_wrongly_is_retired_at_once(tmp_path: Path, prepared: Path) -> None:
    buckets = write_buckets(tmp_path, 9, 5)
    folder = Path(shutil.copytree(prepared, tmp_path / "weights"))
    spoil_golden(folder)
    with start(tmp_path, folder, buckets) as job:
        _, errors = job.communicate(timeout=300)
    assert job.returncode == 1
    assert "self-test failed" in errors
    assert "no working device left for 0000, 0001" in errors
    assert "Traceback" not in errors


def test_two_nodes_work_on_one_list(tmp_path: Path, prepared: Path) -> None:
    buckets = write_buckets(tmp_path, 150, 150, 150, 150)
    jobs = [start(tmp_path, prepared, buckets, "--flush-minutes", "0.01") for _ in range(2)]
    for job in jobs:
        _, errors = job.communicate(timeout=300)
        assert job.returncode == 0, errors
    done = records(tmp_path)
    assert len(done) == 4
    assert sum(record.computed for record in done.values()) == 600
    assert published(tmp_path) == 600  # nothing twice


def test_no_bucket_is_begun_that_the_walltime_has_no_room_for(
    tmp_path: Path, prepared: Path
) -> None:
    buckets = write_buckets(tmp_path, 20, 10)
    with start(tmp_path, prepared, buckets, "--minutes", "2", SLURM_JOB_ID="1") as job:
        _, errors = job.communicate(timeout=300)
    assert job.returncode == 1
    assert "no time left for 0001" in errors
    assert set(records(tmp_path)) == {"0000"}
    with start(tmp_path, prepared, buckets, "--minutes", "10", SLURM_JOB_ID="1") as again:
        again.communicate(timeout=300)
    assert again.returncode == 0


def test_more_workers_than_gpus_is_said_in_words(
    tmp_path: Path, prepared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    plan = plan_of(tmp_path, prepared, write_buckets(tmp_path, 3), 4)
    with pytest.raises(PlmEmbedError, match=r"4 workers for 2 visible GPUs \(0, 1\)"):
        embed_buckets(plan, Settings(), tmp_path / "done.json")


def test_all_gpus_is_a_worker_for_each_that_is_visible(tmp_path: Path, prepared: Path) -> None:
    options = ("--gpus", "all", "--device", "cuda")
    with start(
        tmp_path, prepared, write_buckets(tmp_path, 3), *options, CUDA_VISIBLE_DEVICES="97,98,99"
    ) as job:
        _, errors = job.communicate(timeout=300)
    assert job.returncode == 1
    for gpu in (97, 98, 99):
        assert f"CUDA_VISIBLE_DEVICES: {gpu})" in errors
    with start(tmp_path, prepared, [], "--gpus", "some") as job:
        _, errors = job.communicate(timeout=300)
    assert job.returncode == 1 and "'some' is not a valid integer" in errors


def test_a_missing_gpu_is_said_in_words(tmp_path: Path, prepared: Path) -> None:
    with start(
        tmp_path, prepared, write_buckets(tmp_path, 3), "--device", "cuda", CUDA_VISIBLE_DEVICES=""
    ) as job:
        _, errors = job.communicate(timeout=300)
    assert job.returncode == 1
    # what only the user can mend is an error, and said once; the workflow does not try it again
    assert "plm-embed: error: not all buckets are embedded:\n  no usable CUDA device" in errors
    assert errors.count("no usable CUDA device") == 2  # by the worker and at the end
    assert "Traceback" not in errors
    assert not (tmp_path / "claims").exists()  # the device is checked before anything is claimed


def test_a_job_that_asked_a_scheduler_for_a_gpu_has_one_or_fails(
    tmp_path: Path, prepared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    buckets = write_buckets(tmp_path, 3)
    asked = {"PLM_EMBED_GPU_REQUIRED": "1"}
    with start(tmp_path, prepared, buckets, "--device", "auto", **asked) as job:
        _, errors = job.communicate(timeout=300)
    assert job.returncode == 1
    assert "this job is shown none" in errors and "set speed.device: cpu" in errors
    with start(tmp_path, prepared, buckets, **asked) as job:  # --device cpu
        job.communicate(timeout=300)
    assert job.returncode == 0


def test_a_node_that_lost_a_gpu_has_a_worker_for_each_of_the_others(
    tmp_path: Path, prepared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = tmp_path / "bin" / "nvidia-smi"
    tool.parent.mkdir()
    tool.write_text(
        "#!/bin/sh\ncase $* in --list-gpus) echo 'GPU 0: A100 (UUID: GPU-0)'; "
        "echo 'GPU 1: A100 (UUID: GPU-1)' ;; *) exit 6 ;; esac\n"
    )
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tool.parent}:/usr/bin:/bin")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    buckets = write_buckets(tmp_path, 3, 3)
    with start(tmp_path, prepared, buckets, "--workers", "4", "--device", "auto") as job:
        _, errors = job.communicate(timeout=300)
    assert "this node shows 2 GPUs, not 4" in errors
    # torch has no CUDA here, so each worker says which GPU it was given
    given = set(re.findall(r"worker (\d): no usable .* CUDA_VISIBLE_DEVICES: (.*)\)", errors))
    assert given == {("0", "0"), ("1", "1")}
