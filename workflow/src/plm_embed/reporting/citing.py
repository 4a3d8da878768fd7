"""Facts for a paper: a paragraph of methods, and works to cite."""

import re

from plm_embed.fingerprint import POOLING_DEFINITIONS, SCORE_DEFINITIONS, master_name
from plm_embed.models.registry import MODELS
from plm_embed.reporting.facts import Facts
from plm_embed.wording import count

_KINDS = {"dna": "DNA", "3di": "3Di", "protein_3di": "protein (residues and 3Di states)"}


def methods(facts: Facts) -> str:
    """Return a paragraph for a paper."""
    fingerprint, summary, versions = facts.fingerprint, facts.summary, facts.versions
    if not summary or not fingerprint:
        return "There will be a paragraph here once something is computed."
    kind = _KINDS.get(summary.policy.alphabet if summary.policy else "", "protein")
    number = f"{count(summary.accepted, f'{kind} sequence')} ({summary.unique:,} distinct"
    if skipped := sum(summary.skipped.values()):
        number += f"; {skipped:,} of {count(summary.records, 'record')} skipped"
    layers = "layer" if len(fingerprint.layers) == 1 else "layers"
    named = {"PyTorch": "torch", "Python": "python"}
    used = " and ".join(f"{name} {versions[key]}" for name, key in named.items() if key in versions)
    commit = f" (commit {facts.commit[:12]})" if facts.commit else ""
    devices = ", ".join(facts.metadata.get("devices") or ())
    sentences = [
        f"Embeddings of {number}) were computed with {_weights(facts)}, {layers} "
        f"{', '.join(map(str, fingerprint.layers))}, in {fingerprint.compute_dtype}, and stored as "
        f"{fingerprint.storage_dtype}, by plm-embed {versions['plm-embed']}{commit}"
        f"{f' with {used}' if used else ''}{f' on {devices}' if devices else ''}."
    ]
    if facts.caveat:
        sentences.append(f"The weights are {facts.caveat}.")
    pooling = [f"{name}, {POOLING_DEFINITIONS[name]}" for name in fingerprint.pooling]
    long = fingerprint.long_sequences
    most = f"{long.max_residues:,} residues"
    policies = {
        "whole": "Sequences of any length were embedded in one piece.",
        "window": f"Sequences of more than {most} were embedded in windows that share "
        f"{long.overlap:,} residues.",
        "crop": f"Only the first {most} of longer sequences were embedded.",
        "skip": f"Sequences of more than {most} were left out.",
    }
    sentences += [f"Pooling: {'; '.join(pooling)}.", policies[long.policy]]
    if scores := [f"{name}, {SCORE_DEFINITIONS[name]}" for name in fingerprint.scores]:
        sentences.append(f"Scores of the model for each sequence: {'; '.join(scores)}.")
    if fingerprint.strand == "canonical":
        sentences.append("A sequence and its reverse complement were treated as one.")
    if fingerprint.linker:
        sentences.append(
            "Each sequence is a pair of chains, which the model read with the linker "
            f"{fingerprint.linker} between them; no vector has a part of the linker."
        )
    if facts.status == "passed" and facts.validation:
        spots = count(facts.validation.recomputed, "recomputed sequence")
        sentences.append(f"The result was validated in full, also by {spots} ({facts.reference}).")
    return " ".join(sentences)


def citation(facts: Facts) -> str:
    """Return the works to cite: this software and the model, or the architecture of weights that
    are not proven to be published.
    """
    lines = [f"plm-embed {facts.versions['plm-embed']}."]
    if facts.caveat:
        lines.append(f"The weights are {facts.caveat}. For the architecture alone:")
    missing = f"The paper of {facts.model}, which this version does not know."
    return "\n".join([*lines, *(_papers(facts) or [missing])])


def _weights(facts: Facts) -> str:
    """Name the weights: the published model's only where that is proven."""
    digest = f"SHA-256 {facts.fingerprint.weights_sha256[:12]}" if facts.fingerprint else ""
    papers = "; ".join(map(_short, _papers(facts)))
    papers = f" ({papers})" if papers else ""
    if not facts.caveat:
        return f"{facts.model}{papers}, the published weights of {digest}"
    if facts.model not in MODELS:
        model = facts.weights and facts.weights.as_model
        family = f", a model of the family {model.family.name}" if model else ""
        return f"{facts.model} ({digest}){family}{papers}"
    return f"weights of {digest} in the architecture of {facts.model}{papers}"


def _papers(facts: Facts) -> tuple[str, ...]:
    """Return the papers of the model, or those of another of its family if it is the user's own."""
    name = facts.master.stem if facts.master else ""
    family = (model for model in MODELS.values() if master_name(model.family.name) == name)
    model = MODELS.get(facts.model) or next(family, None)
    return model.papers if model else ()


def _short(paper: str) -> str:
    """Return a short reference: `Lin et al., 2023`."""
    authors, several, _ = paper.partition(" et al. ")
    name = f"{authors.rpartition(' ')[0]} et al." if several else authors.partition(". ")[0]
    year = re.search(r"\((\d{4})\)", paper)
    return f"{name}, {year[1]}" if year else name
