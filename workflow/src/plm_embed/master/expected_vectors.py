"""What the reference path says of some sequences of a campaign: drawn, computed, and kept in a file
(reference.npz) until `validate` compares them with the master.
"""

import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from plm_embed.errors import StoreError
from plm_embed.fingerprint import Fingerprint
from plm_embed.io.files import atomic_path
from plm_embed.models.registry import MODELS
from plm_embed.sequence_windows import spans
from plm_embed.sequences.summary import bucket_names, bucket_table

log = logging.getLogger(__name__)
Vectors = dict[str, NDArray[np.float32]]
Reference = Callable[[Path, list[str], Fingerprint], list[Vectors]]

SPOT_TOKENS = 2000
"""Most tokens of a piece of a sequence that is drawn: the reference holds heads x L x L numbers
several times, 2 GB at 40 heads.
"""
SPOT_MOST = 2500
"""And where letters do not tell their number, the most after they are counted."""
SPOT_PIECES = 10
"""Most pieces of a sequence, each as long as that."""
MORE_BUCKETS = 64
"""Looked at where those that were drawn hold too few sequences that are short enough."""
AGAIN = "`snakemake --forcerun reference` makes it again"
_ABOUT = "fingerprint"
_NOT_READABLE = (OSError, EOFError, ValueError, KeyError, BadZipFile)


@dataclass(frozen=True)
class Expected:
    """The vectors of some sequences by key and representation, (D,), or (L, D) where there is a
    matrix; none for a sequence with too many tokens for the reference.
    """

    fingerprint: Fingerprint
    """That of the reference: see `Fingerprint.of_reference`."""
    vectors: dict[str, Vectors]


def expect(
    sequences: Path,
    weights: Path,
    fingerprint: Fingerprint,
    count: int,
    reference: Reference | None = None,
) -> Expected:
    """Compute `count` vectors by `reference` (default: that of the model's family, one sequence at
    a time).

    sequences: the folder of deduplicate. Fewer when there are not as many short ones.
    """
    about = fingerprint.of_reference
    drawn = draw(sequences, count, about)
    compute = reference or _reference()
    found = compute(weights, list(drawn.values()), about) if drawn else []
    return Expected(about, dict(zip(drawn, found, strict=True)))


def _reference() -> Reference:
    from plm_embed.inference.reference import reference_vectors

    return partial(reference_vectors, most_tokens=SPOT_MOST)


def draw(sequences: Path, count: int, fingerprint: Fingerprint) -> dict[str, str]:
    """Random sequences by key, the same on every repetition; buckets hold about as many each."""
    random = np.random.default_rng(int(fingerprint.id, 16))
    names = bucket_names(sequences)
    shares = Counter(random.integers(len(names), size=count).tolist())
    others = islice(random.permutation(len(names)).tolist(), MORE_BUCKETS)
    drawn: dict[str, str] = {}
    for bucket, share in chain(sorted(shares.items()), ((other, count) for other in others)):
        wanted = min(share, count - len(drawn))
        if not wanted:
            continue
        path = sequences / "buckets" / f"{names[bucket]}.parquet"
        table = bucket_table(path, ["key", "sequence"])
        keys, letters = table["key"], table["sequence"]
        short = (
            row
            for row in random.permutation(table.num_rows).tolist()
            if keys[row].as_py() not in drawn and _short(len(letters[row].as_py()), fingerprint)
        )
        drawn |= {keys[row].as_py(): letters[row].as_py() for row in islice(short, wanted)}
    if len(drawn) < count:
        log.warning("spot checks: only %d sequences are short enough for the reference", len(drawn))
    return drawn


def _short(length: int, fingerprint: Fingerprint) -> bool:
    """Whether the reference takes a sequence of `length` residues, of which there is a vector."""
    model, long = MODELS.get(fingerprint.model), fingerprint.long_sequences
    most = SPOT_TOKENS * (model.family.letters_per_token if model else 1)
    pieces = spans(length, long)
    longest = max((stop - start for start, stop in pieces), default=most + 1)
    return longest <= most and length <= SPOT_PIECES * most


def write_expected(path: Path, expected: Expected) -> None:
    """Write the file: an array for each vector, {key}/{representation}; {key}/ for none."""
    arrays: dict[str, Any] = {
        f"{key}/{name}": vector
        for key, vectors in expected.vectors.items()
        for name, vector in (vectors or {"": np.empty(0, np.float32)}).items()
    }
    arrays[_ABOUT] = np.frombuffer(expected.fingerprint.to_json().encode(), np.uint8)
    with atomic_path(path) as temporary, temporary.open("wb") as handle:
        np.savez(handle, **arrays)


def read_expected(path: Path) -> Expected:
    """Read the file; StoreError when it is damaged, which its checksums show."""
    if not path.is_file():
        raise StoreError(f"{path}: there is no such file", remedy=AGAIN, path=path)
    try:
        with np.load(path, allow_pickle=False) as stored:
            arrays = dict(stored)
        fingerprint = Fingerprint.from_json(arrays.pop(_ABOUT).tobytes().decode())
    except _NOT_READABLE as error:
        raise StoreError(f"{path}: damaged ({error})", remedy=AGAIN, path=path) from error
    vectors: dict[str, Vectors] = {}
    for place, array in arrays.items():
        key, _, name = place.partition("/")
        vectors.setdefault(key, {}).update({name: array} if name else {})
    return Expected(fingerprint, vectors)
