"""Provenance for machines: one RO-Crate 1.1 per model of a campaign, the vocabulary of schema.org
in JSON-LD.
"""

import json
from typing import Any

from plm_embed.io.json_files import write_json
from plm_embed.models.registry import MODELS
from plm_embed.reporting.facts import Facts
from plm_embed.reporting.outputs import CRATE, outputs
from plm_embed.wording import count, now

TERMS = (
    "The vectors are derived from the inputs, and the index repeats their ids and kept columns: "
    "the terms of the inputs apply, which plm-embed does not know. It claims no rights of its own."
)


def write_crate(facts: Facts) -> None:
    """Write ro-crate-metadata.json into the model's folder, which becomes the crate's root."""
    graph: list[dict[str, Any]] = []

    def add(id: str, kind: str, **properties: object) -> dict[str, str]:
        """Add an entity with those of its properties that are known; return a reference to it."""
        present = {name: value for name, value in properties.items() if value is not None}
        graph.append({"@id": id, "@type": kind, **present})
        return {"@id": id}

    software = [
        add(f"#{name}", "SoftwareApplication", name=name, softwareVersion=version)
        for name, version in facts.versions.items()
    ]
    inputs = []
    for number, file in enumerate(facts.summary.inputs if facts.summary else (), start=1):
        about = {"name": file.path, "description": count(file.records, "record")}
        inputs.append(add(f"#input-{number}", "CreativeWork", **about, sha256=file.sha256))
    if facts.fingerprint:
        model = None if facts.caveat else MODELS.get(facts.model)
        origin = facts.caveat or "The published file; the SHA-256 is that after conversion."
        about = {"name": f"Weights of {facts.model}", "description": origin}
        terms = {"url": model.address, "license": model.license} if model else {}
        digest = facts.fingerprint.weights_sha256
        inputs.append(add("#weights", "CreativeWork", **about, **terms, sha256=digest))
    digests = facts.validation.files if facts.validation else {}
    files = []
    for path, content in outputs(facts.folder, facts.master):
        if path.name != CRATE and path.is_file():
            about = {"name": path.name, "description": content}
            about["contentSize"] = str(path.stat().st_size)
            files.append(add(path.name, "File", **about, sha256=digests.get(path.name)))
    attributes = []
    for name in ("fingerprint", "devices"):
        if name in facts.metadata:
            value = json.dumps(facts.metadata[name], sort_keys=True)
            attributes.append(add(f"#{name}", "PropertyValue", name=name, value=value))
    ended = max((run.ended for run in facts.runs), default=None)
    stated = {"fingerprint": facts.metadata.get("fingerprint_id"), "commit": facts.commit}
    action = add(
        "#embedding",
        "CreateAction",
        name=f"Embedding of sequences with {facts.model}",
        description=", ".join(f"{name} {value}" for name, value in stated.items() if value) or None,
        instrument=software,
        object=inputs,
        result=files,
        startTime=min((run.started for run in facts.runs), default=None),
        endTime=ended,
    )
    records = count(facts.summary.accepted if facts.summary else 0, "record")
    doubt = f"; weights {facts.caveat}" if facts.caveat else ""
    root = add(
        "./",
        "Dataset",
        name=f"Embeddings: {facts.model}",
        description=f"{count(facts.rows, 'vector')} of {facts.dim:,} numbers for {records}{doubt}",
        datePublished=ended or now(),
        license=add("#terms-of-the-data", "CreativeWork", name="Terms", description=TERMS),
        hasPart=files,
        mentions=action,
        additionalProperty=attributes,
    )
    specification = "https://w3id.org/ro/crate/1.1"
    add(CRATE, "CreativeWork", conformsTo={"@id": specification}, about=root)
    write_json(facts.folder / CRATE, {"@context": f"{specification}/context", "@graph": graph})
