"""Provenance for machines: one RO-Crate 1.1 per model of a campaign, the vocabulary of schema.org
in JSON-LD.
"""

import json
from collections.abc import Iterator
from typing import Any

from plm_embed._version import __version__
from plm_embed.io.json_files import write_json
from plm_embed.models.registry import MODELS
from plm_embed.reporting.facts import Facts
from plm_embed.reporting.outputs import CRATE, outputs
from plm_embed.wording import count, now

Entity = dict[str, Any]


def _entity(id: str, kind: str, **properties: object) -> Entity:
    """Return an entity with those of its properties that are known."""
    rest = {name: value for name, value in properties.items() if value is not None}
    return {"@id": id, "@type": kind, **rest}


MIT = _entity("https://spdx.org/licenses/MIT", "CreativeWork", name="MIT License", identifier="MIT")
TERMS = _entity(
    "#terms-of-the-data",
    "CreativeWork",
    name="Terms of the input sequences",
    description="The vectors are derived from the inputs, and the index repeats their ids and kept "
    "columns: the terms of the inputs apply, which plm-embed does not know. It claims no rights of "
    "its own.",
)


def write_crate(facts: Facts) -> None:
    """Write ro-crate-metadata.json into the model's folder, which becomes the crate's root."""
    software, inputs = list(_software(facts)), list(_inputs(facts))
    files, attributes = list(_files(facts)), list(_attributes(facts))
    summary, doubt = facts.summary, f"; weights {facts.caveat}" if facts.caveat else ""
    accepted, records = (summary.accepted, summary.records) if summary else (0, 0)
    vectors = f"{count(facts.rows, 'vector')} of {facts.dim:,} numbers"
    ended = max((run.ended for run in facts.runs), default=None)
    conforms, about = {"@id": "https://w3id.org/ro/crate/1.1"}, {"@id": "./"}
    graph = [
        _entity(CRATE, "CreativeWork", conformsTo=conforms, about=about),
        _entity(
            "./",
            "Dataset",
            name=f"Embeddings: {facts.model}",
            description=f"{vectors} for {accepted:,} of {count(records, 'record')}{doubt}",
            datePublished=ended or now(),
            license=_reference(TERMS),
            hasPart=[_reference(file) for file in files],
            mentions={"@id": "#embedding"},
            additionalProperty=[_reference(attribute) for attribute in attributes],
        ),
        _entity(
            "#embedding",
            "CreateAction",
            name=f"Embedding of sequences with {facts.model}",
            instrument=[_reference(program) for program in software],
            object=[_reference(entity) for entity in inputs],
            result=[_reference(file) for file in files],
            startTime=min((run.started for run in facts.runs), default=None),
            endTime=ended,
        ),
        *(*software, *inputs, *files, *attributes, MIT, TERMS),
    ]
    context = "https://w3id.org/ro/crate/1.1/context"
    write_json(facts.folder / CRATE, {"@context": context, "@graph": graph})


def _reference(entity: Entity) -> Entity:
    return {"@id": entity["@id"]}


def _software(facts: Facts) -> Iterator[Entity]:
    libraries = facts.metadata.get("library_versions", {})
    for name, version in {"plm-embed": __version__, **libraries}.items():
        terms = _reference(MIT) if name == "plm-embed" else None
        application = {"name": name, "softwareVersion": version, "license": terms}
        yield _entity(f"#{name}", "SoftwareApplication", **application)


def _inputs(facts: Facts) -> Iterator[Entity]:
    """Yield the sequence files and the weights, which have a license only where published."""
    for number, file in enumerate(facts.summary.inputs if facts.summary else (), start=1):
        yield _entity(
            f"#input-{number}",
            "CreativeWork",
            name=file.path,
            sha256=file.sha256,
            contentSize=str(file.bytes),
            description=count(file.records, "record"),
        )
    if facts.fingerprint:
        model = None if facts.caveat else MODELS.get(facts.model)
        mit = model and model.license == "MIT"
        yield _entity(
            "#weights",
            "CreativeWork",
            name=f"Weights of {facts.model}",
            description=facts.caveat or "The published file; the SHA-256 is that after conversion.",
            sha256=facts.fingerprint.weights_sha256,
            url=model and model.address,
            license=_reference(MIT) if mit else model and model.license,
        )


def _files(facts: Facts) -> Iterator[Entity]:
    """Yield the files that a campaign leaves, those that exist."""
    digests = facts.validation.files if facts.validation else {}
    for path, content, _, media_type in outputs(facts.folder, facts.master):
        if path.name != CRATE and path.is_file():
            yield _entity(
                path.name,
                "File",
                name=path.name,
                description=content,
                encodingFormat=media_type,
                contentSize=str(path.stat().st_size),
                sha256=digests.get(path.name),
            )


def _attributes(facts: Facts) -> Iterator[Entity]:
    """Yield every attribute of the master."""
    for name, value in sorted(facts.metadata.items()):
        plain = value if isinstance(value, str | int | float) else json.dumps(value, sort_keys=True)
        yield _entity(f"#attribute-{name}", "PropertyValue", name=name, value=plain)
