"""Facts for a paper: where everything comes from, a paragraph of methods, works to cite."""

import re
from collections.abc import Iterator

from plm_embed._version import __version__
from plm_embed.fingerprint import POOLING_DEFINITIONS
from plm_embed.models.registry import MODELS
from plm_embed.reporting.facts import Facts


def provenance(facts: Facts) -> Iterator[tuple[str, str]]:
    metadata = facts.metadata
    if metadata:
        yield "workflow commit", str(metadata.get("workflow_commit", "")) or "unknown"
        yield "devices", ", ".join(metadata["devices"])
        yield "fingerprint", str(metadata["fingerprint_id"])
    if facts.fingerprint:
        yield "weights, standing", facts.caveat or "the published file, by its SHA-256"
        if facts.license:
            yield "weights, license", facts.license
        yield "engine", facts.fingerprint.engine


def checksums(facts: Facts) -> Iterator[tuple[str, str]]:
    """Files, what came in and what came out, and their SHA-256."""
    for one in facts.summary.inputs if facts.summary else ():
        yield one.path, one.sha256
    if facts.fingerprint:
        yield "the weights", facts.fingerprint.weights_sha256
    yield from facts.validation.files.items() if facts.validation else ()


def methods(facts: Facts) -> str:
    """A paragraph for a paper."""
    if not facts.summary or not facts.fingerprint:
        return "There will be a paragraph here once something is computed."
    fingerprint, summary = facts.fingerprint, facts.summary
    skipped = sum(summary.skipped.values())
    kinds: dict[str, str] = {"dna": "DNA", "3di": "3Di"}
    kind = kinds.get(summary.policy.alphabet, "protein") if summary.policy else "protein"
    were = "was" if skipped == 1 else "were"
    layers = "layer" if len(fingerprint.layers) == 1 else "layers"
    text = (
        f"Embeddings of {summary.accepted:,} {kind} sequences ({summary.unique:,} distinct"
        + (f"; {skipped:,} of {summary.records:,} records {were} skipped" if skipped else "")
        + f") were computed with {_weights(facts)}, {layers} "
        f"{', '.join(map(str, fingerprint.layers))}, in {fingerprint.compute_dtype}, and stored "
        f"as {fingerprint.storage_dtype}, by plm-embed {_version(facts)}{_circumstances(facts)}. "
    )
    text += (
        "Pooling: "
        + "; ".join(f"{name}, {POOLING_DEFINITIONS[name]}" for name in fingerprint.pooling)
        + ". "
    )
    long = fingerprint.long_sequences
    words = {
        "whole": "Sequences of any length were embedded in one piece.",
        "window": f"Sequences of more than {long.max_residues:,} residues were "
        "embedded in windows that share "
        f"{long.overlap:,} residues.",
        "crop": f"Only the first {long.max_residues:,} residues of longer sequences were embedded.",
        "skip": f"Sequences of more than {long.max_residues:,} residues were left out.",
    }
    text += words[long.policy]
    if fingerprint.strand == "canonical":
        text += " A sequence and its reverse complement were taken for one."
    if facts.validation and facts.validation.status == "passed":
        spots = len(facts.validation.spot_checks)
        text += (
            f" The result was validated in full, and {spots} vectors were "
            f"compared with the reference, {facts.reference}."
        )
    return text


def _circumstances(facts: Facts) -> str:
    """Commit, libraries and devices, as far as a master names them."""
    metadata = facts.metadata
    if not metadata:
        return ""
    commit = str(metadata.get("workflow_commit", ""))
    text = f" (commit {commit[:12]})" if commit not in ("", "unknown") else ""
    libraries = metadata["library_versions"]
    names = {"torch": "PyTorch", "python": "Python"}
    found = [f"{name} {libraries[key]}" for key, name in names.items() if key in libraries]
    text += f" with {' and '.join(found)}" if found else ""
    devices = metadata["devices"]
    return text + (f" on {', '.join(devices)}" if len(devices) else "")


def _weights(facts: Facts) -> str:
    """Name the weights: the published model's only where that is proven."""
    digest = facts.fingerprint.weights_sha256 if facts.fingerprint else ""
    papers = "".join(f"; {_short(paper)}" for paper in _papers(facts.model))
    if not facts.caveat:
        return f"{facts.model} (the published weights, SHA-256 {digest[:12]}{papers})"
    return (
        f"weights of SHA-256 {digest[:12]} in the architecture of {facts.model} "
        f"({facts.caveat}{papers})"
    )


def _papers(name: str) -> tuple[str, ...]:
    model = MODELS.get(name)
    return model.papers if model else ()


def _short(paper: str) -> str:
    """Return a short reference: `Lin et al., 2023`."""
    authors, others, _ = paper.partition(" et al. ")
    name = f"{authors.rpartition(' ')[0]} et al." if others else authors.partition(". ")[0]
    year = re.search(r"\((\d{4})\)", paper)
    return f"{name}, {year[1]}" if year else name


def _version(facts: Facts) -> str:
    """Return the version of the software that computed the vectors."""
    libraries = facts.metadata.get("library_versions", {})
    return str(libraries.get("plm-embed", __version__))


def citation(facts: Facts) -> str:
    """Return the works to cite: this software and the model, or the architecture of weights that
    are not proven to be published.
    """
    paper = (
        "\n".join(_papers(facts.model))
        or f"The paper of {facts.model}, which this version does not know."
    )
    if facts.caveat:
        paper = f"The weights are {facts.caveat}. For the architecture alone:\n{paper}"
    return f"plm-embed {_version(facts)}.\n{paper}"
