"""Attributes of the master: what a vector depends on, what computed it, and from which inputs."""

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from plm_embed.fingerprint import IMPORTED_DEVICE, POOLING_DEFINITIONS
from plm_embed.io.json_files import to_plain
from plm_embed.master.campaign import Campaign
from plm_embed.sequences.summary import Summary
from plm_embed.store.parts import SCHEMA_VERSION


def attributes(
    campaign: Campaign, summary: Summary, provenance: Mapping[str, str]
) -> dict[str, Any]:
    """Return all attributes by name: the fingerprint whole, and again as plain attributes for
    readers that do not know it (max_length 0: no limit).
    """
    fingerprint, counted = campaign.fingerprint, to_plain(summary)
    named = ("inputs", "records", "accepted", "skipped", "unique", "policy")
    inputs = {name: counted[name] for name in named if counted.get(name) is not None}
    versions = campaign.versions.items()
    invariance = "not promised by the engine"
    if fingerprint.batch_invariant:
        invariance = "promised by the engine"
        if campaign.batch_dependent:
            invariance += ", but a self-test of this campaign saw otherwise"
        if any(IMPORTED_DEVICE in name for name in campaign.devices):
            invariance += ", except for vectors that another program computed"
    values: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "fingerprint": fingerprint.to_json(),
        "fingerprint_id": fingerprint.id,
        "model_name": fingerprint.model,
        "weights_sha256": fingerprint.weights_sha256,
        "layers": list(fingerprint.layers),
        "pooling": list(fingerprint.pooling),
        "pooling_definition": "\n".join(
            f"{name}: {POOLING_DEFINITIONS[name]}" for name in fingerprint.pooling
        ),
        "precision": fingerprint.storage_dtype,
        "compute_dtype": fingerprint.compute_dtype,
        "long_sequences": fingerprint.long_sequences.policy,
        "max_length": fingerprint.long_sequences.max_residues,
        "window_overlap": fingerprint.long_sequences.overlap,
        "engine": fingerprint.engine,
        "batch_invariance": invariance,
        "library_versions": {name: ", ".join(sorted(several)) for name, several in versions},
        "devices": sorted(campaign.devices),
        "inputs": inputs | {"embedded": campaign.vectors},
        **provenance,
    }
    if fingerprint.strand != "as_given":  # masters that know of one strand have no such attribute
        values["strand"] = fingerprint.strand
    if fingerprint.linker:
        values["linker"] = fingerprint.linker
    return {
        name: json.dumps(value, sort_keys=True) if isinstance(value, dict) else value
        for name, value in sorted(values.items())
    }


def is_of(inputs: Mapping[str, Any], summary: Summary) -> bool:
    """Tell whether the attribute `inputs` of a master is about these sequences."""
    counted = to_plain(summary)
    return all(counted.get(name, count) == count for name, count in inputs.items())


def workflow_commit() -> str:
    """Return the commit of the clone that this package lies in, ending in -dirty when files were
    changed; 'unknown' outside of a clone.
    """
    root = Path(__file__).parents[4]
    describe = ["describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    if not (root / ".git").exists():
        return "unknown"
    try:
        command = ["git", "-C", str(root), *describe]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
