"""Fingerprint: everything that a vector depends on. A store belongs to one fingerprint; vectors of
two never mix.
"""

import hashlib
import json
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, get_args

import msgspec

Pooling = Literal[
    "mean", "mean_special", "bos", "max", "mean_chain1", "mean_chain2", "per_residue", "per_token"
]
MATRICES = frozenset[Pooling]({"per_residue", "per_token"})
"""Poolings that keep a matrix of each sequence, not a vector."""
BY_CHAIN = frozenset[Pooling]({"mean_chain1", "mean_chain2"})
"""Poolings of pairs of chains alone."""
ComputeDtype = Literal["float32", "tfloat32", "bfloat16", "float16", "int8"]
"""tfloat32: float32 whose linear layers read 10 bits of each mantissa, on a GPU's tensor cores
(NVIDIA's TF32). int8: float32 whose linear layers multiply 8-bit integers, on CPUs.
"""
StorageDtype = Literal["float16", "float32", "bfloat16"]
LongPolicy = Literal["whole", "window", "crop", "skip"]
Strand = Literal["as_given", "canonical"]
"""Strand of DNA; canonical: of a sequence and its reverse complement the alphabetically first one.
"""
AlphabetName = Literal["protein", "protein_pair", "dna", "3di", "protein_3di"]
"""Alphabet of the sequences that a model reads."""
Score = Literal["log_likelihood", "entropy", "pseudo_perplexity"]
"""By the head of the language model. Probabilities are those over all tokens of the model; a
pseudo-perplexity takes a pass for each residue.
"""
SCORES: tuple[Score, ...] = get_args(Score)
SCORE_DEFINITIONS: dict[Score, str] = {
    "log_likelihood": "mean log-probability (natural) of the sequence's own residues, in one pass "
    "without masks",
    "entropy": "mean entropy (nats) of the distributions that a pass without masks predicts",
    "pseudo_perplexity": "exp(-mean log-probability of each residue where it alone is masked)",
}

POOLING_DEFINITIONS: dict[Pooling, str] = {
    "mean": "arithmetic mean over the sequence's own tokens; special tokens and padding are left "
    "out",
    "mean_special": "arithmetic mean over all tokens, special ones too; padding is left out",
    "bos": "representation of the first token, which is special and stands for the sequence",
    "max": "element-wise maximum over the sequence's own tokens; special tokens and padding are "
    "left out",
    "mean_chain1": "arithmetic mean over the residues of the first chain of a pair",
    "mean_chain2": "arithmetic mean over the residues of the second chain of a pair",
    "per_residue": "one row per residue; special tokens and padding are left out",
    "per_token": "one row per token of several letters, and which these are; special tokens and "
    "padding are left out",
}
SPANS = "per_token_spans"
"""The dataset beside per-token ones that says which letters each token stands for, as
`sequence_windows.stored_spans` has it.
"""
TOKEN_SCORES = "per_residue_scores"
"""The log-probability of each residue and the entropy at its place, (L, 2), of which scores are
means; nothing stores it.
"""

REFERENCE = "reference"
"""Engine of the reference path."""
IMPORTED = "imported"
"""The engine in stores of vectors that earlier versions imported."""
IMPORTED_DEVICE = "unknown (imported)"
"""Entry among the devices for that of another program."""


@dataclass(frozen=True)
class LongSequences:
    """Policy for sequences of more than `max_residues` residues (0: no limit).

    whole: embedded in one piece; window: windows of `max_residues` that share `overlap` residues,
    combined as `plm_embed.sequence_windows` says; crop: the first `max_residues`; skip: no vector.
    """

    policy: LongPolicy = "whole"
    max_residues: int = 0
    overlap: int = 0


@dataclass(frozen=True)
class Fingerprint:
    """Everything that decides a vector's numbers.

    The residue policy is not here: a vector is named by the hash of its normalized sequence, so
    what the policy did to a record is already part of the key. But whoever looks a sequence up has
    to know which strand names it.
    """

    model: str
    weights_sha256: str
    layers: tuple[int, ...]
    pooling: tuple[Pooling, ...]
    long_sequences: LongSequences
    compute_dtype: ComputeDtype
    storage_dtype: StorageDtype
    engine: str
    """Version of the arithmetic and label of the attention kernel, of the model's family."""
    strand: Strand = "as_given"
    scores: tuple[Score, ...] = ()
    """Scores that are stored beside the vectors, whose bits are the same without them."""
    head_sha256: str = ""
    """SHA-256 of the head of the language model, where there are scores."""
    linker: str = ""
    """Letters that the model reads between the two chains of a pair, of which no vector has a part;
    empty where sequences are single chains.
    """

    @property
    def batch_invariant(self) -> bool:
        """Return whether a vector's bits are promised not to depend on its batch: with all kernels
        but torch's plain one, and not for vectors of another program.
        """
        return self.engine != IMPORTED and not self.engine.endswith("-math")

    @property
    def of_reference(self) -> "Fingerprint":
        """Return the fingerprint of the same vectors as the reference path computes them, in
        float32.
        """
        return replace(self, compute_dtype="float32", storage_dtype="float32", engine=REFERENCE)

    @property
    def id(self) -> str:
        """16 hexadecimal digits that name a store folder."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()[:16]

    def to_json(self) -> str:
        """Return every field as JSON, but for those that are newer than ids, at their defaults."""
        newer = {"strand": "as_given", "scores": (), "head_sha256": "", "linker": ""}
        plain = {name: value for name, value in asdict(self).items() if newer.get(name) != value}
        return json.dumps(plain, sort_keys=True)

    @property
    def stated(self) -> dict[str, Any]:
        """Every field as JSON has it, also those that `to_json` leaves out at their defaults."""
        fields: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return fields

    @classmethod
    def from_json(cls, text: str) -> "Fingerprint":
        """Return what `to_json` wrote. ValueError when it is not that."""
        return msgspec.json.decode(text, type=cls)

    def differences(self, other: "Fingerprint") -> list[str]:
        """Return a line per field that differs: 'compute_dtype: float32 here, bfloat16 there'."""
        pairs = zip(asdict(self).items(), asdict(other).values(), strict=True)
        return [
            f"{name}: {ours} here, {theirs} there"
            for (name, ours), theirs in pairs
            if ours != theirs
        ]

    @property
    def representations(self) -> tuple[str, ...]:
        """Names of datasets, layer by layer within each pooling, in the order asked for; last the
        spans of tokens, where there are rows per token.
        """
        return tuple(
            representation(pooling, layer) for pooling in self.pooling for layer in self.layers
        ) + ((SPANS,) if "per_token" in self.pooling else ())


def storage_bytes(dtype: StorageDtype) -> int:
    """Bytes of a number of a storage dtype."""
    return 4 if dtype == "float32" else 2


def representation(pooling: Pooling, layer: int) -> str:
    """The name of a dataset: mean_l33."""
    return f"{pooling}_l{layer}"


def pooling_and_layer(name: str) -> tuple[str, int]:
    """Return the pooling and the layer that `representation` made a name from."""
    pooling, _, layer = name.rpartition("_l")
    return pooling, int(layer)


def has_matrix(name: str) -> bool:
    """Return whether a representation has a matrix per sequence, a row per residue or token, rather
    than a vector.
    """
    return name.startswith(("per_residue_", "per_token_"))


def columns(name: str, dim: int) -> int:
    """Numbers in a row of a representation, of a model of `dim` dimensions."""
    return 2 if name == SPANS else dim


def master_name(family: str) -> str:
    """The name of a master of a family of models and of its index, without .h5 or .parquet."""
    return f"master_{family}_embeddings"
