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
from plm_embed.wording import count, now

MIT, TERMS = "https://spdx.org/licenses/MIT", "#terms-of-the-data"
Entity = dict[str, Any]


def _entity(id: str, kind: str, **properties: object) -> Entity:
    """Return an entity with those of its properties that are known."""
    rest = {name: value for name, value in properties.items() if value is not None}
    return {"@id": id, "@type": kind, **rest}


LICENSES = (
    _entity(MIT, "CreativeWork", name="MIT License", identifier="MIT"),
    _entity(
        TERMS,
        "CreativeWork",
        name="Terms of the input sequences",
        description="The vectors are derived from the inputs, and the index repeats their ids and "
        "kept columns: the terms of the inputs apply, which plm-embed does not know. It claims no "
        "rights of its own.",
    ),
)


def write_crate(facts: Facts) -> None:
    """Write ro-crate-metadata.json into the model's folder, which becomes the crate's root."""
    files, properties = list(_files(facts)), list(_properties(facts))
    inputs, software = [*_inputs(facts), *_weights(facts)], list(_software(facts))
    summary, doubt = facts.summary, f"; weights {facts.caveat}" if facts.caveat else ""
    accepted, records = (summary.accepted, summary.records) if summary else (0, 0)
    vectors = f"{count(facts.rows, 'vector')} of {facts.dim:,} numbers"
    ended = max((run.ended for run in facts.runs), default=None)
    about = {"conformsTo": {"@id": "https://w3id.org/ro/crate/1.1"}, "about": {"@id": "./"}}
    graph = [
        _entity(CRATE, "CreativeWork", **about),
        _entity(
            "./",
            "Dataset",
            name=f"Embeddings: {facts.model}",
            description=f"{vectors} for {accepted:,} of {count(records, 'record')}{doubt}",
            datePublished=ended or now(),
            license={"@id": TERMS},
            hasPart=_references(files),
            mentions={"@id": "#embedding"},
            additionalProperty=_references(properties),
        ),
        _entity(
            "#embedding",
            "CreateAction",
            name=f"Embedding of sequences with {facts.model}",
            instrument=_references(software),
            object=_references(inputs),
            result=_references(files),
            startTime=min((run.started for run in facts.runs), default=None),
            endTime=ended,
        ),
        *(*software, *inputs, *files, *properties, *LICENSES),
    ]
    context = "https://w3id.org/ro/crate/1.1/context"
    write_json(facts.folder / CRATE, {"@context": context, "@graph": graph})


def _references(entities: list[Entity]) -> list[Entity]:
    return [{"@id": entity["@id"]} for entity in entities]


def _software(facts: Facts) -> Iterator[Entity]:
    libraries = facts.metadata.get("library_versions", {})
    for name, version in {"plm-embed": __version__, **libraries}.items():
        terms = {"@id": MIT} if name == "plm-embed" else None
        application = {"name": name, "softwareVersion": version, "license": terms}
        yield _entity(f"#{name}", "SoftwareApplication", **application)


def _inputs(facts: Facts) -> Iterator[Entity]:
    for number, file in enumerate(facts.summary.inputs if facts.summary else (), start=1):
        yield _entity(
            f"#input-{number}",
            "CreativeWork",
            name=file.path,
            sha256=file.sha256,
            contentSize=str(file.bytes),
            description=count(file.records, "record"),
        )


def _weights(facts: Facts) -> Iterator[Entity]:
    """Yield the weights. The license is the publisher's; weights of another origin may have their
    own.
    """
    if not facts.fingerprint:
        return
    model, name, text = MODELS.get(facts.model), f"Weights of {facts.model}", facts.caveat
    published: dict[str, object] = {}
    if model and text:
        name = f"Weights in the architecture of {facts.model}"
        text += f"; license of the published ones: {model.license}"
    elif model:
        text = "The published weights, by the SHA-256 of their file; this is that of the converted."
        terms = {"@id": MIT} if model.license == "MIT" else model.license
        published = {"url": model.address, "license": terms}
    sha256 = facts.fingerprint.weights_sha256
    described = {"name": name, "description": text, "sha256": sha256}
    yield _entity("#weights", "CreativeWork", **described, **published)


def _files(facts: Facts) -> Iterator[Entity]:
    """Yield the files that a campaign leaves, those that exist."""
    digests = facts.validation.files if facts.validation else {}
    for file in outputs(facts.folder, facts.master):
        name = file.path.name
        if name != CRATE and file.path.is_file():
            yield _entity(
                name,
                "File",
                name=name,
                description=file.content,
                encodingFormat=file.media_type,
                contentSize=str(file.path.stat().st_size),
                sha256=digests.get(name),
            )


def _properties(facts: Facts) -> Iterator[Entity]:
    """Yield every attribute of the master, or of the fingerprint while there is no master."""
    stated = facts.fingerprint.stated if facts.fingerprint else {}
    for name, value in sorted((facts.metadata or stated).items()):
        plain = value if isinstance(value, str | int | float) else json.dumps(value, sort_keys=True)
        yield _entity(f"#attribute-{name}", "PropertyValue", name=name, value=plain)
