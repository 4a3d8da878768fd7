"""Who computed what: jobs on CPUs that overlap are several workers, those in turn are one."""

from plm_embed.jobs.completion_record import Completion, WorkerInfo
from plm_embed.jobs.heartbeat import Heartbeat
from plm_embed.reporting.runs import runs_of, workers_of
from support.campaigns import MEAN


def minute(at: int) -> str:
    return f"2026-01-01T00:{at:02}:00+00:00"


def completion(bucket: str, start: int, end: int, gpu: str | None = None) -> Completion:
    return Completion(
        bucket=bucket,
        unique=1,
        keys_sha256="",
        fingerprint=MEAN,
        fingerprint_id=MEAN.id,
        parts=(),
        skipped=(),
        found=0,
        self_test=None,
        worker=WorkerInfo(host="vm", pid=1, device="AMD EPYC", gpu=gpu, threads=1),
        versions={},
        loading_seconds=0.0,
        seconds=60.0,
        started=minute(start),
        ended=minute(end),
    )


def test_jobs_at_the_same_time_are_several_workers() -> None:
    turns = [
        completion("0000", 0, 5),
        completion("0001", 0, 9),
        completion("0002", 5, 7),
        completion("0003", 9, 12),
    ]
    assert [run.worker for run in runs_of(turns)] == ["vm #1", "vm #2", "vm #1", "vm #1"]
    assert {run.worker for run in runs_of([turns[0], turns[3]])} == {"vm"}
    gpus = [completion("0000", 0, 5, gpu="0"), completion("0001", 0, 5, gpu="1")]
    assert [run.worker for run in runs_of(gpus)] == ["vm GPU 0", "vm GPU 1"]


def test_an_attempt_is_of_the_worker_that_finished_its_bucket() -> None:
    runs = runs_of([completion("0000", 0, 5), completion("0001", 0, 9)])

    def owner(bucket: str, host: str = "vm") -> str:
        attempt = Heartbeat(
            bucket=bucket, records="", node=0, host=host, job="", started=minute(0), updated=""
        )
        return workers_of([attempt], runs)[0]

    assert owner("0001") == "vm #2"
    assert owner("0007") == "vm #1", "it finished nothing"
    assert owner("0000", host="x1") == "x1", "nothing was finished there"
