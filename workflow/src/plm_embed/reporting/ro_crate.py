"""Provenance for machines: one RO-Crate 1.1 per model of a campaign, the vocabulary of schema.org
in JSON-LD.
"""

import json
from collections.abc import Iterator
from typing import Any

from plm_embed._version import __version__
from plm_embed.io.files import write_json
from plm_embed.models.registry import find_model
from plm_embed.reporting.facts import Facts
from plm_embed.reporting.outputs import CRATE, outputs
from plm_embed.wording import now

SOFTWARE, WEIGHTS, TERMS = "#plm-embed", "#weights", "#terms-of-the-data"
MIT = "https://spdx.org/licenses/MIT"
Entity = dict[str, Any]
LICENSES: tuple[Entity, ...] = (
    {"@id": MIT, "@type": "CreativeWork", "name": "MIT License", "identifier": "MIT"},
    {
        "@id": TERMS,
        "@type": "CreativeWork",
        "name": "Terms of the input sequences",
        "description": "The vectors are derived from the inputs, and the index repeats "
        "their ids and kept columns: the "
        "terms of the inputs apply, which plm-embed does not know. It claims no rights of its own.",
    },
)


def write_crate(facts: Facts) -> None:
    """Write ro-crate-metadata.json into the model's folder, which becomes the crate's root."""
    files = list(_files(facts))
    inputs = list(_inputs(facts))
    weights = list(_weights(facts))
    properties = list(_properties(facts))
    libraries = [
        {
            "@id": f"#{name}",
            "@type": "SoftwareApplication",
            "name": name,
            "softwareVersion": version,
        }
        for name, version in sorted(facts.metadata.get("library_versions", {}).items())
        if name != "plm-embed"
    ]
    ended = max((run.ended for run in facts.runs), default=now())
    action: Entity = {
        "@id": "#embedding",
        "@type": "CreateAction",
        "name": f"Embedding of sequences with {facts.model}",
        "instrument": _references([{"@id": SOFTWARE}, *libraries]),
        "object": _references([*inputs, *weights]),
        "result": _references(files),
    }
    if facts.runs:
        action |= {"startTime": min(run.started for run in facts.runs), "endTime": ended}
    summary = facts.summary
    accepted, records = (summary.accepted, summary.records) if summary else (0, 0)
    root: Entity = {
        "@id": "./",
        "@type": "Dataset",
        "name": f"Embeddings: {facts.model}",
        "description": f"{facts.rows:,} vectors of {facts.dim:,} numbers for "
        f"{accepted:,} of {records:,} records"
        + (f"; weights {facts.caveat}" if facts.caveat else ""),
        "datePublished": ended,
        "license": {"@id": TERMS},
        "hasPart": _references(files),
        "mentions": {"@id": "#embedding"},
        "additionalProperty": _references(properties),
    }
    descriptor: Entity = {
        "@id": CRATE,
        "@type": "CreativeWork",
        "conformsTo": {"@id": "https://w3id.org/ro/crate/1.1"},
        "about": {"@id": "./"},
    }
    software: Entity = {
        "@id": SOFTWARE,
        "@type": "SoftwareApplication",
        "name": "plm-embed",
        "softwareVersion": __version__,
        "license": {"@id": MIT},
    }
    graph = [
        descriptor,
        root,
        action,
        software,
        *libraries,
        *inputs,
        *weights,
        *files,
        *properties,
        *LICENSES,
    ]
    write_json(
        facts.folder / CRATE, {"@context": "https://w3id.org/ro/crate/1.1/context", "@graph": graph}
    )


def _references(entities: list[Entity]) -> list[Entity]:
    return [{"@id": entity["@id"]} for entity in entities]


def _inputs(facts: Facts) -> Iterator[Entity]:
    for number, one in enumerate(facts.summary.inputs if facts.summary else (), start=1):
        yield {
            "@id": f"#input-{number}",
            "@type": "CreativeWork",
            "name": one.path,
            "sha256": one.sha256,
            "contentSize": str(one.bytes),
            "description": f"{one.records:,} records",
        }


def _weights(facts: Facts) -> Iterator[Entity]:
    """The weights that were used. The license is the publisher's; weights of another origin may
    have their own.
    """
    if not facts.fingerprint:
        return
    entity: Entity = {
        "@id": WEIGHTS,
        "@type": "CreativeWork",
        "sha256": facts.fingerprint.weights_sha256,
    }
    if facts.caveat:
        yield entity | {
            "name": f"Weights in the architecture of {facts.model}",
            "description": f"{facts.caveat}; license of the published ones: "
            f"{find_model(facts.model).license}",
        }
    else:
        model = find_model(facts.model)
        terms = {"@id": MIT} if model.license == "MIT" else model.license
        source = {"url": model.address, "license": terms}
        note = (
            "The published weights, by the SHA-256 of their file; this "
            "one is that of the converted file."
        )
        yield entity | source | {"name": f"Weights of {facts.model}", "description": note}


def _files(facts: Facts) -> Iterator[Entity]:
    """The files that a campaign leaves, those that exist."""
    digests = facts.validation.files if facts.validation else {}
    for one in outputs(facts.folder, facts.master):
        if one.name != CRATE and one.path.is_file():
            digest = {"sha256": digests[one.name]} if one.name in digests else {}
            yield {
                "@id": one.name,
                "@type": "File",
                "name": one.name,
                "description": one.what,
                "encodingFormat": one.media_type,
                "contentSize": str(one.path.stat().st_size),
                **digest,
            }


def _properties(facts: Facts) -> Iterator[Entity]:
    """Every attribute of the master, or of the fingerprint while there is no master."""
    stated = facts.fingerprint.stated if facts.fingerprint else {}
    for name, value in sorted((facts.metadata or stated).items()):
        plain = value if isinstance(value, str | int | float) else json.dumps(value, sort_keys=True)
        yield {"@id": f"#attribute-{name}", "@type": "PropertyValue", "name": name, "value": plain}
