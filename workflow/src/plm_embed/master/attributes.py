"""Attributes of the master: what a vector depends on, what computed it, and from which inputs."""

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from plm_embed.fingerprint import IMPORTED_DEVICE, POOLING_DEFINITIONS, Fingerprint
from plm_embed.io.json_files import to_plain
from plm_embed.master.campaign import Campaign
from plm_embed.sequences.summary import Summary
from plm_embed.store.hdf5 import open_hdf5
from plm_embed.store.parts import SCHEMA_VERSION


def attributes(
    campaign: Campaign, summary: Summary, provenance: Mapping[str, str]
) -> dict[str, Any]:
    """All of them, by name."""
    counted = to_plain(summary)
    told = ("inputs", "records", "accepted", "skipped", "unique", "policy")
    inputs = {name: counted[name] for name in told if counted[name] is not None}
    found: dict[str, Any] = plain_attributes(campaign.fingerprint) | {
        "schema_version": SCHEMA_VERSION,
        "fingerprint": campaign.fingerprint.to_json(),
        "pooling_definition": "\n".join(
            f"{name}: {POOLING_DEFINITIONS[name]}" for name in campaign.fingerprint.pooling
        ),
        "batch_invariance": _batch_invariance(campaign),
        "library_versions": {
            name: ", ".join(sorted(found)) for name, found in campaign.versions.items()
        },
        "devices": sorted(campaign.devices),
        "inputs": inputs | {"embedded": campaign.vectors},
    }
    found |= provenance
    return {
        name: json.dumps(value, sort_keys=True) if isinstance(value, dict) else value
        for name, value in sorted(found.items())
    }


def gathered_from(master: Path) -> dict[str, Any]:
    """What a master says of the sequences that it was gathered from. StoreError for a file that is
    no whole HDF5.
    """
    with open_hdf5(master) as file:
        found: dict[str, Any] = json.loads(file.attrs.get("inputs", "{}"))
        return found


def is_of(said: Mapping[str, Any], summary: Summary) -> bool:
    """Whether these are the sequences that `gathered_from` gives."""
    counted = to_plain(summary)
    return all(counted.get(name, count) == count for name, count in said.items())


def _batch_invariance(campaign: Campaign) -> str:
    """In words: whether a vector's bits may depend on the batch that it was computed in."""
    if not campaign.fingerprint.batch_invariant:
        return "not promised by the engine"
    imported = any(IMPORTED_DEVICE in name for name in campaign.devices)
    return (
        "promised by the engine"
        + ", but a self-test of this campaign saw otherwise" * campaign.batch_dependent
        + ", except for vectors that another program computed" * imported
    )


def plain_attributes(fingerprint: Fingerprint) -> dict[str, Any]:
    """The fingerprint again as plain attributes, for readers that know nothing of it. max_length 0:
    no limit.
    """
    found = {
        "fingerprint_id": fingerprint.id,
        "model_name": fingerprint.model,
        "weights_sha256": fingerprint.weights_sha256,
        "layers": list(fingerprint.layers),
        "pooling": list(fingerprint.pooling),
        "precision": fingerprint.storage_dtype,
        "compute_dtype": fingerprint.compute_dtype,
        "long_sequences": fingerprint.long_sequences.policy,
        "max_length": fingerprint.long_sequences.max_residues,
        "window_overlap": fingerprint.long_sequences.overlap,
        "engine": fingerprint.engine,
    }
    # masters that know of one strand alone have no such attribute
    return found if fingerprint.strand == "as_given" else found | {"strand": fingerprint.strand}


def workflow_commit() -> str:
    """Return the commit of the clone that this package lies in, ending in -dirty when files were
    changed; 'unknown' outside of a clone.
    """
    root = Path(__file__).parents[4]
    command = [
        "git",
        "-C",
        str(root),
        "describe",
        "--always",
        "--dirty",
        "--abbrev=40",
        "--exclude=*",
    ]
    if not (root / ".git").exists():
        return "unknown"
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
