"""What the reference path says of some sequences of a campaign: drawn and computed, for `validate`
to compare with the master.
"""

import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from plm_embed.fingerprint import Fingerprint
from plm_embed.io.parquet import read_table, record_batches
from plm_embed.keys import SPACE
from plm_embed.models.registry import MODELS
from plm_embed.sequence_windows import spans
from plm_embed.sequences.summary import (
    bucket_names,
    check_keys,
    read_again,
    read_summary,
    verified,
)

log = logging.getLogger(__name__)
Vectors = dict[str, NDArray[np.float32]]
Reference = Callable[[Path, list[str], Fingerprint], list[Vectors]]

SPOT_TOKENS = 2000
"""Most tokens of a piece of a sequence that is drawn: the reference holds heads x L x L numbers
several times, 2 GB at 40 heads.
"""
SPOT_MOST = 2500
"""The same where letters do not tell the number of tokens, once these are counted."""
SPOT_PIECES = 10
"""Most pieces of a sequence, each as long as that."""
_ROWS = 1 << 10
"""Of a bucket in memory at a time."""


@dataclass(frozen=True)
class Expected:
    """The vectors of some sequences by key and representation, (D,), or (L, D) where there is a
    matrix; none for a sequence with too many tokens for the reference.
    """

    fingerprint: Fingerprint
    """That of the reference: see `Fingerprint.of_reference`."""
    vectors: dict[str, Vectors]
    again: str = ""
    """How to make the file anew that they are from."""


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
    # where some of these hold too few that are short enough, the others are looked at, too
    others = ((bucket, count) for bucket in random.permutation(len(names)).tolist())
    rows: dict[str, list[int]] = defaultdict(list)
    missing = count
    for bucket, share in chain(sorted(shares.items()), others):
        if not missing:
            break
        name = names[bucket]
        short = np.setdiff1d(_short_rows(_bucket(sequences, name), fingerprint), rows[name])
        found = random.permutation(short)[: min(share, missing)].tolist()
        rows[name] += found
        missing -= len(found)
    drawn = count - missing
    if drawn < min(count, read_summary(sequences).unique):
        log.warning("spot checks: only %d sequences are short enough for the reference", drawn)
    return {
        key: sequence
        for name in sorted(rows)
        for key, sequence in _sequences(sequences, name, sorted(rows[name]))
    }


def sequence_of(sequences: Path, key: str) -> str:
    """Return the sequence of a key that a bucket holds."""
    names = bucket_names(sequences)
    path = _bucket(sequences, names[int(key[:16], 16) * len(names) // SPACE])
    verified(sequences, f"buckets/{path.name}")
    table = pq.read_table(path, columns=["sequence"], filters=[("key", "=", key)])
    (sequence,) = table["sequence"].to_pylist()
    return str(sequence)


def _bucket(sequences: Path, name: str) -> Path:
    return sequences / "buckets" / f"{name}.parquet"


def _short_rows(bucket: Path, fingerprint: Fingerprint) -> NDArray[np.int64]:
    lengths = read_table(bucket, ["length"], read_again(bucket.parent.parent))["length"].to_numpy()
    each = [length for length in np.unique(lengths).tolist() if _short(length, fingerprint)]
    return np.flatnonzero(np.isin(lengths, each))


def _sequences(sequences: Path, name: str, rows: Sequence[int]) -> Iterator[tuple[str, str]]:
    """Keys and sequences of rows of a bucket, of which few are in memory at a time."""
    if not rows:
        return
    path, first = _bucket(sequences, name), 0
    verified(sequences, f"buckets/{path.name}")
    for batch in record_batches(path, ["key", "sequence"], _ROWS, read_again(sequences)):
        here = [row - first for row in rows if first <= row < first + batch.num_rows]
        found = pa.Table.from_batches([batch.take(pa.array(here, pa.int64()))])
        check_keys(path, found)
        yield from zip(found["key"].to_pylist(), found["sequence"].to_pylist(), strict=True)
        first += batch.num_rows


def _short(length: int, fingerprint: Fingerprint) -> bool:
    """Whether the reference takes a sequence of `length` residues, of which there is a vector."""
    model, long = MODELS.get(fingerprint.model), fingerprint.long_sequences
    most = SPOT_TOKENS * (model.family.letters_per_token if model else 1)
    pieces = spans(length, long)
    longest = max((stop - start for start, stop in pieces), default=most + 1)
    return longest <= most and length <= SPOT_PIECES * most
