"""The completion records of a campaign that count."""

from dataclasses import replace
from pathlib import Path

from plm_embed.fingerprint import Pooling
from plm_embed.io.json_files import write_sealed
from plm_embed.reporting.facts import last_runs
from support.campaigns import MEAN, completion
from support.made_up_sequences import counted


def test_what_earlier_settings_left_does_not_count(tmp_path: Path) -> None:
    def leave(bucket: str, ended: str, pooling: Pooling) -> None:
        fingerprint = replace(MEAN, pooling=(pooling,))
        record = completion(bucket=bucket, ended=ended, fingerprint=fingerprint, found=1)
        write_sealed(tmp_path / "embedded" / f"{bucket}.json", record)

    assert last_runs(tmp_path, counted(buckets=2)) == []
    leave("0000", "2026-01-02", "mean")
    leave("0001", "2026-01-01", "max")
    leave("0002", "2026-01-03", "mean")  # of more buckets than there are now
    assert [record.bucket for record in last_runs(tmp_path, counted(buckets=2))] == ["0000"]
    assert [record.bucket for record in last_runs(tmp_path, counted(buckets=3))] == ["0000", "0002"]
