"""Adopting vectors of another program: checked against the reference path, then published into a
store.

They count as equal to computed ones within the tolerance of the spot checks, not bit for bit.
"""

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from plm_embed.accuracy import STORED, bound
from plm_embed.errors import StoreError
from plm_embed.fingerprint import IMPORTED_DEVICE, Fingerprint, pooling_and_layer
from plm_embed.inference.loading import fingerprint_of
from plm_embed.inference.reference import hidden_states
from plm_embed.inference.settings import Settings
from plm_embed.jobs.scratch import scratch_folder
from plm_embed.kernels import devices
from plm_embed.master.foreign import Files, Foreign, KnownSequences, read_foreign
from plm_embed.models.registry import find_model
from plm_embed.models.weights import Manifest, read_manifest
from plm_embed.sequence_windows import spans
from plm_embed.store.hdf5 import Array, largest
from plm_embed.store.parts import PartRows, write_part
from plm_embed.store.store import Store

_BLOCK_BYTES = 128 << 20
RIGHT = "the residues only"


@dataclass
class Adopted:
    """Rows that were adopted, and those that were not, by reason; the largest deviations among the
    checked rows. by_key: rows were named by keys of sequences, not by ids.
    """

    rows: int = 0
    by_key: bool = True
    left_out: Counter[str] = field(default_factory=Counter)
    checked: int = 0
    relative_l2: float = 0.0
    cosine: float = 1.0


def adopt(
    files: Files, store_root: Path, weights_folder: Path, settings: Settings, sample: int
) -> Adopted:
    """Check `sample` random rows against the reference, and publish all rows in a store, as vectors
    of the settings on this machine's device.

    StoreError, with the measured deviation, when they are not what the settings ask for; then
    nothing is published.
    """
    manifest = read_manifest(weights_folder)
    fingerprint = fingerprint_of(manifest, settings, devices.choose_device(settings.device))
    adopted = Adopted()
    with read_foreign(files) as foreign:
        longest = _check_stated(foreign, files.vectors, fingerprint, manifest)
        sequences = KnownSequences(files, manifest.family)
        matched, adopted.by_key = sequences.match(foreign)
        rows: dict[bytes, int] = {}
        for row, key in enumerate(matched):
            if isinstance(key, str):
                adopted.left_out[key] += 1
            elif key in rows:
                adopted.left_out["a sequence of an earlier row"] += 1
            elif (
                sequences.length[key] > longest
                or len(spans(sequences.length[key], fingerprint.long_sequences)) != 1
            ):
                adopted.left_out["a sequence that may have been cut"] += 1
            elif key in sequences.rare and "fingerprint" not in foreign.stated:
                adopted.left_out["B in the sequence, which ProtTrans keeps and we read as X"] += 1
            else:
                rows[key] = row
        if not rows:
            words = f"none of its {len(matched):,} rows can be adopted: {dict(adopted.left_out)}"
            raise StoreError(f"{files.vectors}: {words}", path=files.vectors)
        chosen = np.random.default_rng(len(rows)).choice(
            len(rows), size=min(sample, len(rows)), replace=False
        )
        adoptable = list(rows)
        keys = [adoptable[place] for place in sorted(chosen.tolist())]
        stored = [np.asarray(foreign.vectors[rows[key]], np.float32) for key in keys]
        layer = fingerprint.layers[0]
        states = hidden_states(weights_folder, sequences.residues(keys), [layer])
        hidden = [of_layer[layer].numpy() for of_layer in states]
        _check_sample(adopted, files.vectors, stored, hidden, fingerprint, manifest)
        store = Store(store_root, fingerprint)
        _publish(adopted, foreign.vectors, rows, sequences.length, store, files.vectors.name)
    return adopted


def _check_stated(
    foreign: Foreign, path: Path, fingerprint: Fingerprint, manifest: Manifest
) -> float:
    """Compare what the program stated with the settings; return the length of the longest sequence
    that was surely not cut.
    """
    stated, layer = dict(foreign.stated), fingerprint.layers[0]
    if "representation" in stated:  # an export of this package
        stated["pooling"], stated["layer"] = pooling_and_layer(str(stated["representation"]))
    problems = []
    name = str(stated.get("model_name", manifest.model))
    if name != manifest.model and find_model(name).name != manifest.model:
        problems.append(f"model_name is {name}, the weights are of {manifest.model}")
    pooling = np.atleast_1d(stated.get("pooling", "mean"))[0]  # masters of plm-embed list several
    if str(pooling) != "mean":
        problems.append(f"pooling is {pooling}, only mean can be adopted")
    theirs = str(np.atleast_1d(stated.get("layers", stated.get("layer", layer)))[0])
    if theirs != str(layer) and not (theirs in {"last", "-1"} and layer == manifest.layers):
        problems.append(f"layer is {theirs}, {layer} is asked for")
    if (dim := foreign.vectors.shape[1]) != manifest.dim:
        problems.append(f"vectors have {dim} numbers, the model's {manifest.dim}")
    if foreign.vectors.dtype == np.float16 and fingerprint.storage_dtype != "float16":
        problems.append(f"its numbers are float16, {fingerprint.storage_dtype} is asked for")
    if problems:
        raise StoreError(f"{path}: cannot be imported: {'; '.join(problems)}", path=path)
    longest = int(stated.get("max_length", 0) or 0)
    # it may count special tokens
    return longest - manifest.family.extra_tokens if longest > 0 else float("inf")


def _check_sample(  # noqa: PLR0917
    adopted: Adopted,
    path: Path,
    stored: list[Array],
    hidden: list[Array],
    fingerprint: Fingerprint,
    manifest: Manifest,
) -> None:
    """Compare sampled vectors (D,) with the reference's representations (tokens, D): with their
    mean over the residues, and over more, as is usually wrong.
    """
    limit = STORED[fingerprint.storage_dtype]
    limit += bound(fingerprint.compute_dtype, manifest.roundings)
    causes, distances, cosines = Counter[str](), list[float](), list[float]()
    for vector, states in zip(stored, hidden, strict=True):
        first, stop = manifest.family.residues(len(states))
        means = {
            RIGHT: states[first:stop].mean(0),
            "the end token pooled in": states[first:].mean(0),
            "the start and end tokens pooled in": states.mean(0),
        }
        norms = {name: float(np.linalg.norm(mean)) for name, mean in means.items()}
        apart = {
            name: float(np.linalg.norm(vector - mean)) / norms[name] for name, mean in means.items()
        }
        nearest = min(apart, key=apart.__getitem__)
        distances.append(apart[RIGHT])
        product = float(vector @ means[RIGHT])
        cosines.append(product / (float(np.linalg.norm(vector)) * norms[RIGHT] or 1.0))
        if not apart[RIGHT] <= limit or nearest != RIGHT:
            explained = nearest != RIGHT and apart[nearest] <= 10 * limit
            causes[nearest if explained else "no known cause"] += 1
    adopted.checked = len(stored)
    adopted.relative_l2, adopted.cosine = max(distances), min(cosines)
    if causes:
        named = ", ".join(f"{count} {name}" for name, count in sorted(causes.items()))
        raise StoreError(
            f"{path}: not imported: {causes.total()} of {len(stored)} sampled rows are not the "
            f"mean over the residues of layer {fingerprint.layers[0]} ({named})\n"
            f"  relative distance to the reference: largest {max(distances):.2g}, median "
            f"{np.median(distances):.2g}, allowed {limit:g}; smallest cosine {min(cosines):.6f}",
            path=path,
            remedy="embed again instead",
        )


def _publish(  # noqa: PLR0917
    adopted: Adopted,
    vectors: Array,
    rows: dict[bytes, int],
    length: dict[bytes, int],
    store: Store,
    source: str,
) -> None:
    """Publish the vectors of the keys in `rows` in parts, in the order of the rows, which are read
    once from the beginning to the end.
    """
    (name,) = store.fingerprint.representations
    keys = np.array(list(rows), dtype="S64")
    lengths = np.array([length[key] for key in rows], dtype=np.int32)
    places: NDArray[np.int64] = np.array(list(rows.values()))
    height = max(1, _BLOCK_BYTES // (4 * vectors.shape[1]))
    with scratch_folder("", 2 * _BLOCK_BYTES, store.folder / "scratch") as scratch:
        for start in range(0, len(vectors), height):
            inside = slice(*np.searchsorted(places, (start, start + height)).tolist())
            block = vectors[start : start + height][places[inside] - start].astype(np.float32)
            good = (np.abs(block) <= largest(store.fingerprint.storage_dtype)).all(axis=1)
            if not good.all():
                adopted.left_out["NaN, infinity or too large a number"] += int((~good).sum())
            if not good.any():
                continue
            once = np.ones(int(good.sum()), dtype=np.int32)
            part = PartRows(keys[inside][good], lengths[inside][good], once, {name: block[good]})
            provenance = {"device": IMPORTED_DEVICE, "imported": source}
            write_part(scratch / "part.h5", part, store.fingerprint, provenance)
            adopted.rows += store.publish(scratch / "part.h5").rows
