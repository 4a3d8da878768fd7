"""What a job may need before anybody has seen it run: GPUs, memory and time. When they grow:
`retries`.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

from plm_embed.fingerprint import storage_bytes
from plm_embed.keys import bucket_names
from plm_embed.models.registry import find_model
from plm_embed.sequences.summary import SUMMARY, known_summary
from plm_embed.workflow.config import Config

BOUND_MINUTES = 240
LEAST_MINUTES = 30
FLOPS_PER_SECOND, CPU_FLOPS_PER_SECOND = 1e13, 5e10
RECORD_BYTES_PER_MINUTE, MASTER_BYTES_PER_MINUTE = 3e8, 9e9
JOB_SECONDS = 10
WORKER_MB = 6000
"""Main memory of a worker's libraries and batches."""
SMALL_BYTES = 50_000_000
"""Of input: a second of reading."""
RESIDUES_PER_ROW = 300  # the mean of UniRef; also bytes of input per record


def local_resources(gpus: int) -> list[str]:
    """Options of Snakemake for a machine with so many GPUs: one embed job at a time, with a worker
    on each. Without them each job would take the first GPU.
    """
    return ["--resources", f"gpu={gpus}", "--set-resources", f"embed:gpu={gpus}"] if gpus else []


def host_memory_mb(model_name: str) -> int:
    """Main memory that one worker may need, in MB: libraries, batches, and the weights while they
    load.
    """
    return WORKER_MB + round(6 * find_model(model_name).parameters / 1e6)


def job_memory_mb(config: Config, buckets: Sequence[str], workers: int = 1) -> int:
    """Main memory for a node's workers on these buckets, in MB: for each WORKER_MB and the largest
    one's sequences; the weights for each on CPUs, once on GPUs.

    Several workers have a GPU each unless the device is `cpu` (`jobs.node` refuses fewer). They
    read the weights tensor by tensor and move each to the GPU, so a worker holds a few tensors at
    once, which WORKER_MB covers. The share that stays is room for the file, which they read at the
    same time, in the page cache.
    """
    every = _sizes(config)
    largest = max((every.get(name, 0) for name in buckets), default=0)
    weights = host_memory_mb(config["model"]) - WORKER_MB
    copies = workers if config["speed"]["device"] == "cpu" else 1
    return workers * (WORKER_MB + round(10 * largest / 1e6)) + copies * weights


def job_minutes(config: Config, buckets: Sequence[str]) -> int:
    """Time for one worker on these buckets: from their residues once they are counted, before that
    a bound of 240.

    Reckoned at 10 TFLOP/s, which a V100 reaches in half precision and an A100 several times over,
    or with device cpu at 50 GFLOP/s, a third of what a modern core reaches; with half as much again
    and ten minutes to start.
    """
    every = _sizes(config)
    total = sum(every.values())
    if not total:
        return BOUND_MINUTES
    known = known_summary(Path(config["results"]) / "sequences")
    share = sum(every.get(name, 0) for name in buckets) / total
    residues = share * known.residues if known else 0
    rate = CPU_FLOPS_PER_SECOND if config["speed"]["device"] == "cpu" else FLOPS_PER_SECOND
    seconds = residues * 2 * find_model(config["model"]).parameters / rate
    return 10 + round(1.5 * seconds / 60)


def buckets_per_job(config: Config, *models: str) -> int:
    """Buckets that one job on this machine embeds: one, or as many as a core computes within ten
    seconds, for each job starts torch and loads the weights, which takes as long.

    By the bytes of the inputs, so that the jobs of a campaign stay the same after its sequences are
    counted. models: of which the largest decides.
    """
    parameters = max(find_model(name).parameters for name in models)
    seconds = 2 * parameters * input_bytes(config) / CPU_FLOPS_PER_SECOND
    buckets: int = config["buckets"]
    return max(1, min(buckets, int(buckets * JOB_SECONDS / seconds) if seconds else 1))


def records_minutes(input_bytes: float) -> int:
    """Time for a job over the records of so many bytes of input: half an hour, and a minute for
    every 0.3 GB.

    Deduplicate makes 60 MB/s of plain FASTA on two cores; this leaves room for compressed files and
    slow disks.
    """
    return LEAST_MINUTES + round(input_bytes / RECORD_BYTES_PER_MINUTE)


def gather_minutes(config: Config) -> int:
    """Time for gather, which writes the vectors, or validate, which reads them: and
    `records_minutes`.
    """
    return records_minutes(input_bytes(config)) + _vectors_minutes(config)


def validate_memory_mb(config: Config) -> int:
    """Main memory of validate, in MB: 4 bytes for each vector and representation, and 5 more while
    it looks at norms.
    """
    embedding = config["embedding"]
    names = len(embedding["pooling"]) * len(embedding["layers"])
    return 4000 + round(9e-6 * names * input_bytes(config) / RESIDUES_PER_ROW)


def reference_minutes(config: Config) -> int:
    """Time for the reference: half an hour, and 1,000 residues per check at 50 GFLOP/s."""
    parameters = find_model(config["model"]).parameters
    flops: float = config["validate"]["spot_checks"] * 1000 * 2 * parameters
    return LEAST_MINUTES + round(flops / CPU_FLOPS_PER_SECOND / 60)


def _vectors_minutes(config: Config) -> int:
    """Time for all vectors, read or written at 150 MB/s, a third of what two cores were seen to
    do.
    """
    model, embedding = find_model(config["model"]), config["embedding"]
    width = storage_bytes(embedding["storage_dtype"])
    rows = sum(
        1.0 if name in ("per_residue", "per_token") else 1 / RESIDUES_PER_ROW
        for name in embedding["pooling"]
    )
    size: float = input_bytes(config) * rows * len(embedding["layers"]) * model.dim * width
    return round(size / MASTER_BYTES_PER_MINUTE)


def reading_threads(size: int) -> int:
    """Cores for deduplicate and gather of sequence files of so many bytes. The second one spares a
    quarter of the time: for small files it does more for another job, such as `weights`.
    """
    return 1 if size < SMALL_BYTES else 2


def input_size(config: Config, path: str) -> int:
    """Bytes of an input; when another workflow has removed it, what the summary says, and 0 when it
    has yet to make it.
    """
    if (found := Path(path)).exists():
        return found.stat().st_size
    known = known_summary(Path(config["results"]) / "sequences")
    counted = {one.path: one.bytes for one in known.inputs} if known else {}
    return counted.get(path, 0)


def input_bytes(config: Config) -> int:
    """Bytes of all inputs."""
    return sum(input_size(config, path) for path in config["inputs"])


def _sizes(config: Config) -> Mapping[str, int]:
    """Bytes of each bucket's file, by bucket; none before the sequences are counted."""
    sequences = Path(config["results"]) / "sequences"
    try:
        changed = (sequences / SUMMARY).stat().st_mtime_ns
    except OSError:
        return {}
    return _sizes_since(sequences / "buckets", config["buckets"], changed)


@cache
def _sizes_since(folder: Path, buckets: int, _: int) -> Mapping[str, int]:
    """Every job of a plan asks for them: each file is looked at once until the summary changes."""
    found = {}
    for name in bucket_names(buckets):
        with suppress(OSError):
            found[name] = (folder / f"{name}.parquet").stat().st_size
    return found
