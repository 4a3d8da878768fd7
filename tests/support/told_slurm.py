"""A SLURM on PATH whose commands answer what a test tells them."""

from pathlib import Path

import pytest

CONFIG = """\
Configuration data as of 2026-11-22T09:00:00
AccountingStorageType   = accounting_storage/slurmdbd
ClusterName             = {cluster}
CompleteWait            = 0 sec
"""
ONE_PARTITION = "cpu*|up|2-00:00:00|40|(null)\ngpu|up|1-00:00:00|8|gpu:a100:4(S:0-1)\n"
TWO_PARTITIONS = ONE_PARTITION + "long|up|7-00:00:00|2|gpu:a100:4\n"


def slurm(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    cluster: str = "bed",
    accounts: str = "lab\n",
    partitions: str = "",
) -> None:
    """Put commands on PATH that answer as SLURM does."""
    answers = {
        "scontrol": CONFIG.format(cluster=cluster),
        "sacctmgr": accounts,
        "sinfo": partitions or ONE_PARTITION,
    }
    (folder / "bin").mkdir()
    for name, answer in (answers | {"sbatch": ""}).items():
        (folder / f"{name}.answer").write_text(answer)
        (folder / "bin" / name).write_text(f"#!/bin/sh\ncat {folder}/{name}.answer\n")
        (folder / "bin" / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder / 'bin'}:/bin")
    monkeypatch.delenv("SBATCH_ACCOUNT", raising=False)
