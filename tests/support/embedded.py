"""Buckets that are embedded here: their records, and what their parts hold."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from plm_embed.accuracy import SelfTest
from plm_embed.inference.reference import reference_vectors
from plm_embed.inference.settings import Settings
from plm_embed.jobs.bucket import is_done, missing, read_sequences
from plm_embed.jobs.completion_record import Completion, read_completion
from plm_embed.jobs.embedder import Embedder as WorkerEmbedder
from plm_embed.jobs.embedder import worker_info
from plm_embed.jobs.heartbeat import moment
from plm_embed.jobs.job import Job, write_record
from plm_embed.keys import key
from plm_embed.models.manifest import read_manifest
from plm_embed.sequences.summary import check_kind
from plm_embed.store.parts import read_part
from plm_embed.store.store import Store
from support.buckets import write_bucket


class Embedder:
    """Embeds bucket after bucket as jobs do, but in this process, with the model loaded once."""

    def __init__(self, weights: Path, root: Path, settings: Settings) -> None:
        self._weights, self._root, self._settings = weights, root, settings
        self.worker = WorkerEmbedder(weights, root, settings)
        self.store = self.worker.store
        self._tested: SelfTest | None = None

    def embed(self, bucket: Path, path: Path) -> Completion:
        """Embed what the store lacks of a bucket. Returns its record."""
        alphabet = read_manifest(self._weights).family.alphabet.name
        check_kind(bucket, alphabet, self._settings.strand)
        started = moment()
        sequences, store = read_sequences(bucket), Store(self._root, self.store.fingerprint)
        todo = missing(sequences, store)
        todo = todo[np.argsort(-sequences.lengths[todo], kind="stable")]
        try:
            if len(todo):
                self.worker.embed(sequences.keys[todo], [sequences.texts[i] for i in todo])
        finally:
            self.worker.publish(wait=True)
        results = self.worker.report("ended").results
        self._tested = results.self_test or self._tested
        results = replace(
            results,
            workers=(worker_info(self.worker.device),),
            self_test=self._tested if len(todo) else None,
        )
        assert not len(missing(sequences, store, results.skipped))
        job = Job(bucket, self._weights, self._root, path, workers=1)
        write_record(job, sequences, store, todo, results, started)
        return read_completion(path)


def run(
    folder: Path, prepared: Path, sequences: Sequence[str], settings: Settings | None = None
) -> Completion:
    bucket, path = write_bucket(folder, sequences), folder / "0000.json"
    root = folder / "store"
    record = Embedder(prepared, root, settings or Settings(scratch="")).embed(bucket, path)
    store = Store(root, record.fingerprint)
    assert not is_done(bucket, folder / "absent.json", store)
    # on a device with more memory the sequences that did not fit are tried again
    lacking = any(skip.reason == "out_of_memory" for skip in record.skipped)
    assert is_done(bucket, path, store) is not lacking
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
