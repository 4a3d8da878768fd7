"""A whole embed job on random weights."""

import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import peers
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from bench import LENGTHS, Bench, draw

from plm_embed.inference.prepare_weights import seal
from plm_embed.inference.settings import Settings
from plm_embed.io.files import sha256_file
from plm_embed.jobs.completion_record import read_completion
from plm_embed.jobs.job import Job, embed_bucket
from plm_embed.keys import key
from plm_embed.models import weights
from plm_embed.models.manifest import Manifest, Source
from plm_embed.models.registry import find_model


def job(bench: Bench, name: str, tokens: int, found: dict[str, Any]) -> None:
    """A whole embed job: weights from a file, self-test, batches, parts; its completion record
    in short goes into `found`.
    """

    model = find_model(name)
    with tempfile.TemporaryDirectory(prefix="g", dir="/tmp") as scratch:
        folder = Path(scratch)
        (folder / "weights").mkdir()
        tensors = peers.RandomTensors(model, bench.device, torch.float16)
        path = folder / "weights" / weights.TENSORS
        weights.write(path, {each: tensors[each].cpu() for each in tensors})
        shape = model.architecture, model.layers, model.dim, model.heads, model.max_residues
        digest, source = sha256_file(path), Source("fair-esm", "")
        seal(
            path.parent,
            Manifest(model.name, *shape, True, "MIT", digest, path.stat().st_size, source),
        )
        rows = sorted(
            (key(text), text) for text in set(draw(*LENGTHS["influenza, mean 500"], tokens))
        )
        columns = {"key": [row[0] for row in rows], "sequence": [row[1] for row in rows]}
        pq.write_table(pa.table(columns), folder / "0000.parquet")
        settings = Settings(device=bench.device.type, scratch="")
        embed_bucket(
            Job(
                bucket=folder / "0000.parquet",
                weights=folder / "weights",
                store=folder / "store",
                record=folder / "0000.json",
                workers=1,
            ),
            settings,
        )
        record = read_completion(folder / "0000.json")
    wanted = (
        "fingerprint",
        "self_test",
        "computed",
        "tokens",
        "tokens_per_second",
        "busy",
        "toks_per_batch",
    )
    said = asdict(record)
    found |= {each: said[each] for each in (*wanted, "loading_seconds", "seconds")}
