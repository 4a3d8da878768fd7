"""The RO-Crate: every file and the software, after the specification."""

import json
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from click.testing import CliRunner

from plm_embed.cli.main import group
from plm_embed.reporting.facts import collect
from plm_embed.reporting.ro_crate import write_crate
from support.finished import MODEL


def test_the_crate_names_every_file_and_the_software(copy: Path) -> None:
    CliRunner().invoke(group, ["report", str(copy)], catch_exceptions=False)
    crate = json.loads((copy / MODEL / "ro-crate-metadata.json").read_text())
    entities = {entity["@id"]: entity for entity in crate["@graph"]}
    assert len(entities) == len(crate["@graph"])
    root = entities["./"]
    assert entities["ro-crate-metadata.json"]["about"] == {"@id": "./"}
    for part in root["hasPart"]:
        assert (copy / MODEL / part["@id"]).stat().st_size == int(
            entities[part["@id"]]["contentSize"]
        )
    assert {"report.html", "records.parquet", "master_esm2_embeddings.h5"} <= set(entities)
    facts, action = collect(copy), entities["#embedding"]
    told = {entities[one["@id"]]["name"] for one in action["instrument"]}
    assert told == {*facts.versions} and "torch" in told
    origin = f"fingerprint {facts.metadata['fingerprint_id']}, commit 0123456789abcdef"
    assert action["description"] == origin
    assert json.loads(entities["#fingerprint"]["value"]) == facts.metadata["fingerprint"]
    assert json.loads(entities["#devices"]["value"]) == facts.metadata["devices"]
    assert facts.summary
    for number, file in enumerate(facts.summary.inputs, start=1):
        entity = entities[f"#input-{number}"]
        assert entity["sha256"] == file.sha256
        assert entity["description"] == f"{file.records:,} records"
    assert "terms of the inputs apply" in entities[root["license"]["@id"]]["description"]
    assert facts.fingerprint
    assert entities["#weights"]["sha256"] == facts.fingerprint.weights_sha256


def test_the_crate_is_flattened_json_ld_after_the_specification(copy: Path) -> None:
    """Demands of RO-Crate 1.1: one flat graph, a descriptor, a root with its four properties,
    files that exist.
    """
    facts = collect(copy)
    facts.model = "esm2_t6_8M_UR50D"
    assert facts.weights is not None
    facts.weights = replace(facts.weights, published="sha256")
    write_crate(facts)
    crate = json.loads((copy / MODEL / "ro-crate-metadata.json").read_text())
    assert crate["@context"] == "https://w3id.org/ro/crate/1.1/context" and set(crate) == {
        "@context",
        "@graph",
    }
    entities = {entity["@id"]: entity for entity in crate["@graph"]}
    descriptor = entities["ro-crate-metadata.json"]
    assert descriptor["@type"] == "CreativeWork"
    assert descriptor["conformsTo"] == {"@id": "https://w3id.org/ro/crate/1.1"}
    root = entities[descriptor["about"]["@id"]]
    assert root["@type"] == "Dataset" and {
        "name",
        "description",
        "datePublished",
        "license",
    } <= set(root)
    assert datetime.fromisoformat(root["datePublished"]).tzinfo
    action = entities["#embedding"]
    assert datetime.fromisoformat(action["startTime"]) <= datetime.fromisoformat(action["endTime"])
    assert {one["@id"] for one in action["object"]} == {"#input-1", "#input-2", "#weights"}
    assert entities["#weights"]["url"].endswith("esm2_t6_8M_UR50D.pt")
    for entity in crate["@graph"]:
        assert {"@id", "@type"} <= set(entity)
        assert entity["@type"] != "File" or (copy / MODEL / entity["@id"]).is_file()
        for name, value in entity.items():
            for one in value if isinstance(value, list) else [value]:
                assert not isinstance(one, dict) or set(one) == {"@id"}, f"{name}: not flat"
                # nothing is referred to that is not there, but for the specification itself
                assert (
                    not isinstance(one, dict) or name == "conformsTo" or one["@id"] in entities
                ), one
