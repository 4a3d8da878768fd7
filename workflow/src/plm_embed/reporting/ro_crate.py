"""Provenance for machines: one RO-Crate 1.1 per model of a campaign, the vocabulary of schema.org
in JSON-LD.
"""

import json
from collections.abc import Iterator
from typing import Any

from plm_embed._version import __version__
from plm_embed.io.files import write_json
from plm_embed.models.registry import MODELS
from plm_embed.reporting.facts import Facts
from plm_embed.reporting.outputs import CRATE, outputs
from plm_embed.wording import now

MIT, TERMS = "https://spdx.org/licenses/MIT", "#terms-of-the-data"
Entity = dict[str, Any]
LICENSES: tuple[Entity, ...] = (
    {"@id": MIT, "@type": "CreativeWork", "name": "MIT License", "identifier": "MIT"},
    {
        "@id": TERMS,
        "@type": "CreativeWork",
        "name": "Terms of the input sequences",
        "description": "The vectors are derived from the inputs, and the index repeats "
        "their ids and kept columns: the terms of the inputs apply, which plm-embed does not know. "
        "It claims no rights of its own.",
    },
)


def write_crate(facts: Facts) -> None:
    """Write ro-crate-metadata.json into the model's folder, which becomes the crate's root."""
    files, properties = list(_files(facts)), list(_properties(facts))
    inputs, software = [*_inputs(facts), *_weights(facts)], list(_software(facts))
    summary, doubt = facts.summary, f"; weights {facts.caveat}" if facts.caveat else ""
    accepted, records = (summary.accepted, summary.records) if summary else (0, 0)
    ended = max((run.ended for run in facts.runs), default=now())
    times = {"endTime": ended} if facts.runs else {}
    if facts.runs:
        times["startTime"] = min(run.started for run in facts.runs)
    graph: list[Entity] = [
        {
            "@id": CRATE,
            "@type": "CreativeWork",
            "conformsTo": {"@id": "https://w3id.org/ro/crate/1.1"},
            "about": {"@id": "./"},
        },
        {
            "@id": "./",
            "@type": "Dataset",
            "name": f"Embeddings: {facts.model}",
            "description": f"{facts.rows:,} vectors of {facts.dim:,} numbers for "
            f"{accepted:,} of {records:,} records{doubt}",
            "datePublished": ended,
            "license": {"@id": TERMS},
            "hasPart": _references(files),
            "mentions": {"@id": "#embedding"},
            "additionalProperty": _references(properties),
        },
        {
            "@id": "#embedding",
            "@type": "CreateAction",
            "name": f"Embedding of sequences with {facts.model}",
            "instrument": _references(software),
            "object": _references(inputs),
            "result": _references(files),
            **times,
        },
        *software,
        *inputs,
        *files,
        *properties,
        *LICENSES,
    ]
    context = "https://w3id.org/ro/crate/1.1/context"
    write_json(facts.folder / CRATE, {"@context": context, "@graph": graph})


def _references(entities: list[Entity]) -> list[Entity]:
    return [{"@id": entity["@id"]} for entity in entities]


def _software(facts: Facts) -> Iterator[Entity]:
    libraries = facts.metadata.get("library_versions", {})
    for name, version in {"plm-embed": __version__, **libraries}.items():
        entity = {"@id": f"#{name}", "@type": "SoftwareApplication", "name": name}
        license = {"license": {"@id": MIT}} if name == "plm-embed" else {}
        yield {**entity, "softwareVersion": version, **license}


def _inputs(facts: Facts) -> Iterator[Entity]:
    for number, file in enumerate(facts.summary.inputs if facts.summary else (), start=1):
        yield {
            "@id": f"#input-{number}",
            "@type": "CreativeWork",
            "name": file.path,
            "sha256": file.sha256,
            "contentSize": str(file.bytes),
            "description": f"{file.records:,} records",
        }


def _weights(facts: Facts) -> Iterator[Entity]:
    """Yield the weights. The license is the publisher's; weights of another origin may have their
    own.
    """
    if not facts.fingerprint:
        return
    model, sha256 = MODELS.get(facts.model), facts.fingerprint.weights_sha256
    entity = {"@id": "#weights", "@type": "CreativeWork", "sha256": sha256}
    if not model:
        yield {**entity, "name": f"Weights of {facts.model}", "description": facts.caveat}
        return
    if facts.caveat:
        text = f"{facts.caveat}; license of the published ones: {model.license}"
        name = f"Weights in the architecture of {facts.model}"
        yield {**entity, "name": name, "description": text}
        return
    note = "The published weights, by the SHA-256 of their file; this is that of the converted one."
    terms = {"@id": MIT} if model.license == "MIT" else model.license
    named = {"name": f"Weights of {facts.model}", "description": note}
    yield {**entity, **named, "url": model.address, "license": terms}


def _files(facts: Facts) -> Iterator[Entity]:
    """Yield the files that a campaign leaves, those that exist."""
    digests = facts.validation.files if facts.validation else {}
    for file in outputs(facts.folder, facts.master):
        name = file.path.name
        if name != CRATE and file.path.is_file():
            yield {
                "@id": name,
                "@type": "File",
                "name": name,
                "description": file.content,
                "encodingFormat": file.media_type,
                "contentSize": str(file.path.stat().st_size),
                **({"sha256": digests[name]} if name in digests else {}),
            }


def _properties(facts: Facts) -> Iterator[Entity]:
    """Yield every attribute of the master, or of the fingerprint while there is no master."""
    stated = facts.fingerprint.stated if facts.fingerprint else {}
    for name, value in sorted((facts.metadata or stated).items()):
        plain = value if isinstance(value, str | int | float) else json.dumps(value, sort_keys=True)
        yield {"@id": f"#attribute-{name}", "@type": "PropertyValue", "name": name, "value": plain}
