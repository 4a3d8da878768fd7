"""Adopting a master of another program: checked against the reference path, then published into a
store.

Its vectors count as equal to computed ones within the tolerance of the spot checks, not bit for
bit.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from plm_embed.accuracy import STORED, Roundings, bound
from plm_embed.errors import StoreError
from plm_embed.fingerprint import IMPORTED_DEVICE, Fingerprint
from plm_embed.inference.reference import hidden_states
from plm_embed.inference.resolve import fingerprint_of
from plm_embed.inference.settings import Settings
from plm_embed.jobs.scratch import scratch_folder
from plm_embed.kernels import devices
from plm_embed.master.foreign.files import (
    Files,
    KnownSequences,
    names_of_rows,
    sequence_of_each,
    told_by_key,
)
from plm_embed.models.family import Family
from plm_embed.models.manifest import Manifest, read_manifest
from plm_embed.models.registry import find_model
from plm_embed.sequence_windows import spans
from plm_embed.store.hdf5 import Array, largest, open_hdf5
from plm_embed.store.parts import PartRows, write_part
from plm_embed.store.store import Store

_BLOCK_BYTES = 128 << 20
END, ENDS, RIGHT = (
    "the end token pooled in",
    "the start and end tokens pooled in",
    "the residues only",
)


@dataclass
class Adopted:
    """Rows that were adopted, and those that were not, by reason; the largest deviations among the
    checked rows. by_key: rows were told by keys of sequences, not by ids.
    """

    rows: int = 0
    by_key: bool = True
    left_out: dict[str, int] = field(default_factory=dict)
    checked: int = 0
    relative_l2: float = 0.0
    cosine: float = 1.0

    def leave_out(self, reason: str, count: int = 1) -> None:
        if count:
            self.left_out[reason] = self.left_out.get(reason, 0) + count


def adopt(
    files: Files, store_root: Path, weights_folder: Path, settings: Settings, sample: int
) -> Adopted:
    """Check `sample` random rows of the master against fair-esm, and publish all its rows in a
    store, as vectors of the settings on this machine's device.

    StoreError, with the measured deviation, when they are not what the settings ask for; then
    nothing is published.
    """
    manifest = read_manifest(weights_folder)
    fingerprint = fingerprint_of(manifest, settings, devices.choose_device(settings.device))
    done = Adopted()
    with open_hdf5(files.master) as file:
        limit = _check_claims(file, files.master, fingerprint, manifest)
        names = names_of_rows(file, files, len(file["emb"]))
        known = KnownSequences(files, manifest.family.alphabet.name)
        done.by_key = told_by_key(names, known)
        rows, keys, lengths = [], [], []
        seen: set[bytes] = set()
        for row, found in enumerate(sequence_of_each(names, known)):
            if isinstance(found, str):
                done.leave_out(found)
            elif found in seen:
                done.leave_out("a sequence of an earlier row")
            elif (
                known.length[found] > limit
                or len(spans(known.length[found], fingerprint.long_sequences)) != 1
            ):
                done.leave_out("a sequence that may have been cut")
            else:
                seen.add(found)
                rows.append(row)
                keys.append(found)
                lengths.append(known.length[found])
        if not rows:
            raise StoreError(
                f"{files.master}: none of its {len(names):,} rows can be adopted: {done.left_out}",
                path=files.master,
            )
        random = np.random.default_rng(len(rows))
        chosen = np.sort(
            random.choice(len(rows), size=min(sample, len(rows)), replace=False)
        ).tolist()
        stored = np.stack([file["emb"][rows[at]] for at in chosen]).astype(np.float32)
        residues = known.residues([keys[at] for at in chosen])
        layer = fingerprint.layers[0]
        hidden = [
            states[layer].numpy() for states in hidden_states(weights_folder, residues, [layer])
        ]
        means = [_means(states, manifest.family) for states in hidden]
        _check_sample(done, files.master, stored, means, fingerprint, manifest.roundings)
        store = Store(store_root, fingerprint)
        columns = np.array(rows), np.array(keys, dtype="S64"), np.array(lengths, dtype=np.int32)
        _publish(done, file["emb"], columns, store, files.master)
    return done


def _check_claims(
    file: h5py.File, path: Path, fingerprint: Fingerprint, manifest: Manifest
) -> float:
    """Compare what the master says about itself with the settings; the longest sequence that was
    surely not cut.
    """
    if not {"emb", "emb_keys"} <= set(file) or file["emb"].ndim != 2:
        raise StoreError(
            f"{path}: no emb (n, D) and emb_keys in it: not a master that can be adopted", path=path
        )
    said: dict[str, Any] = {name: value.item() if isinstance(value, np.generic) else value
                            for name, value in file.attrs.items()}  # fmt: skip
    problems = []
    if "model_name" in said and find_model(str(said["model_name"])).name != manifest.model:
        problems.append(f"model_name is {said['model_name']}, the weights are of {manifest.model}")
    pooling = np.atleast_1d(said.get("pooling", "mean"))[0]  # masters of plm-embed list several
    if str(pooling) != "mean":
        problems.append(f"pooling is {pooling}, only mean can be adopted")
    layer = np.atleast_1d(said.get("layers", said.get("layer", fingerprint.layers[0])))[0]
    if str(layer) not in {"last", "-1"} | {str(fingerprint.layers[0])} or (
        str(layer) in {"last", "-1"} and fingerprint.layers[0] != manifest.layers
    ):
        problems.append(f"layer is {layer}, {fingerprint.layers[0]} is asked for")
    if file["emb"].shape[1] != manifest.dim:
        problems.append(f"vectors have {file['emb'].shape[1]} numbers, the model's {manifest.dim}")
    if file["emb"].dtype == np.float16 and fingerprint.storage_dtype != "float16":
        problems.append(f"emb is float16, {fingerprint.storage_dtype} is asked for")
    if problems:
        raise StoreError(f"{path}: cannot be adopted: {'; '.join(problems)}", path=path)
    longest = int(said.get("max_length", 0) or 0)
    # it may count special tokens
    return longest - manifest.family.extra_tokens if longest > 0 else float("inf")


def _means(states: Array, family: Family) -> dict[str, Array]:
    """The mean of representations (tokens, D), taken rightly and in the usual wrong ways."""
    first, stop = family.residues(len(states))
    return {RIGHT: states[first:stop].mean(0), END: states[first:].mean(0), ENDS: states.mean(0)}


def _check_sample(  # noqa: PLR0917
    done: Adopted,
    path: Path,
    stored: Array,
    means: Sequence[dict[str, Array]],
    fingerprint: Fingerprint,
    roundings: Roundings | None,
) -> None:
    """Compare the sampled rows (k, D) with the means that the reference gives."""
    limit = STORED[fingerprint.storage_dtype] + bound(fingerprint.compute_dtype, roundings)
    kinds: dict[str, int] = {}
    distances, cosines = [], []
    for vector, pooled in zip(stored, means, strict=True):
        apart = {
            name: float(np.linalg.norm(vector - wanted) / np.linalg.norm(wanted))
            for name, wanted in pooled.items()
        }
        nearest = min(apart, key=apart.__getitem__)
        cosine = float(
            vector @ pooled[RIGHT] / (np.linalg.norm(vector) * np.linalg.norm(pooled[RIGHT]) or 1)
        )
        close = apart[RIGHT] <= limit
        distances.append(apart[RIGHT])
        cosines.append(cosine)
        if not close or nearest != RIGHT:
            explained = (
                nearest if nearest != RIGHT and apart[nearest] <= 10 * limit else "no known cause"
            )
            kinds[explained] = kinds.get(explained, 0) + 1
    done.checked, done.relative_l2, done.cosine = len(stored), max(distances), min(cosines)
    if kinds:
        causes = ", ".join(f"{count} {name}" for name, count in sorted(kinds.items()))
        bad, layer = sum(kinds.values()), fingerprint.layers[0]
        raise StoreError(
            f"{path}: not adopted: {bad} of {len(stored)} sampled rows are not the mean over the "
            f"residues of layer {layer} ({causes})\n  relative distance to the reference: largest "
            f"{max(distances):.2g}, median {np.median(distances):.2g}, allowed {limit:g}; "
            f"smallest cosine {min(cosines):.6f}",
            path=path,
            remedy="embed again instead",
        )


def _publish(
    done: Adopted,
    vectors: h5py.Dataset,
    columns: tuple[NDArray[np.int64], Array, NDArray[np.int32]],
    store: Store,
    source: Path,
) -> None:
    """Publish the rows in parts, in the order of the master, which is read once from its beginning
    to its end.
    """
    rows, keys, lengths = columns
    (name,) = store.fingerprint.representations
    height = max(1, _BLOCK_BYTES // (4 * vectors.shape[1]))
    with scratch_folder("", 2 * _BLOCK_BYTES, store.folder / "scratch") as scratch:
        for start in range(0, len(vectors), height):
            inside = slice(*np.searchsorted(rows, (start, start + height)).tolist())
            block = vectors[start : start + height][rows[inside] - start].astype(np.float32)
            good = (np.abs(block) <= largest(store.fingerprint.storage_dtype)).all(axis=1)
            done.leave_out("NaN, infinity or too large a number", int((~good).sum()))
            if not good.any():
                continue
            once = np.ones(int(good.sum()), dtype=np.int32)
            part = PartRows(keys[inside][good], lengths[inside][good], once, {name: block[good]})
            provenance = {"device": IMPORTED_DEVICE, "imported": source.name}
            write_part(scratch / "part.h5", part, store.fingerprint, provenance)
            done.rows += store.publish(scratch / "part.h5").rows
