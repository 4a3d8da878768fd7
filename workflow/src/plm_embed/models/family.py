"""Differences between families of models, their tokens among them, as data. The modules in
`models/families` state them; nothing else knows a family by name.

Every model is embedding -> N x (attention, feed-forward), each with a norm and a residual sum. What
differs between families is a field below; what differs within one (layers, widths) is the model's.
No torch here: planning and reports count tokens.
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from plm_embed.fingerprint import BY_CHAIN, Fingerprint, LongSequences, master_name
from plm_embed.sequence_windows import Span, edges, spans, stored_spans
from plm_embed.sequences.residues import PROTEIN, SEPARATOR, Alphabet

if TYPE_CHECKING:
    from torch import Tensor

    from plm_embed.models.registry import Model

Ids = NDArray[np.uint16]
_NONE = np.iinfo(np.uint16).max
Tokenize = Callable[[str], Ids]
"""Token ids of a normalized sequence, special tokens included: (prefix + n + suffix,)."""

TENSOR = "tokenizer"
"""The name of a tokenizer file's bytes among the tensors of a weights folder."""


class Tokens(NamedTuple):
    """The tokenizer of some weights, and the number of letters of each token by its id, which means
    nothing for special tokens.
    """

    tokenize: Tokenize
    letters: NDArray[np.uint8]
    sha256: str = ""
    """SHA-256 of the part of a file that decides the tokens, by `digest`: copies in circulation
    differ in other parts, such as the length at which they cut sequences off.
    """


def digest(*parts: object) -> str:
    """Return the SHA-256 of lists, objects and words, as JSON."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True)
class Vocabulary:
    """One token per letter, or per residue and the state behind it. `letters` have the ids from
    `first` on; with `states` the pairs of the first letter and each of them, then those of the
    next. `prefix` and `suffix` are ids of special tokens.

    `unknown` is the id of the letters in `unknown_letters`; `read_as` has the letters that the
    authors have the model read as another one.
    """

    file: ClassVar[str] = ""
    """No file decides the tokens."""
    letters: str
    first: int
    prefix: tuple[int, ...] = ()
    suffix: tuple[int, ...] = ()
    read_as: Mapping[str, str] = field(default_factory=dict)
    unknown_letters: str = ""
    unknown: int = 0
    states: str = ""

    def within(self, _: Mapping[str, "Tensor"]) -> Tokens:
        """Return the tokenizer, which no file decides. A letter without an id is a bug of who
        calls it: ValueError.
        """
        states = [*self.states.encode()] or [0]
        table = np.full((256, 256 if self.states else 1), _NONE, np.uint16)  # letters by states
        for letter in self.letters:
            number = self.letters.index(self.read_as.get(letter, letter))
            table[ord(letter), states] = self.first + len(states) * number + np.arange(len(states))
        for letter in self.unknown_letters:
            table[ord(letter), states] = self.unknown

        def tokenize(sequence: str) -> Ids:
            letters = np.frombuffer(sequence.encode("ascii"), np.uint8)
            ids = table[(letters[::2], letters[1::2]) if self.states else (letters, 0)]
            if (ids == _NONE).any():
                raise ValueError(f"not a normalized sequence: {sequence[:60]!r}")
            parts = self.prefix, ids, self.suffix
            return np.concatenate(parts, dtype=np.uint16, casting="unsafe")

        return Tokens(tokenize, np.ones(256, np.uint8))


@dataclass(frozen=True)
class TokenizerFile:
    """A file that lies beside the published weights. It is kept among the tensors, as bytes: so it
    goes wherever the weights go, and is part of their SHA-256.
    """

    file: str
    """Its name."""
    read: Callable[[bytes], Tokens]
    """The tokenizer that the content describes. ValueError, with what is wrong, if it is none."""
    prefix: tuple[str, ...]
    suffix: tuple[str, ...] = ()
    """Special tokens before and behind those of the sequence."""

    def within(self, tensors: Mapping[str, "Tensor"]) -> Tokens:
        """Return the tokenizer of the file among the tensors of a weights folder."""
        return self.read(tensors[TENSOR].numpy().tobytes())


Activation = Literal["gelu", "gelu_tanh", "relu", "silu"]
"""gelu: the exact one, by erf. gelu_tanh: its approximation. silu: x times its logistic."""
ReferenceStates = Callable[
    ["Model", Mapping[str, "Tensor"], Sequence[str], Sequence[int]],
    list[dict[int, "Tensor"]],
]
"""Model, tensors, sequences and layers to the states of each sequence by layer."""


@dataclass(frozen=True)
class Rotary:
    """Rotary angles of base 10,000 on q and k: the halves of each head against each other, or
    neighbors, numbers 2 i and 2 i + 1.
    """

    neighbors: bool = False


@dataclass(frozen=True)
class Learned:
    """A table of `rows` learned positions, added to the embedding; the first token has row
    `offset`.
    """

    rows: int
    offset: int = 0


@dataclass(frozen=True)
class T5RelativeBias:
    """T5's relative positions: a learned bias per head and bucket of distance, shared by all
    layers.

    Half of the `count` buckets are for keys behind the query. In each half the first half are exact
    distances, the others grow by a constant factor up to `farthest`, and the last holds the rest.
    """

    count: int
    farthest: int = 128


@dataclass(frozen=True)
class ALiBi:
    """ALiBi without direction: the bias is minus a fixed slope per head times the distance."""


@dataclass(frozen=True)
class Encoder:
    """The arithmetic of a family."""

    rows: int
    """Rows of the embedding table."""
    positions: Rotary | Learned | T5RelativeBias | ALiBi
    token_types: bool = False
    """Add row 0 of a table of two token types to the embedding."""
    token_dropout: bool | None = False
    """Multiply the embedding by 1 - 0.15 * 0.8, as ESM-2 does, whose training masked 15 % of the
    tokens and zeroed 80 % of these; with None the checkpoint's configuration decides.
    """
    embedding_norm: Literal["never", "always", "optional"] = "never"
    """A norm after the embedding; with `optional` the checkpoint decides."""
    order: Literal["pre", "post"] = "pre"
    """pre: x + f(norm(x)), and a norm after the last layer. post: norm(x + f(x)), and none."""
    final_norm: bool = True
    """A norm after the last layer, in the order `pre`."""
    norm: Literal["layer", "rms"] = "layer"
    final_norm_bias: bool = True
    """A bias of the norm after the last layer, as those of the layers have; RMS norms have none."""
    epsilon: float = 1e-5
    attention_bias: bool = True
    """Biases of q, k, v and the output projection."""
    query_key_norm: bool = False
    """Norms of the same kind, without bias, of q and of k over all heads together, before the
    rotation.
    """
    scaled_scores: bool = True
    """Divide scores by the root of a head's width."""
    activation: Activation = "gelu"
    gated: bool = False
    """Multiply the activated half by another projection."""
    up_bias: bool = True
    """Biases of the projections into the feed-forward."""
    down_bias: bool = True
    residual_layers: int | None = None
    """A number divides both branches by sqrt(layers / residual_layers)."""
    fp32_down_proj: bool = False
    """Keep the feed-forward's last matrix in fp32 when the others are in float16, which could not
    hold its products.
    """


@dataclass(frozen=True)
class Head:
    """The head of a masked language model: from the last layer's output x (T, D) to the
    log-probabilities of all tokens, log_softmax(norm(gelu(dense(x))) out^T + bias), in the
    checkpoint's order of names `dense`, `layer_norm`, `out`.
    """

    mask: int
    """The id of the token <mask>."""
    dense: bool = True
    """A projection, and the exact GELU, before the norm, which is of the encoder's kind."""
    tied: bool = True
    """The weights of `out` are those of the embedding, by the authors' program."""


TASK_HEADS = ("classifier.", "classification_head.", "qa_outputs.", "regression.", "score.")
"""Beginnings of the names that a head for a task has in a fine-tuned checkpoint of any family."""
LM_HEAD = "lm_head/"
"""Beginning of the engine's names of the language model's head."""


@dataclass(frozen=True)
class Names:
    """Published names of tensors.

    modules: a published name and the engine's, both without `.weight` or `.bias`, or with a kind of
    its own. N is the number of a layer. Several names share out the rows of one tensor.
    prefixes: what a name may begin with besides. unused: beginnings of names that are no part of
    the model. head: published names of the modules of the language model's head, and `Head`'s.
    """

    modules: Mapping[str, str | tuple[str, ...]]
    prefixes: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()
    head: Mapping[str, str] = field(default_factory=dict)

    def engine_names(self, name: str) -> tuple[str, ...]:
        """Return the engine's names of a tensor: none if it is not used, its own if unknown."""
        bare = name
        for prefix in self.prefixes:
            bare = bare.removeprefix(prefix)
        # norms of checkpoints from TensorFlow, and those that transformers 5 writes
        bare = re.sub(r"\.gamma$", ".weight", re.sub(r"\.beta$", ".bias", bare))
        module, _, kind = bare.rpartition(".")
        if module in self.head:
            return (f"{LM_HEAD}{self.head[module]}.{kind}",)
        constants = ("inv_freq", "position_ids", "_extra_state")
        if name.startswith(TASK_HEADS) or bare.startswith(self.unused) or name.endswith(constants):
            return ()
        layer = re.search(r"(?<=\.)\d+(?=\.)", bare)
        if layer:
            bare = f"{bare[: layer.start()]}N{bare[layer.end() :]}"
            module = bare.rpartition(".")[0]
        engine = self.modules.get(bare) or self.modules.get(module)
        if engine is None:
            return (name,)
        suffix = "" if bare in self.modules else f".{kind}"
        return tuple(
            f"{part}{suffix}".replace(".N.", f".{layer[0]}." if layer else ".N.")
            for part in ((engine,) if isinstance(engine, str) else engine)
        )


class Reference(NamedTuple):
    """A program that shares nothing with the engine: its name, and what gives representations
    (tokens, D) of each sequence after some layers, fp32.
    """

    name: str
    states: ReferenceStates


def _formulas(
    model: "Model",
    tensors: Mapping[str, "Tensor"],
    sequences: Sequence[str],
    layers: Sequence[int],
) -> list[dict[int, "Tensor"]]:
    from plm_embed.models.reference import all_states

    return all_states(model, tensors, sequences, layers)


FORMULAS = Reference("the published formulas in float64", _formulas)


@dataclass(frozen=True, eq=False)
class Family:
    """Models of one architecture and tokenizer.

    Importing one imports no torch; its `reference` does.
    """

    name: str
    architecture: str
    """The kind of model that a checkpoint can tell. Families of one architecture differ in nothing
    but their names.
    """
    tokenizer: Vocabulary | TokenizerFile
    encoder: Encoder
    names: Names
    head: Head | None = None
    """None where the published checkpoints have none, or its tokens are not residues."""
    config: Mapping[str, object] = field(default_factory=dict)
    """Values that a checkpoint's configuration must not contradict."""
    required: tuple[str, ...] = ()
    """Keys that it must have, for tensors do not show what they say."""
    alphabet: Alphabet = PROTEIN
    max_residues: int | None = None
    """The longest sequence that the positions allow; None where there is no limit."""
    cleared_rows: tuple[int, ...] = ()
    """Rows of the embedding table that the authors' program sets to 0 when it has read them."""
    bos: bool = True
    """The first token is a <cls>, whose representation stands for the whole sequence."""
    letters_per_token: int = 1
    """Letters of a token, as a rule, where a file decides the tokens."""
    max_tokens: int | None = None
    """The most tokens that the positions allow, where letters do not tell their number."""
    reference: Reference = FORMULAS

    def contradiction(self, config: Mapping[str, object]) -> str:
        """Name a value of a checkpoint's configuration that is another one in this family,
        `model_type` before others; empty without any.
        """
        dropout = self.encoder.token_dropout
        fixed = {} if dropout is None else {"token_dropout": dropout}
        values: dict[str, object] = {**fixed, **self.config}
        for key in sorted(values, key=lambda key: key != "model_type"):
            if config.get(key, values[key]) != values[key]:
                return f"{key}: {config[key]!r}, not {values[key]!r}"
        return ""

    @property
    def token_per_letter(self) -> bool:
        """True if each letter is a token, so that lengths tell the number of tokens."""
        return not self.tokenizer.file

    def spans(self, letters: "NDArray[np.uint8]", ids: Ids) -> "NDArray[np.float32]":
        """Return the letters of a sequence's own tokens, (T, 2) as
        `sequence_windows.stored_spans`.

        letters: how many each token has; ids: with special tokens.
        """
        stop = np.cumsum(letters[ids[slice(*self.residues(len(ids)))]], dtype=int)
        return stored_spans(np.concatenate(([0], stop[:-1])), stop)

    def tokens(self, residues: int, pieces: int = 1) -> int:
        """Count the tokens of `pieces` that have so many residues together: an estimate where
        letters do not tell their number. Each piece has special ones besides its residues'.
        """
        special = len(self.tokenizer.prefix) + len(self.tokenizer.suffix)
        return -(-residues // self.letters_per_token) + pieces * special

    def passes(
        self, residues: int, policy: LongSequences, linker: str, masked: bool
    ) -> list[tuple[int, int]]:
        """Return the tokens of each piece of a sequence, and how often it goes through the model:
        once, and with `masked` again for each residue, masked in the piece in which it lies farther
        from an edge.
        """
        pieces = spans(residues, policy)
        bounds = edges(pieces) if masked and pieces else [0] * (len(pieces) + 1)
        return [
            (self.tokens(stop - start + len(linker)), 1 + high - low)
            for (start, stop), (low, high) in zip(pieces, pairwise(bounds), strict=True)
        ]

    def token_counts(
        self, lengths: NDArray[np.int32], fingerprint: Fingerprint
    ) -> NDArray[np.int64]:
        """Count the tokens of all passes of sequences of these lengths (n,)."""
        how = fingerprint.long_sequences, fingerprint.linker
        masked = "pseudo_perplexity" in fingerprint.scores
        values, places = np.unique(lengths, return_inverse=True)
        passes = (self.passes(length, *how, masked) for length in values.tolist())
        counts = [sum(tokens * times for tokens, times in pieces) for pieces in passes]
        return np.array(counts, dtype=np.int64)[places]

    def texts(self, sequence: str, cut: Sequence[Span], linker: str) -> list[str]:
        """Return the letters of the pieces of a normalized sequence; of a pair of chains, which is
        one piece, with the linker between them.
        """
        if linker:
            return [sequence.replace(SEPARATOR, linker)]
        width = self.alphabet.letters_of_residue
        return [sequence[width * start : width * stop] for start, stop in cut]

    def linker_tokens(self, pair: str, linker: str) -> tuple[int, int]:
        """Return which tokens of a pair of chains are the linker's: the first, and one past the
        last.
        """
        first = len(self.tokenizer.prefix) + pair.index(SEPARATOR)
        return first, first + len(linker)

    def residues(self, tokens: int) -> tuple[int, int]:
        """Return which of a sequence's tokens are its letters': the first, and one past the
        last.
        """
        return len(self.tokenizer.prefix), tokens - len(self.tokenizer.suffix)

    @property
    def master(self) -> str:
        """The name, in the workflow, of a master and of its index, without .h5 or .parquet."""
        return master_name(self.name)


def score_problem(family: Family, model: str, linker: str = "") -> str:
    """Say why a model has no scores, of pairs of chains if there is a linker; empty if it has."""
    if linker:
        return "embedding.scores: pairs of chains have none; leave them out, or the linker"
    if family.head:
        return ""
    return (
        f"embedding.scores: {model} gives no probabilities of residues; docs/python.md names the "
        "families that do"
    )


def pooling_problems(
    pooling: Sequence[str], family: Family, model: str, linker: str = ""
) -> Iterator[str]:
    """Say what a model cannot do of these poolings, of pairs of chains if there is a linker."""
    if linker and family.alphabet != PROTEIN:
        kind = family.alphabet.name
        yield f"embedding.linker: {model} reads {kind}; only chains of proteins can be paired"
    elif not set(linker) <= set(PROTEIN.letters):
        yield f"embedding.linker: {linker}: must be residues in capital letters, such as GGGG"
    for name in () if linker else BY_CHAIN.intersection(pooling):
        yield (
            f"embedding.pooling: {name}: sequences are single chains; name the `partner` of the "
            "inputs, or set embedding.linker"
        )
    if "bos" in pooling and not family.bos:
        yield f"embedding.pooling: bos: {model} has no <cls> token; choose mean or max"
    if "per_residue" in pooling and not family.token_per_letter:
        yield (
            f"embedding.pooling: per_residue: a token of {model} is several bases; choose "
            "per_token, which has a row for each token and says which bases it stands for"
        )
    if "per_token" in pooling and family.token_per_letter:
        yield f"embedding.pooling: per_token: a token of {model} is a residue; choose per_residue"
