"""Spot checks: some vectors of a master, drawn at random, are computed by the reference path and
compared.
"""

import logging
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from plm_embed.accuracy import FLOOR, MULTIPLE, STORED, bound
from plm_embed.errors import delete
from plm_embed.fingerprint import SCORES, SPANS
from plm_embed.io.parquet import read_table
from plm_embed.master.campaign import Campaign
from plm_embed.master.validation_record import Spot, Validation
from plm_embed.models.registry import MODELS
from plm_embed.models.weights import read_manifest
from plm_embed.sequence_windows import spans
from plm_embed.sequences.summary import check_keys, read_again
from plm_embed.store.parts import Part

log = logging.getLogger(__name__)

SPOT_TOKENS = 2000
"""Most tokens of a piece of a sequence that is drawn: the reference holds heads x L x L numbers
several times, 2 GB at 40 heads.
"""
SPOT_MOST = 2500
"""Most tokens where letters do not tell the number of tokens, once these are counted."""
SPOT_MASKED = 10_000
"""Most tokens of all masked passes; of the shortest sequence ten times as many, of 315 residues."""
NOT_COMPARED = (
    "no pseudo-perplexity was compared with the reference: the shortest sequence is cut into "
    "windows, or takes too many masked passes"
)
SPOT_PIECES = 10
"""Most pieces of a sequence, each as long as that."""
OWN = 2
"""A factor for what the rounding of the sequence itself allows: one sequence is less than the worst
of the probes. Of 12,000 comparisons with sharp weights, the worst came to 1.99.
"""
_TRIES = 1000
"""Rows that are looked at for each that is to be drawn: some may be too long for the reference."""


def check_spots(
    validation: Validation, campaign: Campaign, master: Path, weights: Path, count: int
) -> None:
    """Compare `count` rows of a master with what the reference of the model's family computes, one
    sequence at a time.

    The bound is that of the probes of the self-test of the prepared weights. Some sequences amplify
    rounding more than these: what lies beyond it is judged by the rounding of its own sequence.
    """
    fingerprint, dtype = campaign.fingerprint, campaign.fingerprint.compute_dtype
    meaning = "Some vectors, drawn at random, agree with those of an independent program."
    with (
        validation.check("spot checks", meaning) as problem,
        Part(master, delete(master)) as part,
    ):
        rows = draw(part, campaign, count)
        if count and "pseudo_perplexity" in fingerprint.scores:
            validation.not_compared = NOT_COMPARED
        if not len(rows):
            return
        from plm_embed.inference import reference  # loads torch

        sequences = dict(_sequences(campaign, rows))
        letters = sum(map(len, sequences.values()))
        log.info("spot checks: computing %d sequences, %s letters", len(rows), f"{letters:,}")
        computed = reference.reference_vectors(
            weights, [*sequences.values()], fingerprint.of_reference,
            most_tokens=SPOT_MOST, masked_tokens=SPOT_MASKED,
        )  # fmt: skip
        roundings = read_manifest(weights).roundings
        for row, key, vectors in zip(rows.tolist(), sequences, computed, strict=True):
            if not vectors:
                log.warning("spot checks: key %s has too many tokens for the reference", key)
            for name, vector in vectors.items():
                place, only = f"row {row:,} of {name} (key {key})", np.array([row])
                values = part.column_at(name, only) if name in SCORES else part.rows(name, only)[0]
                stored = np.asarray(values, np.float64)
                if stored.shape != vector.shape:
                    problem(f"{place}: shape {stored.shape}, the reference gives {vector.shape}")
                    continue
                if name == SPANS:
                    if not np.array_equal(stored, vector):
                        problem(f"{place}: not the reference's tokens")
                    continue
                norm, product = float(np.linalg.norm(vector)) or 1.0, float((stored * vector).sum())
                distance = float(np.linalg.norm(stored - vector)) / norm
                cosine = product / (float(np.linalg.norm(stored)) * norm or 1.0)
                validation.spot_checks.append(
                    Spot(row=row, key=key, representation=name, relative_l2=distance, cosine=cosine)
                )
                if name == "pseudo_perplexity":
                    validation.not_compared = ""
                limit = bound(dtype, roundings, "mean" if name.startswith("mean_") else "tokens")
                limit += STORED[fingerprint.storage_dtype]
                if name in SCORES:  # in nats: of a pseudo-perplexity the relative distance
                    limit = bound(dtype, roundings, "score")
                    limit /= 1.0 if name == "pseudo_perplexity" else norm
                if not distance <= limit:
                    own = reference.rounding_distances(weights, sequences[key], fingerprint)
                    limit = max(limit, OWN * (MULTIPLE * own.get(name, 0.0) + FLOOR[dtype]))
                if not distance <= limit:
                    fault = f"relative distance {distance:.2g} to the reference"
                    problem(f"{place}: {fault}, more than {limit:.2g} (cosine {cosine:.6f})")


def draw(part: Part, campaign: Campaign, count: int) -> NDArray[np.int64]:
    """Draw random rows of a master (increasing), the same on every repetition; fewer when too few
    of their sequences are short enough for the reference. For a pseudo-perplexity the shortest of
    the sequences is one more.
    """
    fingerprint, vectors = campaign.fingerprint, campaign.vectors
    random = np.random.default_rng(int(fingerprint.of_reference.id, 16))
    rows = np.sort(random.choice(vectors, min(vectors, _TRIES * count), replace=False))
    lengths = part.column_at("length", rows)
    model = MODELS.get(fingerprint.model)
    most = SPOT_TOKENS * (model.family.letters_per_token if model else 1)
    short = [
        length
        for length in np.unique(lengths).tolist()
        if length <= SPOT_PIECES * most
        and max(stop - start for start, stop in spans(length, fingerprint.long_sequences)) <= most
    ]
    drawn = random.permutation(rows[np.isin(lengths, short)])[:count]
    if len(drawn) < min(count, vectors):
        log.warning("spot checks: only %d sequences are short enough for the reference", len(drawn))
    if len(drawn) and "pseudo_perplexity" in fingerprint.scores:
        drawn = np.append(drawn, rows[lengths.argmin()])
    return np.unique(drawn)


def _sequences(campaign: Campaign, rows: NDArray[np.int64]) -> Iterator[tuple[str, str]]:
    """Read keys and sequences of rows (increasing) from their buckets."""
    names, again = [*campaign.rows], read_again(campaign.sequences)
    firsts = np.array([*campaign.rows.values()])
    numbers = np.searchsorted(firsts, rows, side="right") - 1
    for number in np.unique(numbers).tolist():
        bucket = campaign.bucket(names[number])
        keys = pa.array(bucket.keys[rows[numbers == number] - firsts[number]].astype(str))
        path = campaign.sequences / "buckets" / f"{bucket.name}.parquet"
        table = read_table(path, ["key", "sequence"], again)
        table = table.filter(pc.is_in(table["key"], keys))
        check_keys(path, table)
        yield from zip(table["key"].to_pylist(), table["sequence"].to_pylist(), strict=True)
