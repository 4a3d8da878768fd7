"""Buckets that are embedded here: their records, and what their parts hold."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from plm_embed.inference.reference import reference_vectors
from plm_embed.inference.settings import Settings
from plm_embed.jobs.completion_record import Completion
from plm_embed.jobs.embed_bucket import Embedder
from plm_embed.jobs.finished_bucket import is_finished
from plm_embed.keys import key
from plm_embed.store.parts import read_part
from support.buckets import write_bucket


def run(
    folder: Path, prepared: Path, sequences: Sequence[str], settings: Settings | None = None
) -> Completion:
    bucket = write_bucket(folder, sequences)
    embedder = Embedder(prepared, folder / "store", settings or Settings(scratch=""))
    assert not is_finished(bucket, folder / "absent.json", embedder.store)
    record = embedder.embed(bucket, folder / "0000.json")
    # on a device with more memory the sequences that did not fit are tried again
    lacking = any(skip.reason == "out_of_memory" for skip in record.skipped)
    assert is_finished(bucket, folder / "0000.json", embedder.store) is not lacking
    return record


def stored(folder: Path, record: Completion) -> dict[str, dict[str, np.ndarray]]:
    """Everything that the parts of a record hold: key -> name -> vector."""
    found: dict[str, dict[str, np.ndarray]] = {}
    for info in record.parts:
        with read_part(folder / "store" / record.fingerprint_id / "parts" / info.name) as part:
            for name in part.names:
                for held, vector in zip(
                    part.keys, part.rows(name, np.arange(part.count)), strict=True
                ):
                    found.setdefault(held.decode(), {})[name] = vector
    return found


def check(
    folder: Path, prepared: Path, sequences: Sequence[str], record: Completion, tolerance: float
) -> None:
    fingerprint = record.fingerprint
    found = stored(folder, record)
    assert set(found) == {key(sequence) for sequence in sequences}
    for sequence, expected in zip(
        sequences, reference_vectors(prepared, list(sequences), fingerprint), strict=True
    ):
        for name, vector in expected.items():
            np.testing.assert_allclose(found[key(sequence)][name], vector, atol=tolerance, rtol=0)
