"""Buckets that are embedded here: their records, and what their parts hold."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from plm_embed.accuracy import SelfTest
from plm_embed.inference.reference import reference_vectors
from plm_embed.inference.settings import Settings
from plm_embed.jobs.completion_record import Completion, is_done, read_completion
from plm_embed.jobs.heartbeat import Heartbeat
from plm_embed.jobs.job import Job, write_record
from plm_embed.jobs.node import missing, read_sequences
from plm_embed.jobs.worker import Worker
from plm_embed.keys import key
from plm_embed.models.weights import read_manifest
from plm_embed.sequences.summary import check_kind
from plm_embed.store.parts import Part
from plm_embed.store.store import Store
from support.buckets import write_bucket


class Embedder:
    """Embeds bucket after bucket as jobs do, but in this process, with the model loaded once."""

    def __init__(self, weights: Path, root: Path, settings: Settings) -> None:
        self._weights, self._root, self._settings = weights, root, settings
        self.worker = Worker(weights, root, settings)
        self.store, self._new = self.worker.store, self.worker.info
        self._tested: SelfTest | None = None

    def embed(self, bucket: Path, path: Path) -> Completion:
        """Embed what the store lacks of a bucket. Returns its record."""
        alphabet = read_manifest(self._weights).as_model.family.alphabet.name
        check_kind(bucket, alphabet, self._settings.strand)
        beat = Heartbeat(bucket=bucket.stem)
        self.worker.info = replace(self._new)
        sequences, store = read_sequences(bucket), Store(self._root, self.store.fingerprint)
        todo = missing(sequences, store)
        try:
            if len(todo):
                self.worker.embed(sequences.keys[todo], [sequences.texts[i] for i in todo])
        finally:
            self.worker.publish(wait=True)
        message = self.worker.message()
        beat.workers, beat.skipped = (message.info,), message.skipped
        self._tested = message.self_test or self._tested
        beat.self_test = self._tested if len(todo) else None
        assert not len(missing(sequences, store, beat.skipped))
        job = Job(bucket, self._weights, self._root, path, workers=1)
        write_record(job, sequences, store, todo, [beat])
        return read_completion(path)


def run(
    folder: Path, prepared: Path, sequences: Sequence[str], settings: Settings | None = None
) -> Completion:
    bucket, path = write_bucket(folder, sequences), folder / "0000.json"
    root = folder / "store"
    record = Embedder(prepared, root, settings or Settings(scratch="")).embed(bucket, path)
    assert not is_done(bucket, folder / "absent.json", root)
    assert is_done(bucket, path, root, record.fingerprint)
    return record


def stored(folder: Path, record: Completion) -> dict[str, dict[str, np.ndarray]]:
    """Everything that the parts of a record hold: key -> name -> vector."""
    found: dict[str, dict[str, np.ndarray]] = {}
    for info in record.parts:
        with Part(folder / "store" / record.fingerprint_id / "parts" / info.name) as part:
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
