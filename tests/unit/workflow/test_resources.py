"""What jobs ask for."""

import os
from pathlib import Path

from plm_embed.sequences.summary import write_summary
from plm_embed.workflow.resources import (
    buckets_per_job,
    gather_minutes,
    host_memory_mb,
    job_memory_mb,
    job_minutes,
    reading_threads,
    records_minutes,
    reference_minutes,
    validate_memory_mb,
)
from support.made_up_sequences import counted


def test_memory_grows_with_the_model() -> None:
    sizes = [host_memory_mb(name) for name in ("esm2_8m", "esm2_650m", "esm2_3b", "esm2_15b")]
    assert sizes == sorted(sizes)
    assert 6000 < sizes[0] < 6100
    assert sizes[-1] > 90_000


def test_a_job_asks_for_what_its_buckets_need_once_they_are_known(tmp_path: Path) -> None:
    speed = {"device": "auto"}
    config = {
        "results": str(tmp_path),
        "model": "esm2_t33_650M_UR50D",
        "buckets": 2,
        "speed": speed,
    }
    assert job_minutes(config, ["0000"]) == 240
    assert job_memory_mb(config, ["0000"]) == host_memory_mb("esm2_t33_650M_UR50D")
    folder = tmp_path / "sequences" / "buckets"
    folder.mkdir(parents=True)
    (folder / "0000.parquet").write_bytes(bytes(3_000_000))
    (folder / "0001.parquet").write_bytes(bytes(1_000_000))
    write_summary(tmp_path / "sequences", counted(residues=40_000_000))
    # 30 million residues at 1.3 GFLOP each: 65 minutes at 10 TFLOP/s
    assert 100 < job_minutes(config, ["0000"]) < 120
    assert 35 < job_minutes(config, ["0001"]) < 50
    # 10 million residues of the 8M at 15 MFLOP each: 49 minutes at 50 GFLOP/s
    small = config | {"model": "esm2_t6_8M_UR50D"}
    assert job_minutes(small, ["0001"]) == 10
    assert 80 < job_minutes(small | {"speed": {"device": "cpu"}}, ["0001"]) < 90
    assert job_memory_mb(config, ["0000", "0001"]) == host_memory_mb("esm2_t33_650M_UR50D") + 30


def test_gpus_hold_the_weights_of_several_workers(tmp_path: Path) -> None:
    config = {"results": str(tmp_path), "model": "esm2_15b", "buckets": 1}
    one = host_memory_mb("esm2_15b")
    on_gpus = config | {"speed": {"device": "auto"}}
    assert job_memory_mb(on_gpus, ["0000"]) == one
    assert job_memory_mb(on_gpus, ["0000"], 4) == one + 3 * 6000
    assert job_memory_mb(config | {"speed": {"device": "cpu"}}, ["0000"], 4) == 4 * one


def test_buckets_of_a_few_seconds_share_a_job_on_this_machine(tmp_path: Path) -> None:
    path = tmp_path / "a.fasta"
    path.write_bytes(bytes(3000))
    config = {"results": str(tmp_path), "inputs": [str(path)], "buckets": 64}
    large, small = "esm2_t33_650M_UR50D", "esm2_t6_8M_UR50D"
    # ten proteins, 1.3 GFLOP per residue, 50 GFLOP/s: 78 s, so eight of 64 buckets within ten
    assert buckets_per_job(config, large) == buckets_per_job(config, small, large) == 8
    assert buckets_per_job(config, small) == 64
    os.truncate(path, 400_000)
    assert buckets_per_job(config, large) == 1
    path.unlink()  # of unknown size
    assert buckets_per_job(config, large) == 1


def test_time_grows_with_the_inputs_and_with_what_is_written(tmp_path: Path) -> None:
    path = tmp_path / "a.fasta"
    path.touch()
    embedding = {"layers": [33], "pooling": ["mean"], "storage_dtype": "float16"}
    small = {
        "results": str(tmp_path / "results"),
        "inputs": [str(path)],
        "model": "esm2_t33_650M_UR50D",
        "embedding": embedding,
        "validate": {"spot_checks": 0},
    }
    assert records_minutes(0) == gather_minutes(small) == reference_minutes(small) == 30
    os.truncate(path, 3_000_000_000)
    assert records_minutes(3e9) == 40
    # 10 million rows of 2,560 bytes at 150 MB/s
    assert gather_minutes(small) == 40 + 3
    assert gather_minutes(small | {"embedding": embedding | {"storage_dtype": "float32"}}) == 40 + 6
    assert (
        gather_minutes(small | {"embedding": embedding | {"pooling": ["per_residue"]}}) == 40 + 853
    )
    assert validate_memory_mb(small) == 4000 + 90  # 10 million rows, 9 bytes each
    both = embedding | {"layers": [6, 33], "pooling": ["mean", "max"]}
    assert validate_memory_mb(small | {"embedding": both}) == 4000 + 360
    # 100,000 residues at 1.3 GFLOP each, 50 GFLOP/s
    assert reference_minutes(small | {"validate": {"spot_checks": 100}}) == 30 + 43


def test_a_small_input_leaves_a_core_to_the_weights() -> None:
    assert [reading_threads(size) for size in (0, 49_999_999, 50_000_000, 10**12)] == [1, 1, 2, 2]
