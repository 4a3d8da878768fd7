"""Amount that a model computes here, from the speed that `plan` estimates."""

from collections import Counter
from dataclasses import dataclass

import numpy as np

from plm_embed.errors import ConfigError
from plm_embed.inference.settings import Settings
from plm_embed.models.registry import Model
from plm_embed.planning import costs

SECONDS = 15.0
"""Length of a job's computing."""
LEAST = {"cpu": 4096, "cuda": 32768}
"""Tokens of a job: on a GPU a batch."""
BESIDES = 7 * 16384
"""Rows of the self-test and of the places of a batch."""
RESIDUES = "LAGVSERTIDPKQNFYMHWC"


@dataclass(frozen=True)
class Paper:
    """Tokens per second of a model in `plan`, 0 where nothing is known, and how many its job
    computes.
    """

    planned: float
    tokens: int


def on_paper(model: Model, gpu: str, device: str) -> Paper:
    """By the GPU's name; of sequences as `draw` makes them."""
    few = Counter(map(len, draw(model, 10000)))
    todo, label = costs.work(model, few, Settings()), costs.device_label(gpu)
    try:
        planned = costs.estimated(label, model, todo, "auto").tokens_per_second
    except ConfigError:
        return Paper(0.0, LEAST[device])
    return Paper(planned, max(LEAST[device], round(SECONDS * planned)))


def seconds_of(model: Model, paper: Paper) -> float:
    """About how long a model takes, its weights included, which are made, hashed and loaded; more
    than there is where nothing is known.
    """
    if not paper.planned:
        return float("inf")
    return 40 + 25 * model.parameters / 1e9 + (paper.tokens + BESIDES) / paper.planned


def draw(model: Model, tokens: float, mean: float = 500, spread: float = 0.3) -> list[str]:
    """Random sequences of so many tokens, and up to one more, with log-normal lengths."""
    letters = "ACGT" if model.family.alphabet.name == "dna" else RESIDUES
    mean *= model.family.letters_per_token
    random = np.random.default_rng(5)
    sequences: list[str] = []
    while tokens > 0:
        length = int(np.clip(random.lognormal(np.log(mean) - spread**2 / 2, spread), 20, 2 * mean))
        sequences.append("".join(random.choice(list(letters), length)))
        tokens -= model.family.tokens(length)
    return sequences
