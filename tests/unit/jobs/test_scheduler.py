import pytest

from plm_embed.jobs.scheduler import job_id


def test_the_job_is_that_of_slurm_or_of_pbs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    monkeypatch.delenv("PBS_JOBID", raising=False)
    assert not job_id()
    monkeypatch.setenv("PBS_JOBID", "12.server")
    assert job_id() == "12.server"
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    assert job_id() == "7"
