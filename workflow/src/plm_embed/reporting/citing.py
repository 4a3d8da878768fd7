"""What a paper needs of a campaign: where everything comes from, a paragraph of methods, what to
cite.
"""

from collections.abc import Iterator

from plm_embed._version import __version__
from plm_embed.fingerprint import POOLING_DEFINITIONS
from plm_embed.models.registry import MODELS
from plm_embed.reporting.facts import Facts


def provenance(facts: Facts) -> Iterator[tuple[str, str]]:
    yield "plm-embed", __version__
    metadata = facts.metadata
    if metadata:
        yield "workflow commit", str(metadata.get("workflow_commit", "")) or "unknown"
        for name, version in metadata["library_versions"].items():
            if name != "plm-embed":
                yield name, version
        yield "devices", ", ".join(metadata["devices"])
        yield "fingerprint", str(metadata["fingerprint_id"])
    if facts.fingerprint:
        yield "weights, SHA-256", facts.fingerprint.weights_sha256
        yield "weights, standing", facts.caveat or "the published file, by its SHA-256"
        if facts.license:
            yield "weights, license", facts.license
        yield "engine", facts.fingerprint.engine
    for one in facts.summary.inputs if facts.summary else ():
        yield f"SHA-256 of {one.path}", one.sha256
    for name, digest in facts.validation.files.items() if facts.validation else ():
        yield f"SHA-256 of {name}", digest


def methods(facts: Facts) -> str:
    """A paragraph for a paper."""
    if not facts.summary or not facts.fingerprint:
        return "There will be a paragraph here once something is computed."
    fingerprint, summary = facts.fingerprint, facts.summary
    skipped = summary.skipped.total()
    kinds: dict[str, str] = {"dna": "DNA", "3di": "3Di"}
    kind = kinds.get(summary.policy.alphabet, "protein") if summary.policy else "protein"
    text = (
        f"Embeddings of {summary.accepted:,} {kind} sequences ({summary.unique:,} distinct"
        + (f"; {skipped:,} of {summary.records:,} records were skipped" if skipped else "")
        + f") were computed with {_weights(facts)}, layers "
        f"{', '.join(map(str, fingerprint.layers))}, "
        f"in {fingerprint.compute_dtype} by plm-embed {__version__}"
    )
    commit = str(facts.metadata.get("workflow_commit", ""))
    text += f" (commit {commit[:12]}). " if commit not in ("", "unknown") else ". "
    text += (
        "; ".join(
            f"{name}: {POOLING_DEFINITIONS[name]}" for name in fingerprint.pooling
        ).capitalize()
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


def _weights(facts: Facts) -> str:
    """Whose vectors these are: the published model's only where that is proven."""
    digest = facts.fingerprint.weights_sha256 if facts.fingerprint else ""
    if not facts.caveat:
        return f"{facts.model} (the published weights, SHA-256 {digest[:12]})"
    return f"weights of SHA-256 {digest[:12]} in the architecture of {facts.model} ({facts.caveat})"


def citation(facts: Facts) -> str:
    """What to cite: this software and the model, or of weights that are not proven to be published
    the architecture.
    """
    model = MODELS.get(facts.model)
    known = model.family.papers if model else ()
    paper = "\n".join(known) or f"The paper of {facts.model}, which this version does not know."
    if facts.caveat:
        paper = f"The weights are {facts.caveat}. For the architecture alone:\n{paper}"
    return f"plm-embed {__version__}.\n{paper}"
