"""Adopting vectors of another program: matched with sequences, checked against the reference path,
then published into a store.

They count as equal to computed ones within the tolerance of the spot checks, not bit for bit.
"""

import re
from collections import ChainMap, Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from plm_embed.accuracy import STORED, bound
from plm_embed.errors import StoreError
from plm_embed.fingerprint import IMPORTED_DEVICE, Fingerprint, pooling_and_layer
from plm_embed.inference.loading import fingerprint_of
from plm_embed.inference.reference import hidden_states
from plm_embed.inference.settings import Settings, resolved
from plm_embed.jobs.scratch import scratch_folder
from plm_embed.kernels import devices
from plm_embed.keys import key
from plm_embed.master.foreign import Files, Foreign, Names, read_foreign, reading
from plm_embed.master.spot_checks import SPOT_TOKENS
from plm_embed.models.family import Family
from plm_embed.models.registry import find_model
from plm_embed.models.weights import Manifest, read_manifest
from plm_embed.sequence_windows import spans
from plm_embed.sequences.records import Reader, normalize_batch
from plm_embed.sequences.residues import SEPARATOR, ResiduePolicy
from plm_embed.store.hdf5 import decode, encode
from plm_embed.store.parts import PartRows, write_part
from plm_embed.store.store import Store

UNKNOWN, AMBIGUOUS = "no sequence for its key or id", "names of several rows or sequences"
_BLOCK_BYTES = 128 << 20
_RESIDUES = "the residues only"


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
    """Check `sample` rows against the reference, and publish all rows in a store, as vectors of the
    settings on this machine's device. With a linker, sequences are pairs of chains.

    StoreError, with the measured deviation, when they are not what the settings ask for; then
    nothing is published.
    """
    manifest = read_manifest(weights_folder)
    settled, device = resolved(settings, manifest.as_model), devices.choose_device(settings.device)
    fingerprint = fingerprint_of(manifest, settled, device)
    with read_foreign(files) as foreign:
        with reading(foreign.path):
            longest = _check_stated(foreign, fingerprint, manifest)
        inputs = KnownSequences(files, manifest.as_model.family, paired=bool(fingerprint.linker))
        adopted = Adopted(by_key=any(name in inputs.length for _, name in foreign.names))
        matched, rows = inputs.match(foreign.names, adopted.by_key), dict[str, int]()
        for row in range(len(foreign.vectors)):
            name = reason = matched.get(row, UNKNOWN)
            if length := inputs.length.get(name, 0):
                if name in rows:
                    reason = "a sequence of an earlier row"
                elif length > longest or len(spans(length, fingerprint.long_sequences)) != 1:
                    reason = "a sequence that may have been cut"
                elif name in inputs.rare and not foreign.fingerprint:
                    reason = "B in the sequence, which ProtTrans keeps and we read as X"
                else:
                    rows[name] = row
                    continue
            adopted.left_out[reason] += 1
        if not rows:
            reasons = ", ".join(f"{count:,} {why}" for why, count in adopted.left_out.items())
            words = f"none of its {len(foreign.vectors):,} rows can be adopted: {reasons}"
            raise StoreError(f"{foreign.path}: {words}", path=foreign.path)
        sequences = {rows[key]: text for key, text in inputs.sample(rows, sample).items()}
        adopted.checked = len(sequences)
        adopted.relative_l2, adopted.cosine = _check_sample(
            foreign, sequences, weights_folder, fingerprint
        )
        _publish(adopted, foreign, rows, inputs.length, Store(store_root, fingerprint))
    return adopted


class KnownSequences:
    """The sequences of the input files: length, their residues by key; rare, the keys of those with
    the letter B, where the family reads it as X; and their keys by name.

    Ids of different sequences name none. An accession (of sp|P12345|X_HUMAN), and a header as
    ProtTrans writes it, name a record, too.
    """

    def __init__(self, files: Files, family: Family, *, paired: bool) -> None:
        self._files, self._family = files, family
        self._policy = ResiduePolicy(alphabet="protein_pair" if paired else family.alphabet.name)
        self.length: dict[str, int] = {}
        self.rare: set[str] = set()
        by_id, by_alias = dict[str, str](), dict[str, str]()
        self._by_name = ChainMap(by_id, by_alias)
        replaced = "B" in getattr(family.tokenizer, "read_as", ())
        for id, header, sequence in self._read():
            name = key(sequence)
            self.length[name] = family.alphabet.length(sequence)
            if replaced and "B" in sequence:
                self.rare.add(name)
            mangled = (re.sub("[/.]", "_", text) for text in (id, header))
            aliases = {*id.split("|")[1:2], *mangled} - {id}
            for names, texts in ((by_id, {id}), (by_alias, aliases)):
                for text in texts:
                    if names.setdefault(text, name) != name:
                        names[text] = ""

    def _read(self) -> Iterator[tuple[str, str, str]]:
        for path in self._files.sequences:
            for batch in Reader(path, self._files.table):
                normalized = normalize_batch(batch, self._policy)
                accepted = normalized.reasons.is_null()
                names = (column.filter(accepted) for column in (batch.ids, batch.headers))
                columns = (column.to_pylist() for column in (*names, normalized.sequences))
                yield from zip(*columns, strict=True)

    def sample(self, keys: Iterable[str], count: int) -> dict[str, str]:
        """Return the sequences of so many of the keys, none too long for the reference: the longest
        quarter, for these are cut first, and random ones. The files are read again.
        """
        names = sorted(keys, key=self.length.__getitem__)
        random = np.random.default_rng(len(names))
        most = SPOT_TOKENS * self._family.letters_per_token
        names = [name for name in names if self.length[name] <= most] or names[:count]
        longest, shorter = names[-count // 4 :], names[: -count // 4]
        count = min(count - len(longest), len(shorter))
        places = random.choice(len(shorter), count, replace=False).tolist()
        sequences = dict.fromkeys([*longest, *(shorter[place] for place in places)], "")
        for _, _, sequence in self._read():
            if (name := key(sequence)) in sequences:
                sequences[name] = sequence
        return sequences

    def match(self, names: Names, by_key: bool) -> dict[int, str]:
        """Return the key of each row's sequence, or `AMBIGUOUS`, for rows whose names are known.

        Where keys of sequences name the rows, they alone count: the sequence of an id may have
        changed since. Else ids count, but not those of several rows.
        """
        matched: dict[int, str] = {}
        row_of: dict[str, int] = {}
        for row, name in names:
            sequence = self._by_name.get(name) if not by_key else name * (name in self.length)
            if not sequence:
                continue
            if matched.setdefault(row, sequence) != sequence:
                matched[row] = AMBIGUOUS
            if not by_key and (earlier := row_of.setdefault(name, row)) != row:
                matched[row] = matched[earlier] = AMBIGUOUS
        return matched


def _check_stated(foreign: Foreign, fingerprint: Fingerprint, manifest: Manifest) -> float:
    """Compare what the program stated with the settings; return the length of the longest sequence
    that was surely not cut.
    """
    stated, theirs = dict(foreign.stated), foreign.fingerprint
    if "representation" in stated:
        stated["pooling"], stated["layer"] = pooling_and_layer(str(stated["representation"]))
    model = str(stated.get("model_name", manifest.model))
    if model != manifest.model:  # which may be one of the user's own
        model = find_model(model).name
    # a master lists several poolings and layers, of which its vectors are the first
    pooling = str(np.atleast_1d(stated.get("pooling", "mean"))[0])
    (layer,) = fingerprint.layers
    number = str(np.atleast_1d(stated.get("layers", stated.get("layer", layer)))[0])
    compared: dict[str, tuple[object, object]] = {
        "model_name": (model, manifest.model),
        "pooling": (pooling, "mean"),
        "layer": (str(manifest.layers) if number in {"last", "-1"} else number, str(layer)),
        "vector size": (foreign.vectors.shape[1], manifest.dim),
    }
    if foreign.vectors.dtype == np.float16:
        compared["storage_dtype"] = "float16", fingerprint.storage_dtype
    if theirs:
        for setting, default in (("linker", ""), ("strand", "as_given")):
            compared[setting] = theirs.get(setting, default), getattr(fingerprint, setting)
    problems = [
        f"{name} is {value or 'none'}, {expected or 'none'} is asked for"
        for name, (value, expected) in compared.items()
        if value != expected
    ]
    if problems:
        words = f"{foreign.path}: cannot be imported: {'; '.join(problems)}"
        raise StoreError(words, path=foreign.path)
    limit = theirs.get("long_sequences", {}).get("max_residues", 0)
    longest = int(stated.get("max_length", limit) or 0)
    # it may count special tokens
    return longest - manifest.as_model.family.tokens(0) if longest > 0 else float("inf")


def _check_sample(
    foreign: Foreign, sequences: Mapping[int, str], weights: Path, fingerprint: Fingerprint
) -> tuple[float, float]:
    """Compare some rows with the reference's representations of their sequences: with the mean over
    the residues, and over more, as is usually wrong. Return the largest relative distance to it and
    the smallest cosine.
    """
    manifest, (layer,), linker = read_manifest(weights), fingerprint.layers, fingerprint.linker
    family, limit = manifest.as_model.family, STORED[fingerprint.storage_dtype]
    limit += bound(fingerprint.compute_dtype, manifest.roundings)
    causes, distances, cosines = Counter[str](), list[float](), list[float]()
    texts = [sequence.replace(SEPARATOR, linker) for sequence in sequences.values()]
    computed = hidden_states(weights, texts, [layer])
    for (row, sequence), layers in zip(sequences.items(), computed, strict=True):
        (vector,), states, means = foreign.read(row, row + 1), layers[layer].numpy(), {}
        if linker:
            means["the linker pooled in"] = states[slice(*family.residues(len(states)))].mean(0)
            states = np.delete(states, slice(*family.linker_tokens(sequence, linker)), axis=0)
        first, stop = family.residues(len(states))
        means |= {
            _RESIDUES: states[first:stop].mean(0),
            "the end token pooled in": states[first:].mean(0),
            "the start and end tokens pooled in": states.mean(0),
        }
        apart = {
            cause: float(np.linalg.norm(vector - mean) / np.linalg.norm(mean))
            for cause, mean in means.items()
        }
        nearest, mean = min(apart, key=apart.__getitem__), means[_RESIDUES]
        distances.append(apart[_RESIDUES])
        norms = float(np.linalg.norm(vector)) * float(np.linalg.norm(mean))
        cosines.append(float(vector @ mean) / (norms or 1.0))
        # means that lie about as near to each other as the vector does to them tell nothing
        gap = float(np.linalg.norm(means[nearest] - mean) / np.linalg.norm(mean))
        if not apart[_RESIDUES] <= limit or gap > 2 * apart[nearest]:
            explained = nearest != _RESIDUES and apart[nearest] <= 10 * limit
            causes[nearest if explained else "of no known cause, such as other weights"] += 1
    if causes:
        counts = ", ".join(f"{count} {cause}" for cause, count in sorted(causes.items()))
        raise StoreError(
            f"{foreign.path}: not imported: {causes.total()} of {len(distances)} sampled rows are "
            f"not the mean over the residues of layer {layer} ({counts})\n"
            f"  relative distance to the reference: largest {max(distances):.2g}, median "
            f"{np.median(distances):.2g}, allowed {limit:g}; smallest cosine {min(cosines):.6f}",
            path=foreign.path,
            remedy="embed again instead",
        )
    return max(distances), min(cosines)


def _publish(
    adopted: Adopted,
    foreign: Foreign,
    rows: Mapping[str, int],
    length: Mapping[str, int],
    store: Store,
) -> None:
    """Publish the vectors of the keys in `rows` in parts, in the order of the rows, which are read
    once from the beginning to the end.
    """
    (name,), dtype = store.fingerprint.representations, store.fingerprint.storage_dtype
    keys, places = np.array([*rows], "S64"), np.array([*rows.values()])
    lengths = np.array([length[key] for key in rows], np.int32)
    count, dim = foreign.vectors.shape
    height = max(1, _BLOCK_BYTES // (4 * dim))
    with scratch_folder("", 2 * _BLOCK_BYTES, store.folder / "scratch") as scratch:
        for start in range(0, count, height):
            inside = slice(*np.searchsorted(places, (start, start + height)).tolist())
            block = encode(foreign.read(start, start + height)[places[inside] - start], dtype)
            # once they are rounded
            good = np.logical_and.reduce(np.isfinite(decode(block, dtype)), axis=1)
            if lost := int((~good).sum()):
                adopted.left_out["NaN, infinity or too large a number"] += lost
            if lost == len(good):
                continue
            once = np.ones(len(good) - lost, np.int32)
            part = PartRows(keys[inside][good], lengths[inside][good], once, {name: block[good]})
            origin = {"device": IMPORTED_DEVICE, "imported": foreign.path.name}
            write_part(scratch / "part.h5", part, store.fingerprint, origin)
            adopted.rows += store.publish(scratch / "part.h5").rows
