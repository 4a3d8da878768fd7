"""Records on their way through memory, as columns of Arrow: as they are read, and normalized."""

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from plm_embed.sequences.alphabet import ALPHABETS, ResiduePolicy
from plm_embed.sequences.normalize import CODES, LEAST_CODES, Skipped, normalize, normalize_pair

BLOCK = 1 << 22
"""Bytes of a file, decompressed, that are parsed at a time."""
MOST_RECORDS = 1 << 16
"""Records of a batch; a record costs some Python objects for a while."""
LARGEST_RECORD = 1 << 24
"""Bytes of a FASTA record, characters of a table row: more is not taken into memory. No protein has
a hundredth; the chromosome of a bacterium fits, that of an animal does not.
"""

_BIG_ENDIAN = np.array([1 << 16, 1 << 8, 1])  # makes a number of three letters
_CODE_NUMBERS = np.array([[*code.encode()] for code in CODES]) @ _BIG_ENDIAN

Faults = dict[int, tuple[str, str | None]]
"""Reasons, by place in a batch, why a record cannot be used: a word to group by, and the
particulars.
"""


@dataclass(frozen=True)
class Batch:
    """Consecutive records of one file, numbered from `first`.

    Headers are the line after '>' without trailing blanks, or the id cell; residues are as in the
    file, white space included but for the line ends of FASTA.
    """

    first: int
    ids: pa.StringArray
    headers: pa.StringArray
    residues: pa.StringArray
    columns: tuple[pa.StringArray, ...] = ()
    """One per column to keep, or none at all for FASTA."""
    faults: Faults = field(default_factory=dict)
    lines: pa.ListArray | None = None
    """The lines of residues of each record of FASTA, as arrays of text."""

    def __len__(self) -> int:
        return len(self.ids)


def strings(
    text: bytes | memoryview | NDArray[np.uint8], ends: NDArray[np.integer]
) -> pa.StringArray:
    """Cut UTF-8 `text` at `ends` (n,) without copying it."""
    offsets = np.zeros(len(ends) + 1, np.int32)
    offsets[1:] = ends
    return pa.StringArray.from_buffers(len(ends), pa.py_buffer(offsets), pa.py_buffer(text))


def text_and_ends(column: pa.StringArray) -> tuple[memoryview, NDArray[np.int64]]:
    """Return what `strings` makes a column of. A null must hold no bytes, and becomes an empty
    text.
    """
    if not len(column):
        return memoryview(b""), np.empty(0, np.int64)
    _, offsets, text = column.buffers()
    ends = np.frombuffer(offsets, np.int32, len(column) + 1, 4 * column.offset).astype(np.int64)
    return memoryview(text or b"").cast("B")[ends[0] : ends[-1]], ends[1:] - ends[0]


class NormalizedBatch(NamedTuple):
    """The sequences of the accepted records of a batch; and of all records the events, and the
    reasons and details of those that are skipped, else null.
    """

    sequences: pa.StringArray
    events: pa.StringArray
    reasons: pa.StringArray
    details: pa.StringArray


def normalize_batch(batch: Batch, policy: ResiduePolicy) -> NormalizedBatch:
    """Normalize each record of a batch, by `normalize` where there is anything to do, or of pairs
    of chains by `normalize_pair`.
    """
    size, record = len(batch), normalize_pair if ALPHABETS[policy.alphabet].pairs else normalize
    odd = _odd(batch, policy)
    if not len(odd):
        none = pa.nulls(size, pa.string())
        return NormalizedBatch(batch.residues, pa.repeat(pa.scalar(""), size), none, none)
    events = [""] * size
    reasons: list[str | None] = [None] * size
    details: list[str | None] = [None] * size
    changed: list[str] = []
    places = np.arange(size)  # of the sequences among those of the file and then the changed ones
    for place in odd.tolist():
        fault = batch.faults.get(place)
        outcome = Skipped(*fault) if fault else record(batch.residues[place].as_py(), policy)
        if isinstance(outcome, Skipped):
            reasons[place], details[place] = outcome
            places[place] = -1
        else:
            places[place] = size + len(changed)
            changed.append(outcome.sequence)
            events[place] = ";".join(f"{name}={many}" for name, many in outcome.events.items())
    both = pa.concat_arrays([batch.residues, pa.array(changed, pa.string())])
    columns = [pa.array(values, pa.string()) for values in (events, reasons, details)]
    return NormalizedBatch(both.take(pa.array(places[places >= 0])), *columns)


def _odd(batch: Batch, policy: ResiduePolicy) -> NDArray[np.int64]:
    """Return the places of records with a fault, or to which `normalize` may have something to
    do.
    """
    alphabet = ALPHABETS[policy.alphabet]
    if policy.strand == "canonical" or alphabet.states or alphabet.pairs:
        return np.arange(len(batch))
    text, ends = text_and_ends(batch.residues)
    codes, starts = np.frombuffer(text, np.uint8), np.concatenate([[0], ends[:-1]])
    lengths = ends - starts
    odd = lengths == 0
    # bounds and the few codes between them that are no letters: faster than a table of all codes
    low, *letters, high = sorted(alphabet.letters.encode())
    no_letters = set(range(low, high)).difference([low, *letters])
    within = not len(codes) or (codes.min() >= low and codes.max() <= high)
    if not within or any((codes == code).any() for code in no_letters):
        unknown = (codes < low) | (codes > high) | np.isin(codes, [*no_letters])
        odd[~odd] = np.logical_or.reduceat(unknown, starts[~odd])
    odd[list(batch.faults)] = True
    if policy.alphabet == "protein":
        places = np.flatnonzero((lengths >= 3 * LEAST_CODES) & (lengths % 3 == 0))
        for offset in range(0, 3 * LEAST_CODES, 3):
            triplets = codes[(starts[places] + offset)[:, None] + np.arange(3)]
            places = places[np.isin(triplets @ _BIG_ENDIAN, _CODE_NUMBERS)]
        odd[places] = True
    return np.flatnonzero(odd)
