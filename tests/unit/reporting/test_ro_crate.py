"""The RO-Crate: every file, the inputs and the software, after the specification."""

import json
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from plm_embed.reporting.facts import collect
from plm_embed.reporting.report import write_report
from plm_embed.reporting.ro_crate import write_crate
from support.finished import MODEL


def test_the_crate_is_flattened_json_ld_about_every_file(copy: Path) -> None:
    """Demands of RO-Crate 1.1: one flat graph, a descriptor, a root with its four properties,
    files that exist.
    """
    facts = collect(copy)
    facts.model = "esm2_t6_8M_UR50D"
    assert facts.weights and facts.summary and facts.fingerprint and facts.validation
    facts.weights = replace(facts.weights, published="sha256")
    write_report(facts, facts.folder / "report.html")
    write_crate(facts)
    crate = json.loads((copy / MODEL / "ro-crate-metadata.json").read_text())
    assert set(crate) == {"@context", "@graph"}
    assert crate["@context"] == "https://w3id.org/ro/crate/1.1/context"
    entities = {entity["@id"]: entity for entity in crate["@graph"]}
    assert len(entities) == len(crate["@graph"])
    for entity in crate["@graph"]:
        assert {"@id", "@type"} <= set(entity)
        if entity["@type"] == "File":
            assert (copy / MODEL / entity["@id"]).stat().st_size == int(entity["contentSize"])
            assert entity.get("sha256") == facts.validation.files.get(entity["@id"])
        for name, value in entity.items():
            for part in value if isinstance(value, list) else [value]:
                if isinstance(part, dict):
                    assert set(part) == {"@id"}, f"{name}: not flat"
                    # nothing but the specification itself lies outside
                    assert name == "conformsTo" or part["@id"] in entities, part

    descriptor, root = entities["ro-crate-metadata.json"], entities["./"]
    assert descriptor["@type"] == "CreativeWork" and descriptor["about"] == {"@id": "./"}
    assert descriptor["conformsTo"] == {"@id": "https://w3id.org/ro/crate/1.1"}
    assert root["@type"] == "Dataset"
    assert {"name", "description", "datePublished", "license"} <= set(root)
    assert datetime.fromisoformat(root["datePublished"]).tzinfo
    assert "terms of the inputs apply" in entities[root["license"]["@id"]]["description"]
    parts = {part["@id"] for part in root["hasPart"]}
    assert {"report.html", "records.parquet", "master_esm2_embeddings.h5"} <= parts

    action = entities["#embedding"]
    assert datetime.fromisoformat(action["startTime"]) <= datetime.fromisoformat(action["endTime"])
    origin = f"fingerprint {facts.metadata['fingerprint_id']}, commit 0123456789abcdef"
    assert action["description"] == origin
    software = {entities[part["@id"]]["name"] for part in action["instrument"]}
    assert software == {*facts.versions} and "torch" in software
    assert json.loads(entities["#fingerprint"]["value"]) == facts.metadata["fingerprint"]
    assert json.loads(entities["#devices"]["value"]) == facts.metadata["devices"]
    assert [part["@id"] for part in action["object"]] == ["#input-1", "#input-2", "#weights"]
    for number, file in enumerate(facts.summary.inputs, start=1):
        entity = entities[f"#input-{number}"]
        assert (entity["sha256"], entity["description"]) == (file.sha256, f"{file.records} records")
    assert entities["#weights"]["sha256"] == facts.fingerprint.weights_sha256
    assert entities["#weights"]["url"].endswith("esm2_t6_8M_UR50D.pt")
